"""`python -m specllama`."""

from specllama.cli import main

if __name__ == "__main__":
    main()
