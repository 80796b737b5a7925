"""Launches, verifies and supervises the server of a Plan."""
