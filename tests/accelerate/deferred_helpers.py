"""Loaders with deferred items, beside the same loaders without headrace."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate_helpers import own_batches
from headrace.accelerate.lazy.loader import trial_of
from headrace.accelerate.lazy.trial import TrialState
from PIL import Image
from torch.utils.data import Dataset


class OwnImages(Dataset[Any]):
    """A dataset as scripts write them: the paths below a folder, a transform, and a target by the number of the item."""

    def __init__(self, root: Path, transform: Any) -> None:
        self.paths = sorted(str(path) for path in root.rglob("*.jpg"))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def target(self, index: int) -> Any:
        """Return what stands beside the image."""
        return index

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.paths[index]).convert("RGB")), self.target(index)


def seeded(seed: int) -> None:
    """Seed all generators of the script."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def generator_states() -> tuple[Any, ...]:
    """Return the states of all generators of the script."""
    numpy_state: Any = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), numpy_state[1].tolist(), numpy_state[2:]


def described(value: Any) -> Any:
    """Return what can be compared of a batch: types, shapes, strides and values."""
    if isinstance(value, torch.Tensor):
        assert value.device.type == "cpu"
        bits = value.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return type(value), value.dtype, tuple(value.shape), value.stride(), bits
    if isinstance(value, np.ndarray):
        return type(value), value.dtype, value.shape, value.strides, value.tobytes()
    if isinstance(value, Image.Image):
        return value.tobytes(), value.mode, value.size, value.info, type(value)
    if isinstance(value, dict):
        return type(value), {key: described(one) for key, one in value.items()}
    return [type(value), *map(described, value)] if isinstance(value, list | tuple) else value


def always_lazy(loader: Any) -> Any:
    """Make all batches of a loader lazily, without the trial."""
    trial_of(loader).give_up(TrialState.LAZY)
    return loader


def both_ways(loader: Any, epochs: int = 1, seed: int = 5) -> tuple[Any, Any]:
    """Return batches and states of the generators: those of the loader without headrace, and those with it."""
    found = []
    for batches in (own_batches, list):
        if batches is list:
            always_lazy(loader)
        seeded(seed)
        made: Iterable[Any] = [batches(loader) for _ in range(epochs)]
        found.append((described(list(made)), generator_states()))
    return found[0], found[1]


WORKER_ENDED = (RuntimeError, ConnectionError, EOFError)
"""What torch raises for a worker that has died: often the error of a tensor whose memory cannot be had from it any more."""


def wait_for_dead_workers() -> None:
    """Wait until the kernel has ended them: torch's handler of SIGCHLD raises its own error then, here and not in pytest."""
    while multiprocessing.active_children():
        time.sleep(0.01)
