"""Whether the Triton kernels run on a device."""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["LEAST_CAPABILITY", "runs_triton"]

LEAST_CAPABILITY = (7, 5)
"""The oldest GPUs that the kernels are compiled for in tests (Turing)."""


@functools.cache
def runs_triton(device: torch.device) -> bool:
    """Return whether Triton is installed and compiles for a device: a CUDA GPU of LEAST_CAPABILITY or newer."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    import torch

    return bool(torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY)
