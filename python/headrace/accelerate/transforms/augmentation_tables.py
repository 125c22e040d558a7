"""Check that an automatic augmentation has torchvision's own policies and magnitudes, which native code has built in.

A script may change both without replacing a function: `augment.policies`, or the dict of magnitudes of a class.
"""

from __future__ import annotations

import functools
import importlib.util
import types
from collections.abc import Mapping
from typing import Any

from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.transforms.names import display_name

__all__ = ["require_own_tables"]

_POLICIES = ("policies", "_policies")
_MAGNITUDES = "_AUGMENTATION_SPACE"


def require_own_tables(operation: Any) -> None:
    """Raise `Unsupported` if the script has changed the policies or the magnitudes of an automatic augmentation."""
    kind = type(operation)
    policies = next((vars(operation)[name] for name in _POLICIES if name in vars(operation)), None)
    is_known = policies is None or policies == operation._get_policies(operation.policy)
    if not (is_known and _are_installed(kind)):
        raise Unsupported(f"transform {display_name(operation)} has policies or magnitudes of the script", "torchvision's own")


def _are_installed(kind: type) -> bool:
    """Return whether the magnitudes of a class are those that its module defines."""
    own = getattr(kind, _MAGNITUDES, None)
    if own is None:  # a method gives them
        return True
    module = _as_installed(kind.__module__)
    return module is not None and _rows(own) == _rows(getattr(getattr(module, kind.__name__, None), _MAGNITUDES, {}))


def _rows(magnitudes: Mapping[str, Any]) -> list[Any]:
    """Return what can be compared of a dict of magnitudes: names, the codes of the functions, and whether there are signs."""
    return [(name, getattr(function, "__code__", function), *signed) for name, (function, *signed) in magnitudes.items()]


@functools.cache
def _as_installed(name: str) -> types.ModuleType | None:
    """Return a module of torchvision, made anew from its file."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
