"""Find modules of the script that compare the class of a tensor by `type()`, which shows that a deferred tensor is a subclass.

`isinstance` and `__class__` do not.
"""

from __future__ import annotations

import re

from headrace.accelerate.script.text import module_with

__all__ = ["compares_tensor_types"]

_COMPARISON = re.compile(r"type\([^\n]{1,80}\)\s*(is|is\s+not|==|!=|in|not\s+in)\s[^\n]{0,60}\b(Tensor|tensor|Image)\b")


def compares_tensor_types() -> str | None:
    """Return the name of a module of the script that compares `type(…)` with a tensor class, or None."""
    return module_with(_COMPARISON)
