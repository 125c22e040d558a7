"""The GPU's side of the feed. torch is imported when a GPU is asked for."""
