"""Tensors of lazy images that native threads compute in the training process."""
