"""The parts of a diagnosis beside the verdict: confidence, notes, tables, GPU settings."""
