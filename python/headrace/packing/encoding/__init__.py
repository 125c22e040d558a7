"""The encoding of each image."""
