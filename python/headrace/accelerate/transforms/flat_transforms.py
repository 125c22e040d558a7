"""Unpack nested Compose and Sequential objects into one sequence of transforms.

A class is recognised by the full name of its exact type, never by a base class, because a subclass may do anything.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.script.replaced_functions import is_own_function
from headrace.accelerate.transforms.names import V1, V2, full_name

__all__ = ["LIBRARIES", "flatten", "require_unmodified"]

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
    require_unmodified(operation)
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
    kind: Any = type(operation)
    is_module = isinstance(operation, torch.nn.Module) and kind.__call__ is torch.nn.Module.__call__
    code = getattr(kind.forward if is_module else kind.__call__, "__code__", None)
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
    return name if same and _is_stored(operation, name) else None


def _is_stored(thing: object, name: str) -> bool:
    """Return whether an attribute is a stored value, so that each time that it is read gives the same."""
    kind: Any = type(thing)
    if kind.__getattribute__ is not object.__getattribute__:
        return False
    found = _of_class(kind, name)
    if found is not None:
        return isinstance(found, types.MemberDescriptorType) or not hasattr(type(found), "__get__")
    if name in getattr(thing, "__dict__", {}):
        return True
    is_module = isinstance(thing, torch.nn.Module) and kind.__getattr__ is torch.nn.Module.__getattr__
    return is_module and name in thing._modules  # type: ignore[attr-defined]


def _of_class(kind: type, name: str) -> Any:
    """Return what a class or its bases define under a name, unbound; None for nothing."""
    return next((vars(parent)[name] for parent in kind.__mro__ if name in vars(parent)), None)


def require_unmodified(operation: object) -> None:
    """Raise `Unsupported` for a transform with a hook, a replaced method, or what hides an attribute of its class."""
    state = getattr(operation, "__dict__", {})
    kind = type(operation)
    of_library = kind.__module__.partition(".")[0] in LIBRARIES
    if of_library and (hidden := next((name for name in state if _of_class(kind, name) is not None), None)):
        raise Unsupported(f"transform {kind.__name__} has a replaced {hidden}", "the library's own")
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
