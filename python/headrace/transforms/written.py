"""Transforms as one would write them: `RandomResizedCrop(224, scale=(0.08, 1.0))`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from headrace.errors import HeadraceError
from headrace.transforms.base import Transform
from headrace.transforms.composition import Compose

__all__ = ["written"]

# Defaults that are written all the same: they decide what a model sees, and are often meant to be another value.
_ALWAYS = {"RandomResizedCrop": ("scale",)}


def written(step: Transform | Callable[[Any], Any]) -> str:
    """Return a transform as Python that makes an equal one; arguments that have their default are left out.

    A function is its name. Example: `written(RandomCrop((32, 32), padding=4))` is "RandomCrop(32, padding=4)".
    """
    if not isinstance(step, Transform):
        return str(getattr(step, "__qualname__", type(step).__name__))
    name = type(step).__name__
    if isinstance(step, Compose):
        return f"{name}([{', '.join(map(written, step.transforms))}])"
    return f"{name}({', '.join(_arguments(step, _ALWAYS.get(name, ())))})"


def _arguments(step: Transform, always: tuple[str, ...]) -> Iterator[str]:
    """Yield the arguments, without their name those that have no default."""
    fields = dataclasses.fields(step)
    required = {one.name: getattr(step, one.name) for one in fields if one.default is dataclasses.MISSING}
    defaults = {one.name: one.default for one in fields if one.name not in required}
    with contextlib.suppress(HeadraceError):  # the default of Grayscale is torchvision's, and is refused
        usual = type(step)(**required)
        defaults = {name: getattr(usual, name) for name in defaults}
    for one in fields:
        value = getattr(step, one.name)
        if one.name in required:
            yield _value(_shortest(step, one.name, value))
        elif value != defaults[one.name] or one.name in always:
            yield f"{one.name}={_value(_shortest(step, one.name, value))}"


def _shortest(step: Transform, name: str, value: object) -> object:
    """Return the shortest value that gives the same transform: 224 for (224, 224), 0.4 for (0.6, 1.4)."""
    if not isinstance(value, tuple) or not all(isinstance(one, int | float) for one in value) or not value:
        return value
    last = value[-1]
    for shorter in (last, round(last - 1, 9), value[:2]):
        try:
            if dataclasses.replace(step, **{name: shorter}) == step:
                return shorter
        except (HeadraceError, TypeError):  # this argument takes no such value
            continue
    return value


def _value(value: object) -> str:
    if isinstance(value, Transform) or callable(value):
        return written(value)
    if isinstance(value, float):
        text = repr(value)
        return text if len(text) <= 8 else f"{value:.6g}"
    if isinstance(value, tuple):
        inner = ", ".join(map(_value, value))
        many = any(isinstance(one, Transform) for one in value)
        return f"[{inner}]" if many else f"({inner}{',' if len(value) == 1 else ''})"
    return repr(value).replace("'", '"') if isinstance(value, str) else repr(value)
