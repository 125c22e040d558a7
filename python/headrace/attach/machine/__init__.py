"""Counters and settings of the machine and its processes."""
