"""`train`, `tune`, `evaluate`, `predict`, `export`."""
