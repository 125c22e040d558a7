"""Value tables of deferred tensors: the result of ToTensor, Normalize and similar operations for each uint8 pixel value.

The script's own operations make the table: each is applied to the table in place of the pixels (`pointwise` explains why that
is exact). Equal chains of operations share one table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace._native import Store

__all__ = ["Values", "from_bytes", "unchanged", "unit_floats"]

_SHAPE = (3, 1, 256)
MOST_RESULTS = 1024
"""Drop stored results beyond this number: operations with random parameters never repeat, and would fill the memory."""

STORED = {torch.uint8: np.uint8, torch.float32: np.float32, torch.float16: np.uint16, torch.bfloat16: np.uint16}
"""The dtypes that native code can write, and numpy's type of the same size for each."""


class Values:
    """A value table: the result for each of the 256 pixel values of each of three channels.

    `table`: a tensor [3, 1, 256], which nobody changes. Its type is that of the deferred tensor. Equality is identity.
    """

    __slots__ = ("_results", "_stores", "table")

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table
        self._results: dict[Any, Values | None] = {}
        self._stores: dict[str, Store] = {}

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the results."""
        return self.table.dtype

    def after(self, function: Any, operands: tuple[Any, ...], at: int) -> Values | None:
        """Return the table after `function(*operands)`, where operand number `at` is the tensor.

        None if the function is not pointwise with these operands, or if it fails.
        """
        others = tuple(map(_key, operands[:at] + operands[at + 1 :]))
        if None in others:
            return None
        return self.result((function, at, others), lambda table: function(*operands[:at], table, *operands[at + 1 :]))

    def result(self, key: Any, function: Callable[[torch.Tensor], Any]) -> Values | None:
        """Return the table after a function, called once for each `key`. None if it fails, or is not pointwise."""
        key = key, torch.get_default_dtype()
        if key not in self._results:
            if len(self._results) >= MOST_RESULTS:
                self._results.clear()
            self._results[key] = self._computed(function)
        return self._results[key]

    def _computed(self, function: Callable[[torch.Tensor], Any]) -> Values | None:
        try:
            with torch.no_grad():
                found = function(self.table.clone())
        except Exception:
            return None  # the tensor itself raises it
        if type(found) is not torch.Tensor or found.device.type != "cpu" or found.numel() != 3 * 256:
            return None
        if tuple(found.shape)[-3:] != _SHAPE:
            return None
        return self if found.dtype == self.dtype and _same(found, self.table) else Values(found.reshape(_SHAPE).clone())

    def store(self, layout: str) -> Store | None:
        """Return the native conversion of pixels by this table, for the layout "chw" or "hwc". None if native code has none."""
        if layout not in self._stores:
            if self.dtype not in STORED:
                return None
            if self.dtype is torch.uint8:
                if not bool((self.table[:, 0] == torch.arange(256, dtype=torch.uint8)).all()):
                    return None
                self._stores[layout] = Store(layout)
            else:
                self._stores[layout] = Store(layout, np.ascontiguousarray(as_numpy(self.table).reshape(3, 256)))
        return self._stores[layout]

    def of_pixels(self, pixels: npt.NDArray[np.uint8]) -> torch.Tensor:
        """Look up uint8 pixels [height, width, 3]. Return a tensor [3, height, width]."""
        index = torch.from_numpy(pixels).permute(2, 0, 1).to(torch.int64)
        return torch.stack([self.table[channel, 0][index[channel]] for channel in range(3)])

    def to_bytes(self) -> tuple[torch.dtype, bytes]:
        """Return the dtype and the bytes of the table, for `from_bytes`."""
        return self.dtype, _bits(self.table)


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return _bits(first) == _bits(second)


def _bits(tensor: torch.Tensor) -> bytes:
    bits: bytes = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return bits


def as_numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a numpy array over the memory of a tensor whose dtype is in `STORED`; 16-bit floats as their bits (uint16)."""
    array: npt.NDArray[Any] = (tensor.view(torch.uint16) if tensor.dtype in (torch.float16, torch.bfloat16) else tensor).numpy()
    return array


def _key(operand: Any) -> Any:
    """Return a key that is equal for equal operands. None for an operand that a value table does not allow."""
    kind = type(operand)
    if kind in (int, float, bool):
        return kind, repr(operand)
    if kind is torch.dtype:
        return operand
    if kind is torch.Tensor and operand.device.type == "cpu" and operand.numel() in (1, 3) and not operand.requires_grad:
        shape = tuple(operand.shape)
        if shape and (len(shape) < 3 or shape[-2:] != (1, 1) or shape[-3] != operand.numel()):
            return None
        return operand.dtype, shape, _bits(operand)
    return None


@functools.cache
def unchanged() -> Values:
    """Return the value table of the identity: each uint8 value of a pixel becomes itself."""
    return Values(torch.arange(256, dtype=torch.uint8).expand(3, 1, 256).contiguous())


@functools.cache
def unit_floats(dtype: torch.dtype) -> Values:
    """Return the table of torchvision's `to_tensor`: pixels divided by 255, in a floating-point `dtype`."""
    return Values(unchanged().table.to(dtype=dtype).div(255))


@functools.lru_cache(64)
def from_bytes(dtype: torch.dtype, data: bytes) -> Values:
    """Return the value table of this dtype from the bytes that `Values.to_bytes` returned."""
    return Values(torch.frombuffer(bytearray(data), dtype=dtype).view(_SHAPE))
