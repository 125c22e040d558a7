"""The verbs of the command line: `train`, `tune`, `evaluate`, `predict` and `export`."""
