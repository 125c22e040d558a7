"""Child processes and the software that they run."""
