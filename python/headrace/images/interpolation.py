"""The interpolations that resize images: Pillow's filters, by torchvision's names, and torch's for uint8 tensors."""

from __future__ import annotations

from headrace.errors import UsageError

__all__ = ["INTERPOLATIONS", "interpolation_name"]

INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos", "bilinear-int16", "bicubic-int16")
"""The names of the filters. Those ending in "-int16" round their weights to 16 bits, as `torchvision.transforms.v2` does on
antialiased uint8 tensors; the others are Pillow's."""


def interpolation_name(value: object, what: str) -> str:
    """Return the name of a string or torchvision InterpolationMode. Raise `UsageError`, naming `what`, for other values."""
    name = getattr(value, "value", value)
    if name not in INTERPOLATIONS:
        raise UsageError(f"{what}: no interpolation {name!r}; there are {', '.join(INTERPOLATIONS)}")
    return str(name)
