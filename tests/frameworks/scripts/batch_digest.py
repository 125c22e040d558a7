"""A short name for each batch that a script of this folder gets: equal names, equal batches."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import numpy as np
import torch


def feed(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(f"{type(value).__name__} {value.dtype} {tuple(value.shape)} {value.stride()}".encode())
        digest.update(value.detach().as_subclass(torch.Tensor).contiguous().numpy().tobytes())
    elif isinstance(value, np.ndarray):
        digest.update(f"array {value.dtype} {value.shape} {value.strides}".encode() + value.tobytes())
    elif isinstance(value, dict):
        for key, inner in value.items():
            digest.update(f"key {key}".encode())
            feed(digest, inner)
    elif isinstance(value, list | tuple):
        digest.update(f"{type(value).__name__} {len(value)}".encode())
        for inner in value:
            feed(digest, inner)
    else:
        digest.update(f"{type(value).__name__} {value!r}".encode())


def say(name: str, value: Any) -> None:
    digest = hashlib.sha256()
    feed(digest, value)
    sys.stdout.write(f"{name} {digest.hexdigest()[:16]}\n")  # in one piece: several ranks write to one pipe
    sys.stdout.flush()


def say_generators() -> None:
    """Print a name for the state of all three random generators."""
    state: Any = np.random.get_state()
    say("generators", [repr(random.getstate()), state[1], state[2], torch.get_rng_state()])


def seed_all(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)
