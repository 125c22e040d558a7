"""The demonstration: a photograph folder, an ordinary training script, and the story told with both."""
