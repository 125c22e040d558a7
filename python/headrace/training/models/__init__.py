"""Models: built by name, initialised with pretrained weights, read back from a run."""
