"""Protect the random generators of the main process while code of the script runs there in place of a worker."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from headrace.accelerate.workers.one_at_a_time import one_at_a_time

__all__ = ["separate_randomness"]


@contextmanager
def separate_randomness(seed: int) -> Iterator[None]:
    """Context manager: seed the generators of torch, Python and NumPy, and restore their states afterwards.

    Code of the script that its workers would run (target transforms, erasing, files that are not decoded natively) must not
    change the generators of the main process.
    """
    with one_at_a_time():
        torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
        torch.default_generator.manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)
        random.seed(seed)
        np.random.seed(seed & 0xFFFF_FFFF)
        try:
            yield
        finally:
            torch.set_rng_state(torch_state)
            random.setstate(python_state)
            np.random.set_state(numpy_state)
