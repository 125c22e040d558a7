"""The compiled part of headrace. Internal: use the package's own names."""

__version__: str
