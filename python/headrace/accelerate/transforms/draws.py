"""How torchvision's and timm's transforms draw their random numbers, so that native code draws the same ones.

`headrace._native.DrawPlan` draws them natively, from the same generators in the same order (`random_streams`).

Sources: torchvision 0.19 to 0.29, `transforms/transforms.py` and `transforms/v2/`; timm 1.0, `data/transforms.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.accelerate.runtime.unsupported import Unsupported, no_equivalent
from headrace.accelerate.transforms.names import TIMM, V2, display_name, full_name

__all__ = ["FIXED", "TORCH", "Draw", "Erasing", "erasing", "happens", "is_second", "logarithms", "single"]

Draw = tuple[str, tuple[float, ...]]
"""How a transform draws its random numbers: a name and numbers for `headrace._native.DrawPlan`.

The numbers of "torch_crop" are the bounds of the logarithm of the ratio.
"""

FIXED: Draw = ("fixed", ())
"""The transform draws no random number."""

TORCH: Draw = ("torch", ())
"""The transform draws from torch's generator, and both versions of torchvision's transforms draw alike."""

_TORCH_GENERATOR = 0.0
_LESS, _LESS_OR_EQUAL = 0.0, 1.0


@dataclass(frozen=True, slots=True)
class Erasing:
    """Arguments of a RandomErasing that is applied to the finished tensor.

    `decision`: the numbers of the draw whether the tensor is erased. `scale`: range of the share of the area. `logarithms`:
    bounds of the logarithm of the ratio. `value`: the value of each channel.
    """

    decision: tuple[float, ...]
    scale: tuple[float, float]
    logarithms: tuple[float, float]
    value: tuple[float, float, float]

    def __str__(self) -> str:
        return f"RandomErasing(scale={self.scale}, value={self.value})"


def single(value: Any) -> float:
    """Round a number to float32, as torch does before it compares the number with a float32 tensor."""
    return float(np.float32(value))


def is_second(operation: Any) -> bool:
    """Return whether a transform is of `torchvision.transforms.v2`."""
    return full_name(operation).startswith(V2)


def happens(operation: Any, *, is_number: bool = False, inclusive: bool = False) -> Draw:
    """Return the draw that decides, with probability `p`, whether a transform is applied: `torch.rand(1) < p`.

    `is_number`: compare in double precision, as `torchvision.transforms` does with `torch.rand(1).item()`. `inclusive`: compare
    by `<=`.
    """
    second = is_second(operation)
    limit = float(operation.p) if is_number and not second else single(operation.p)
    return "decision", (_TORCH_GENERATOR, _LESS_OR_EQUAL if inclusive and not second else _LESS, limit)


def logarithms(operation: Any) -> tuple[float, float]:
    """Return the logarithms of a range of aspect ratios in float32, as torchvision computes them."""
    torch = sys.modules["torch"]
    known = getattr(operation, "_log_ratio", None)
    found = torch.log(torch.tensor(operation.ratio)) if known is None else known
    if found.dtype is not torch.float32 or tuple(found.shape) != (2,):
        raise no_equivalent(f"range {operation.ratio!r}")
    return float(found[0]), float(found[1])


def erasing(operation: Any) -> Erasing:
    """Return the arguments of torchvision's RandomErasing. Raise `Unsupported` for any other class, and for random values."""
    if full_name(operation).startswith(TIMM):
        raise Unsupported(f"transform {display_name(operation)} of timm draws in a way that is not replayed")
    value = operation.value
    values = [value] if isinstance(value, int | float) else value
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) not in (1, 3):
        raise no_equivalent("transform RandomErasing with random values", "a fixed value")
    low, high = (single(edge) for edge in operation.scale)
    each = tuple(float(one) for one in values) * (3 if len(values) == 1 else 1)
    return Erasing(happens(operation)[1], (low, high), logarithms(operation), (each[0], each[1], each[2]))
