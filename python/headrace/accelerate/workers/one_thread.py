"""Run torch with one thread, as in a worker, so that sums of many values round alike.

Several threads would round the sum of many values otherwise than a worker, which has one. They would also wait for each other
for milliseconds while native threads use the cores. MKL starts them for a thousand values already.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["one_thread"]


@contextmanager
def one_thread() -> Iterator[None]:
    """Context manager: let torch compute with one thread, and restore its number of threads at the end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
