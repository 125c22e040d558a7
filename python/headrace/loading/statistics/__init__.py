"""Counts and times of a loader."""
