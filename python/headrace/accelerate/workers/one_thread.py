"""Run torch with one thread, as in a worker, so that sums of many values round alike.

Several threads would round the sum of many values otherwise than a worker, which has one. They would also wait for each other
for milliseconds while native threads use the cores. MKL starts them for a thousand values already.

`torch.set_num_threads` does not serve here. It also tells MKL, for good, to take as many threads as torch, where it would have
taken fewer (`mkl_set_dynamic`), and new threads of the script to do so. The script's own sums on the CPU might round otherwise.
So the number is set as torch does it, for the calling thread alone: in the OpenMP and the MKL that torch uses.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["one_thread", "threads_of_torch"]

LIBRARY = "libtorch_cpu.so"
"""The library of torch that computes on the CPU. Looking a function up in it finds those of its OpenMP and its MKL."""


def one_thread() -> Any:
    """Return a context manager: torch computes with one thread."""
    return threads_of_torch(1)


@contextmanager
def threads_of_torch(count: int) -> Iterator[None]:
    """Context manager: torch computes with `count` threads where this thread calls it, then with as many as before."""
    before, library = torch.get_num_threads(), _library()
    if library is None:
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)
        return
    set_mkl = getattr(library, "MKL_Set_Num_Threads_Local", None)
    library.omp_set_num_threads(count)
    mkl_before = set_mkl(count) if set_mkl is not None else 0  # 0: it follows OpenMP
    try:
        yield
    finally:
        library.omp_set_num_threads(before)
        if set_mkl is not None:
            set_mkl(mkl_before)


@functools.cache
def _library() -> ctypes.PyDLL | None:
    """Return the library of torch in which the number of threads can be set, or None if torch does not follow it."""
    try:
        library = ctypes.PyDLL(LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        before = torch.get_num_threads()
        library.omp_set_num_threads(before + 1)
        follows = torch.get_num_threads() == before + 1
        library.omp_set_num_threads(before)
    except (AttributeError, OSError):  # a torch without OpenMP, or all in one library
        return None
    return library if follows else None
