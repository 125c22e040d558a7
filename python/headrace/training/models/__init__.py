"""The models that can be trained: built by name, started from pretrained weights, read back from a run."""
