"""Counts and times of a loader, and clocks for the training step."""
