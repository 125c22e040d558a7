"""Unpack nested Compose and Sequential objects into one sequence of transforms.

A class is recognised by the full name of its exact type, never by a base class, because a subclass may do anything.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.script.replaced_functions import is_own_function
from headrace.accelerate.transforms.names import V1, V2, full_name

__all__ = ["LIBRARIES", "flatten"]

#: Packages whose classes may be translated; other classes are the script's own.
LIBRARIES = frozenset({"timm", "torch", "torchvision"})


def flatten(operation: object) -> Iterator[Any]:
    """Yield the transforms inside nested Compose and Sequential objects and tuples, in the order in which they are applied.

    Raise `Unsupported` for a transform that was changed from outside (a hook, a replaced method).
    """
    if operation is None:
        return
    if isinstance(operation, tuple):
        for part in operation:
            yield from flatten(part)
        return
    if not callable(operation):
        raise Unsupported(f"its transform is a {type(operation).__name__}, which cannot be called")
    _require_unmodified(operation)
    name = full_name(operation)
    if name in (V1 + "Compose", V2 + "Compose"):
        for part in operation.transforms:  # type: ignore[attr-defined]
            yield from flatten(part)
    elif name == "torch.nn.modules.container.Sequential":
        for part in operation:  # type: ignore[attr-defined]
            yield from flatten(part)
    elif name == "torchvision.transforms._presets.ImageClassification":
        yield from _image_classification(operation)
    elif (inner := _forwards_to(operation)) is not None:
        yield from flatten(getattr(operation, inner))
    else:
        yield operation


def _image_classification(preset: Any) -> Iterator[Any]:
    """Yield the five steps of `weights.transforms()`, as its `forward` does (`torchvision/transforms/_presets.py`)."""
    transforms = sys.modules["torchvision.transforms"]
    yield transforms.Resize(preset.resize_size, interpolation=preset.interpolation, antialias=preset.antialias)
    yield transforms.CenterCrop(preset.crop_size)
    yield transforms.PILToTensor()
    yield transforms.ConvertImageDtype(sys.modules["torch"].float)
    yield transforms.Normalize(mean=preset.mean, std=preset.std)


def _forwards_to(operation: object) -> str | None:
    """Return the attribute to which a wrapper class of the script passes its argument: `return self.transforms(image)`.

    The byte code of the method must equal that of exactly this statement, compiled by the same interpreter.
    """
    kind = type(operation)
    method = kind.__dict__.get("__call__") or kind.__dict__.get("forward")
    code = getattr(method, "__code__", None)
    if code is None or len(code.co_names) != 1 or code.co_freevars or not code.co_names[0].isidentifier():
        return None
    name: str = code.co_names[0]
    scope: dict[str, Any] = {}
    exec(f"def method(self, image):\n    return self.{name}(image)", scope)  # a fixed text with a checked identifier
    template = scope["method"].__code__
    same = (code.co_code, code.co_argcount, code.co_flags & 0xF) == (
        template.co_code,
        template.co_argcount,
        template.co_flags & 0xF,
    )
    return name if same and hasattr(operation, name) else None


def _require_unmodified(operation: object) -> None:
    state = getattr(operation, "__dict__", {})
    kind = type(operation)
    if any(
        key in state or _is_replaced(kind, key) for key in ("forward", "__call__", "transform", "make_params", "get_params")
    ):
        raise Unsupported(f"transform {kind.__name__} has a replaced method", "the library's own method")
    if any(state.get(key) for key in ("_forward_hooks", "_forward_pre_hooks")):
        raise Unsupported(f"transform {type(operation).__name__} has forward hooks")


def _is_replaced(kind: type, name: str) -> bool:
    """Return whether a method of a library's class was assigned by the script: its code then comes from another package."""
    method = getattr(kind, name, None)
    module = str(getattr(method, "__module__", None) or kind.__module__)
    if kind.__module__.partition(".")[0] not in LIBRARIES:
        return False
    return module.partition(".")[0] not in LIBRARIES or not (method is None or is_own_function(method))
