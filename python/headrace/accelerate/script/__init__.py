"""Inspect the script's own modules: their source text, the state of their objects, and the library functions they replaced."""
