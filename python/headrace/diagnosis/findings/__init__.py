"""What stands beside the verdict: confidence, notes, tables, GPU settings."""
