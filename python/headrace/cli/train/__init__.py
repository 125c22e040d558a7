"""The verbs `train`, `tune`, `evaluate`, `predict` and `export`."""
