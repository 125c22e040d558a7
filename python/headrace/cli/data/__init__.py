"""The verbs of the command line: `inspect`, `pack` and `verify`."""
