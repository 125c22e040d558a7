"""A GPU that is the CPU: batches "on the device" without CUDA, and a decoder whose pixels are the CPU kernel's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from headrace.gpu.peers import choice
from headrace.gpu.resampling.decoders import Decoded, Place
from headrace.images.decode import decode_into
from headrace.loading.batches import cuda_transfer


@dataclass
class FakeDecoder:
    """Decodes as the CPU kernel does. `trouble` may raise, or return the positions of files that are left to the CPU."""

    size: tuple[int, int]
    is_exact: bool = True
    trouble: Callable[[Sequence[bytes]], set[int]] = field(default=lambda files: set())
    name: str = "a fake decoder"
    calls: list[int] = field(default_factory=list)

    def decode(self, files: Sequence[bytes], places: Sequence[Place]) -> Decoded:
        import torch

        self.calls.append(len(files))
        left = self.trouble(files)
        out = np.empty((len(files), *self.size, 3), np.uint8)
        columns = list(zip(*places, strict=True))
        status = decode_into(files, out, boxes=columns[0], flips=columns[3], sizes=columns[1], windows=columns[2])
        out[list(left)] = 0
        return Decoded(torch.from_numpy(out), [1 if at in left else int(found) for at, found in enumerate(status)])


def install(patch: pytest.MonkeyPatch, **settings: Any) -> list[FakeDecoder]:
    """Make device="cuda" the CPU and FakeDecoder(**settings) its only decoder. Return the decoders that are made."""
    import torch

    made: list[FakeDecoder] = []

    def make(device: str, size: tuple[int, int], filters: frozenset[str]) -> FakeDecoder:
        made.append(FakeDecoder(size, **settings))
        return made[-1]

    patch.setattr(cuda_transfer, "cuda_device", lambda name: torch.device("cpu"))
    patch.setattr(choice, "DECODERS", {"fake": make})
    patch.setattr("headrace.loading.feeding.gpu_decode.on_gpu", lambda device: False)
    return made


def fill_memory(*arguments: Any) -> Any:
    """Fail as a function whose result does not fit into the GPU's memory does."""
    import torch

    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB")


def fill_memory_for_selections(patch: pytest.MonkeyPatch) -> None:
    """Let the GPU run out of memory whenever its thread selects some images of a batch, which copies them."""
    import torch

    real = torch.Tensor.__getitem__

    def selected(images: Any, index: Any) -> Any:
        if isinstance(index, list) and threading.current_thread().name.startswith("headrace-gpu-decode"):
            fill_memory()
        return real(images, index)

    patch.setattr(torch.Tensor, "__getitem__", selected)
