"""Copy a DataLoader of the script without running code of its class."""

from __future__ import annotations

from typing import Any

__all__ = ["loader_copy"]


def loader_copy(loader: Any) -> Any:
    """Return a shallow copy of a DataLoader. Its class's `__copy__` is not called, and nor is its `__del__` for the copy.

    A `__del__` ends the workers of the iterators that the loader holds, or closes its files: those are the script's own.
    """
    kind: Any = type(loader)
    if hasattr(kind, "__del__"):
        kind = type(kind)(kind.__name__, (kind,), {"__del__": lambda copy: None, "__module__": kind.__module__})
    made = object.__new__(kind)
    made.__dict__.update(loader.__dict__)  # DataLoader's __setattr__ forbids some attributes
    return made
