"""Augmentation on the device, bit for bit as the CPU kernel."""
