"""The verbs `cost`, `launch` and `trials`."""
