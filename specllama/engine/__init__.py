"""llama-server: finding it, its capabilities, its command line, process and HTTP client."""
