"""Documents, and made/: what makes those that come from the program itself."""
