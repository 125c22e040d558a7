"""`cost`, `launch`, `trials`."""
