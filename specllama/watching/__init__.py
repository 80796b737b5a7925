"""Running servers: counters of real requests, and verdicts on them."""
