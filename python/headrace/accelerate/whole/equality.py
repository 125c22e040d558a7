"""Compare batches or items bit for bit."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import torch

from headrace.accelerate.script_code.planned_images import PlannedImage
from headrace.accelerate.whole.items import Slot

__all__ = ["are_equal"]


def are_equal(ours: Any, theirs: Any) -> bool:
    """Return whether two values are equal: types, structure, shapes, strides, and the bits of tensors and arrays."""
    try:
        return _equal(ours, theirs)
    except Exception:  # an object that can be neither pickled nor compared
        return False


def _equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, Slot):
        return bool(ours == theirs)
    if type(ours) is PlannedImage:  # nothing looks at it: the collate function runs as code
        return isinstance(theirs, PlannedImage | sys.modules["PIL.Image"].Image)
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, torch.Tensor):
        return _equal_tensors(ours, theirs)
    if isinstance(ours, np.ndarray) and ours.dtype != object:
        alike = ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.strides == theirs.strides
        return bool(alike and ours.tobytes() == theirs.tobytes())
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(_equal(one, theirs[key]) for key, one in ours.items())
    if isinstance(ours, tuple | list):
        return len(ours) == len(theirs) and all(map(_equal, ours, theirs))
    return pickle.dumps(ours) == pickle.dumps(theirs) or bool(ours == theirs)


def _equal_tensors(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    alike = ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.stride() == theirs.stride()
    if not alike or ours.layout != torch.strided:
        return bool(alike and torch.equal(ours, theirs))
    # NumPy compares: in a forked process torch may wait for ever for threads that only the parent has.
    one, other = (tensor.detach().as_subclass(torch.Tensor).contiguous().reshape(-1) for tensor in (ours, theirs))
    return not one.numel() or bool(np.array_equal(one.view(torch.uint8).numpy(), other.view(torch.uint8).numpy()))
