"""Predict the RAM that training on the CPU takes with a larger batch, from the batch sizes measured so far."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from headrace.training.settings.options import Options
from headrace.training.tune.compute_rate import ComputeRate

__all__ = ["predicted_bytes"]

BATCH_BUFFERS = 2  # the loader's batch buffers besides `prefetch`: the batch in use, and the one being filled
IMAGE_VALUE_BYTES = 3  # bytes of one pixel in a uint8 batch


def predicted_bytes(trials: Sequence[ComputeRate], size: int, options: Options, processes: int) -> int | None:
    """Return the predicted RAM in bytes of all ranks together with batches of `size` images; None before a first measurement.

    The steepest growth between two measured sizes (from a process without a batch to the first) is assumed to go on from the
    largest one. The loader's batches of the training come on top.
    """
    points = [(0, trials[0].base_bytes)] if trials and trials[0].base_bytes is not None else []
    points += [(one.batch_size, one.host_bytes) for one in trials if one.host_bytes is not None]
    if len(points) < 2:
        return None
    growth = max((b - a) / (large - small) for (small, a), (large, b) in pairwise(points))
    last_size, last_bytes = points[-1]
    buffers = (options.prefetch + BATCH_BUFFERS) * IMAGE_VALUE_BYTES * options.image_size**2
    return round(last_bytes + max(0.0, growth) * (size - last_size)) + buffers * size * processes
