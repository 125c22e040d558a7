"""Copy of batches to the GPU: pinned memory, an asynchronous copy on its own stream, normalisation on the GPU.

uint8 crosses the bus, a quarter of float32's bytes. Where Triton runs, one kernel makes the values and does RandomErasing,
MixUp and CutMix on the way. torch's allocator of pinned memory does not hand out a block again before
the copy that reads it has finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headrace.errors import MissingDependencyError, UsageError
from headrace.gpu.preparation.prepare import prepare
from headrace.gpu.preparation.triton_present import runs_triton
from headrace.system.text.foreign_errors import first_line
from headrace.system.text.install_hints import extra_hint

if TYPE_CHECKING:
    import torch

    from headrace.loading.batches.batch_transforms import FirstSteps
    from headrace.loading.feeding.gpu_decode import GpuPart

__all__ = ["Transfer", "cuda_device"]


class Transfer:
    """Allocates pinned batch memory, and copies finished batches to `device` on its own stream."""

    def __init__(self, device: str, table: npt.NDArray[np.float32] | None, dtype: str) -> None:
        self.device = cuda_device(device)
        import torch

        self._torch = torch
        self._is_cuda = self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if self._is_cuda else None
        self._dtype = None if table is None else getattr(torch, dtype)
        # Only copies, for which the host waits: a cast on the device would be queued on this thread's stream, whose work the
        # copy stream does not wait for.
        host = None if table is None else torch.from_numpy(table)
        self._table = None if host is None else host.to(self.device)
        self._encoded = None if host is None else host.to(self._dtype).to(self.device)
        self.is_fused = runs_triton(self.device)

    def allocate(self, size_bytes: int) -> tuple[npt.NDArray[np.uint8], torch.Tensor]:
        """Return pinned host memory as an array for the native threads, and the tensor that owns it."""
        tensor = self._torch.empty(size_bytes, dtype=self._torch.uint8, pin_memory=self._is_cuda)
        return tensor.numpy(), tensor

    def to_device(
        self,
        pinned: torch.Tensor,
        shape: tuple[int, int, int, int],
        labels: torch.Tensor,
        on_gpu: GpuPart | None = None,
        first: FirstSteps | None = None,
    ) -> tuple[Any, Any]:
        """Start copying a batch to the GPU. Return images [N, 3, H, W] over channels-last memory and labels.

        on_gpu: the images that are on the device already; their slots of `pinned` hold nothing.
        first: batch transforms to do in the pass that makes the values, where that pass is a kernel (`is_fused`).
        """
        torch = self._torch
        with self._on_copy_stream():
            images = self._whole(pinned.view(shape), on_gpu)
            if self.is_fused and (self._table is not None or (first is not None and first.taken)):
                erase, mix = (None, None) if first is None else (first.erase, first.mix)
                images = prepare(images, self._encoded, erase=erase, mix=mix)
            else:
                images = images.permute(0, 3, 1, 2)
                images = images if self._table is None else self._values(images)
            labels = (labels.pin_memory() if self._is_cuda else labels).to(self.device, non_blocking=True)
        if self._is_cuda:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self._stream)
            # The tensors belong to the copy stream; their memory may be reused only after the consumer's stream has finished.
            images.record_stream(current)
            labels.record_stream(current)
        return images, labels

    @contextmanager
    def _on_copy_stream(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        with self._torch.cuda.device(self.device), self._torch.cuda.stream(self._stream):
            yield

    def _whole(self, host: torch.Tensor, on_gpu: GpuPart | None) -> torch.Tensor:
        """Return the batch on the device, uint8 [N, H, W, 3]: copied from the host, but for the images that are there."""
        torch = self._torch
        if on_gpu is None:
            return host.to(self.device, non_blocking=True)
        if self._stream is not None:
            on_gpu.pixels.record_stream(self._stream)  # it belongs to the decoder's stream, which has finished
        if len(on_gpu.slots) == len(host):
            return on_gpu.pixels.contiguous()  # the kernel reads NHWC
        images = torch.empty(host.shape, dtype=torch.uint8, device=self.device)
        at = 0
        for first, end, is_decoded in _runs(on_gpu.slots, len(host)):
            source = on_gpu.pixels[at : at + end - first] if is_decoded else host[first:end]
            images[first:end].copy_(source, non_blocking=True)
            at += (end - first) * is_decoded
        return images

    def _values(self, images: torch.Tensor) -> torch.Tensor:
        """Return the table's values by one multiply-add a channel, without Triton: ToDtype and Normalize are affine."""
        assert self._table is not None
        offset = self._table[:, 0].view(1, 3, 1, 1)
        slope = ((self._table[:, 255] - self._table[:, 0]) / 255).view(1, 3, 1, 1)
        return self._torch.addcmul(offset, images.float(), slope).to(self._dtype)


def _runs(slots: Sequence[int], count: int) -> Iterator[tuple[int, int, bool]]:
    """Yield the slots 0 to `count` as runs [first, end), and whether a run is in `slots`, which ascend."""
    decoded = np.zeros(count, dtype=bool)
    decoded[list(slots)] = True
    edges = [0, *(np.flatnonzero(decoded[1:] != decoded[:-1]) + 1).tolist(), count]
    for first, end in pairwise(edges):
        yield first, end, bool(decoded[first])


def cuda_device(name: str) -> torch.device:
    """Return the torch device of a CUDA device's name, with its index; "cuda" is the calling thread's current device.

    Raises UsageError if there is none, MissingDependencyError without PyTorch.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("device='cuda' needs PyTorch", hint=extra_hint("train")) from error
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device {name!r}: {first_line(error)}", hint="use 'cpu' or 'cuda'") from error
    if device.type != "cuda":
        raise UsageError(f"device {name!r} is not offered; there are 'cpu' and 'cuda'")
    if not torch.cuda.is_available():
        raise UsageError(f"device {name!r}: torch sees no CUDA device", hint="headrace doctor says why; or use device='cpu'")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise UsageError(
            f"device {name!r}: torch sees {count} CUDA {'device' if count == 1 else 'devices'}, numbered from 0",
            hint="'cuda' is the current one; CUDA_VISIBLE_DEVICES chooses what a process sees (a MIG slice is one device)",
        )
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
