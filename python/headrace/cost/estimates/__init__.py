"""Time and money of an epoch and a run, with intervals."""
