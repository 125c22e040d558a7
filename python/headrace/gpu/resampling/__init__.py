"""Crop, resize and flip on the device, and what a decoder returns."""
