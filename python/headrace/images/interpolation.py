"""Names of the filters that images are resized with: Pillow's, under torchvision's names."""

from __future__ import annotations

from headrace.errors import UsageError

__all__ = ["INTERPOLATIONS", "interpolation_name"]

INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")


def interpolation_name(value: object, what: str) -> str:
    """The filter's name; takes a string or torchvision's InterpolationMode. Raises UsageError for any other."""
    name = getattr(value, "value", value)
    if name not in INTERPOLATIONS:
        raise UsageError(f"{what}: no interpolation {name!r}; there are {', '.join(INTERPOLATIONS)}")
    return str(name)
