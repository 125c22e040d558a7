"""Check whether Triton kernels run on a device, by compiling and running one."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from typing import TYPE_CHECKING

from headrace.system.text.foreign_errors import first_line

if TYPE_CHECKING:
    import torch

__all__ = ["LEAST_CAPABILITY", "runs_triton", "tried_triton"]

LEAST_CAPABILITY = (7, 5)
"""The oldest GPUs that the kernels are compiled for in tests (Turing)."""


def runs_triton(device: torch.device) -> bool:
    """Return whether Triton is installed and its kernels run on a device: a CUDA GPU of LEAST_CAPABILITY or newer.

    False on a GPU that is out of memory: the next call tries again. Warns in one line, once a device, if Triton is installed
    but its kernels do not run, for example without a C compiler.
    """
    try:
        return tried_triton(device)
    except RuntimeError as error:
        import torch

        if isinstance(error, torch.cuda.OutOfMemoryError):
            return False
        raise


@functools.cache
def tried_triton(device: torch.device) -> bool:
    """Return what `runs_triton` returns, but raise torch.cuda.OutOfMemoryError on a GPU that is out of memory."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    import torch

    if torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return False
    reason = _failure(device)
    if reason is not None:
        words = f"Triton's kernels do not run on {device} ({reason}): torch does their steps, which is slower"
        warnings.warn(words, RuntimeWarning, stacklevel=3)
    return reason is None


def _failure(device: torch.device) -> str | None:
    """Return why a first kernel fails on a device, or None."""
    import torch

    try:
        from headrace.gpu.preparation.prepare_kernel import prepare_triton

        with torch.cuda.device(device):  # Triton launches on the current device
            images = torch.arange(12, dtype=torch.uint8, device=device).view(1, 2, 2, 3)
            made = prepare_triton(images, None, torch.tensor([True], device=device), None, None)
            return None if torch.equal(made.permute(0, 2, 3, 1), images.flip(2)) else "the first one gave other values"
    except Exception as error:  # Triton's, torch's, and those of the C compiler that Triton calls
        if "CUDA" in str(error) and "out of memory" in str(error):  # Triton has no type of its own for it
            raise torch.cuda.OutOfMemoryError(str(error)) from error
        return f"{type(error).__name__}: {first_line(error)}"
