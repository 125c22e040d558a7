"""The arguments of a launch of the CUDA decoder, as decode.cuh declares them."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import NamedTuple, Protocol

__all__ = ["KERNELS", "SOURCE", "BatchArguments", "Group", "Launcher"]

SOURCE = Path(__file__).with_name("decode.cuh")
"""The CUDA C++ source of the kernels."""


class Kernel(NamedTuple):
    """A CUDA kernel: its name in the source, and its number of threads per CUDA block."""

    name: str
    threads: int


KERNELS = (
    Kernel("headrace_entropy", 128),
    Kernel("headrace_idct", 128),
    Kernel("headrace_weights", 128),
    Kernel("headrace_first_pass", 256),
    Kernel("headrace_second_pass", 256),
)
"""The kernels in the order of their launch, which is that of `Group.chunks`."""


class Group(NamedTuple):
    """Images that are decoded together, as `headrace._native.CudaPlan.groups` lists them."""

    first: int
    images: int
    blocks: int
    middle: int
    table: int
    chunks: list[int]


class BatchArguments(ctypes.Structure):
    """The struct `Batch` of decode.cuh: device addresses of the buffers, and the range of images of one group."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            "plan",
            "coefficients",
            "samples",
            "table",
            "middle",
            "out",
            "values",
            "statuses",
            "first",
            "images",
            "value_bytes",
            "single_row_saturates",
        )
    )


class Launcher(Protocol):
    """Runs the kernels: on a GPU, or in tests on the host."""

    def run(self, arguments: BatchArguments, chunks: list[int]) -> None:
        """Run all kernels in order, each with as many CUDA blocks as `chunks` says, on the current stream."""
