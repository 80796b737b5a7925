"""With this folder on PYTHONPATH, llama-cpp-python appears not to be installed."""

raise ImportError("not installed")
