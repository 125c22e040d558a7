"""The verbs `inspect`, `pack` and `verify`."""
