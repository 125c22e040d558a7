"""The verbs of the command line: `cost`, `launch` and `trials`."""
