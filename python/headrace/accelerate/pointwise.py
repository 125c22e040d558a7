"""The value table of a script's own pointwise transforms: what each uint8 value of each channel becomes.

ToTensor, ToDtype, Normalize and the like change every value by itself, so their joint effect on a uint8 RGB image is a table of
3 × 256 numbers. The table is made by running the script's own objects once on a picture of all values: the native side only
looks up, and no order of operations, rounding or library version can make the result differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headrace.accelerate.translate import Refused

__all__ = ["ValueTable", "tabulate"]


@dataclass(frozen=True, slots=True)
class ValueTable:
    """What the pointwise part of a transform yields.

    `values` is [3, 256] in `dtype`: the result for channel c and input value v. `identity` is true where the result is the
    input itself (uint8 unchanged).
    """

    values: torch.Tensor
    dtype: torch.dtype
    identity: bool

    def apply(self, pixels: torch.Tensor) -> torch.Tensor:
        """The tensor that the script's own objects would make of uint8 pixels [N, H, W, 3]: `dtype` [N, 3, H, W]."""
        planes = pixels.permute(0, 3, 1, 2)
        if self.identity:
            return planes.contiguous()
        result = torch.empty(planes.shape, dtype=self.dtype)
        for channel in range(3):
            torch.take(self.values[channel], planes[:, channel].long(), out=result[:, channel])
        return result


def tabulate(operations: Sequence[Callable[[Any], Any]]) -> ValueTable:
    """Runs the script's own pointwise objects on an image that holds every value in every channel.

    Raises `Refused` if the outcome is no [3, H, W] tensor, or if two pixels of one value came out different.
    """
    from PIL import Image  # the script's own images are Pillow's, so it is there

    ramp = np.arange(256, dtype=np.uint8)
    picture = np.stack([np.stack([ramp] * 3, axis=-1), np.stack([ramp[::-1]] * 3, axis=-1)])  # two rows, one reversed
    result: Any = Image.fromarray(picture)
    with torch.no_grad():
        for operation in operations:
            result = operation(result)
    if not isinstance(result, torch.Tensor) or tuple(result.shape) != (3, 2, 256) or result.device.type != "cpu":
        raise Refused("its transform does not yield a tensor of three channels")
    result = result.as_subclass(torch.Tensor)
    if not torch.equal(result[:, 0], result[:, 1].flip(-1)):
        raise Refused("its transform depends on more than each value")
    values = result[:, 0].contiguous().clone()
    identity = values.dtype == torch.uint8 and bool((values == torch.from_numpy(ramp)).all())
    return ValueTable(values, values.dtype, identity)
