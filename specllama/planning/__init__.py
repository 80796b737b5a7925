"""From target, draft and workload to one decision with its reasons."""
