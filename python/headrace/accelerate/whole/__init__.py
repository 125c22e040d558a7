"""Loaders taken over as a whole: recognised, compiled, iterated."""
