"""Imitate a DataLoader worker in the training process: its random numbers, settings, warnings and errors."""
