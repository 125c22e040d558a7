"""A GPU that is the CPU: batches "on the device" without CUDA, and a decoder whose pixels are the CPU kernel's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from headrace.images.decode import decode_into
from headrace.loading.batches import cuda_transfer
from headrace.loading.feeding import gpu_decode


@dataclass
class Batch:
    """A decoded batch in the face of `CudaBatch`."""

    images: Any  # [N, 3, H, W]
    found: np.ndarray

    def statuses(self) -> np.ndarray:
        return self.found


@dataclass
class FakeDecoder:
    """Decodes as the CPU kernel does, in the face of `CudaJpegDecoder`. `trouble` may raise, or return the positions of files
    that are left to the CPU."""

    size: tuple[int, int]
    trouble: Callable[[Sequence[bytes]], set[int]] = field(default=lambda files: set())
    calls: list[int] = field(default_factory=list)

    def decode(self, files: Sequence[bytes], boxes: Any, flips: Any, *, sizes: Any, windows: Any) -> Batch:
        import torch

        self.calls.append(len(files))
        left = sorted(self.trouble(files))
        out = np.empty((len(files), *self.size, 3), np.uint8)
        found = decode_into(files, out, boxes=boxes, flips=flips, sizes=sizes, windows=windows)
        out[left], found[left] = 0, 1
        return Batch(torch.from_numpy(out).permute(0, 3, 1, 2), found)


def install(patch: pytest.MonkeyPatch, **settings: Any) -> list[FakeDecoder]:
    """Make device="cuda" the CPU and FakeDecoder(**settings) its decoder. Return the decoders that are made."""
    import torch

    made: list[FakeDecoder] = []

    def make(device: str, size: tuple[int, int]) -> FakeDecoder:
        made.append(FakeDecoder(size, **settings))
        return made[-1]

    patch.setattr(cuda_transfer, "cuda_device", lambda name: torch.device("cpu"))
    patch.setattr(gpu_decode, "available", lambda device: None)
    patch.setattr(gpu_decode, "CudaJpegDecoder", make)
    patch.setattr(gpu_decode, "on_gpu", lambda device: False)
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
