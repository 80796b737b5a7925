"""The thing that runs: which llama-server, what it can do, and a live one."""
