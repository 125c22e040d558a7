"""Replace a script's pointwise transforms (ToTensor, Normalize, …) by a table: the result for each uint8 value and channel.

ToTensor, ToDtype, Normalize and similar transforms compute each output value from one input value. A table of 3 × 256 numbers
therefore describes their joint effect on a uint8 RGB image. The script's own objects make the table from an image of all
values. The native engine only looks values up, so no order of operations, rounding or library version can change the result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headrace.accelerate.runtime.unsupported import Unsupported

__all__ = ["ValueTable", "tabulate"]


@dataclass(frozen=True, slots=True)
class ValueTable:
    """The result of the pointwise transforms for each channel and pixel value.

    `values`: tensor [3, 256] of `dtype`; element [c, v] is the result for channel c and pixel value v. `identity`: each result
    equals its pixel value (uint8).
    """

    values: torch.Tensor
    dtype: torch.dtype
    identity: bool


def tabulate(operations: Sequence[Callable[[Any], Any]]) -> ValueTable:
    """Return the value table of a sequence of pointwise transforms. Copies of them run on an image of all values.

    Raise `Unsupported` if the result is not a tensor [3, H, W] on the CPU, or if equal values give different results.
    """
    from PIL import Image  # the script's own images are Pillow's, so it is there

    ramp = np.arange(256, dtype=np.uint8)
    picture = np.stack([np.stack([ramp] * 3, axis=-1), np.stack([ramp[::-1]] * 3, axis=-1)])  # two rows, one reversed
    result: Any = Image.fromarray(picture)
    with torch.no_grad():
        for operation in copy.deepcopy(tuple(operations)):
            # A module's own method: forward hooks for all modules, of the script or of a profiler, are not called.
            apply: Callable[[Any], Any] = operation.forward if isinstance(operation, torch.nn.Module) else operation
            result = apply(result)
    if not isinstance(result, torch.Tensor) or tuple(result.shape) != (3, 2, 256) or result.device.type != "cpu":
        raise Unsupported("its transform does not yield a tensor of three channels")
    result = result.as_subclass(torch.Tensor)
    if not torch.equal(result[:, 0], result[:, 1].flip(-1)):
        raise Unsupported("its transform gives different results for equal values")
    values = result[:, 0].contiguous().clone()
    identity = values.dtype == torch.uint8 and bool((values == torch.from_numpy(ramp)).all())
    return ValueTable(values, values.dtype, identity)
