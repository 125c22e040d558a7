"""Torch with one thread in the training process, as a worker has it.

Sums of many values are rounded as in a worker. And no other thread is woken: where native threads have the cores, torch's
would wait for each other for milliseconds. MKL wakes them for a thousand values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["one_thread"]


@contextmanager
def one_thread() -> Iterator[None]:
    """While the block runs, torch computes with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
