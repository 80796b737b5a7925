"""What running servers count of real requests, and what follows from it."""
