"""Runs inside the user's own process: loads hooks when PyTorch is imported, and writes what they see.

Everything here imports the standard library only, and fails open: an error in a hook turns the hooks off, prints one
line, and never reaches the user's script.
"""
