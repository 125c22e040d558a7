"""Find code that reads a tensor's memory without `__torch_function__` (`x.data = …`, `to_dlpack`), which deferred tensors lack.

`x.data = tensor` and `to_dlpack(tensor)` then end the process; `Parameter(tensor)`, `swap_tensors` and `tensor.__class__ = …`
raise an error.
"""

from __future__ import annotations

import dis
import functools
import types
from itertools import pairwise
from typing import Any

from headrace.accelerate.script.reached_code import reached_codes

__all__ = ["bypasses_subclasses"]

_FUNCTIONS = {"to_dlpack", "_to_dlpack", "_make_subclass", "Parameter", "swap_tensors"}
_ATTRIBUTES = {"data", "__class__"}


def bypasses_subclasses(loader: Any) -> bool:
    """Return whether the code of a DataLoader's items, or of its collate function, uses tensors in such a call."""
    things = [loader.dataset, loader.collate_fn]
    return any(_FUNCTIONS & set(code.co_names) or _sets_attribute(code) for code, _ in reached_codes(things))


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
