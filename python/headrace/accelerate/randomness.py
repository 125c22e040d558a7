"""Generators of their own for the script's code that we run in its main process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["separate_randomness"]


@contextmanager
def separate_randomness(seed: int) -> Iterator[None]:
    """Runs the script's own small parts (targets, erasing, a file we cannot decode) as a worker process would: with seeded
    generators of their own, leaving those of this process as they were."""
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
