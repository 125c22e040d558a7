"""Detect a `TorchFunctionMode` or `TorchDispatchMode`: it observes every call of torch, and native code makes none."""

from __future__ import annotations

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

__all__ = ["has_watching_mode"]


def has_watching_mode() -> bool:
    """Return whether a `TorchFunctionMode` or `TorchDispatchMode` is active in this thread. `torch.device` does not count."""
    if torch._C._len_torch_dispatch_stack():
        return True
    return bool(torch._C._len_torch_function_stack()) and any(
        not isinstance(one, DeviceContext) for one in _get_current_function_mode_stack()
    )
