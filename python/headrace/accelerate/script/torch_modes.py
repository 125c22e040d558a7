"""Modes of torch that see each of its calls: `TorchFunctionMode` and `TorchDispatchMode`. Native code makes no such call."""

from __future__ import annotations

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

__all__ = ["has_watching_mode"]


def has_watching_mode() -> bool:
    """Whether this thread runs under a mode. One for the default device (`with torch.device(…)`) does not count."""
    if torch._C._len_torch_dispatch_stack():
        return True
    return bool(torch._C._len_torch_function_stack()) and any(
        not isinstance(one, DeviceContext) for one in _get_current_function_mode_stack()
    )
