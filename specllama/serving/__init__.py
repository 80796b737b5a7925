"""A Plan brought to life: launched, verified, kept alive."""
