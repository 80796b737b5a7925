"""Finding the fastest settings for one model, machine and workload, by measuring."""
