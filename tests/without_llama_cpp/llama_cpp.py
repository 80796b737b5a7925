"""Put on PYTHONPATH, this stands for a machine without llama-cpp-python."""

raise ImportError("not installed")
