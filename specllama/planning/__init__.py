"""Target, draft and workload → one decision with its reasons."""
