"""Find code that reads a tensor's memory without `__torch_function__` (`x.data = …`, `to_dlpack`), which deferred tensors lack.

`x.data = tensor` and `to_dlpack(tensor)` then end the process; `Parameter(tensor)`, `swap_tensors` and `tensor.__class__ = …`
raise an error. Torch's `collate` finds a function by the exact type of a tensor. A function that `torch.compile` has made would
be compiled with what is inside of a deferred tensor, for each image anew.
"""

from __future__ import annotations

import dis
import functools
import types
from itertools import pairwise
from typing import Any

import torch
from torch.utils.data._utils import collate as torch_collate

from headrace.accelerate.script.reached_code import is_compiled, reached, reached_codes

__all__ = ["bypasses_subclasses"]

_COLLATE = (torch_collate.collate, torch_collate.default_collate_fn_map)
_FUNCTIONS = {"to_dlpack", "_to_dlpack", "_make_subclass", "Parameter", "swap_tensors"}
_ATTRIBUTES = {"data", "__class__"}


def bypasses_subclasses(loader: Any) -> bool:
    """Return whether the code of a DataLoader's items, or of its collate function, uses tensors in such a call, or compiled."""
    if any(map(_is_kind_of_tensor, torch_collate.default_collate_fn_map)):
        return True
    things = [loader.dataset, loader.collate_fn]
    return any(map(is_compiled, reached(things))) or any(
        _FUNCTIONS & set(code.co_names) or _sets_attribute(code) or _collates_by_type(code, values)
        for code, values in reached_codes(things)
    )


def _is_kind_of_tensor(key: Any) -> bool:
    """Return whether a key of `default_collate_fn_map`, a class or a tuple of them, has a subclass of `Tensor`."""
    kinds = key if isinstance(key, tuple) else (key,)
    return any(torch.Tensor in kind.__mro__[1:] for kind in kinds)


def _collates_by_type(code: types.CodeType, values: dict[str, Any]) -> bool:
    """Return whether a code names torch's `collate`, or its functions by type: `default_collate` alone does not count."""
    if code is torch_collate.default_collate.__code__:
        return False
    return {"_utils", "collate"} <= set(code.co_names) or any(value is one for value in values.values() for one in _COLLATE)


@functools.lru_cache(2048)
def _sets_attribute(code: types.CodeType) -> bool:
    """Return whether a code sets one of the attributes of something other than the object of its method."""
    own = code.co_varnames[: min(1, code.co_argcount)]
    for before, one in pairwise(dis.get_instructions(code)):
        if one.opname == "STORE_ATTR" and one.argval in _ATTRIBUTES:
            loaded = before.argval[-1:] if type(before.argval) is tuple else (before.argval,)
            if not own or loaded != own:
                return True
    return False
