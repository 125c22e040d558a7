"""Cores, memory, disks, GPUs."""
