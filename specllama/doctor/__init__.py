"""What specllama finds on this machine, and what is wrong with it."""
