"""Copy of batches to the GPU: pinned memory, an asynchronous copy on its own stream, normalisation on the GPU.

uint8 crosses the bus, a quarter of float32's bytes. torch's allocator of pinned memory does not hand out a block again before
the copy that reads it has finished.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headrace.errors import MissingDependencyError, UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["Transfer"]


class Transfer:
    """Allocates pinned batch memory, and copies finished batches to `device` on its own stream."""

    def __init__(self, device: str, table: npt.NDArray[np.float32] | None, dtype: str) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingDependencyError("device='cuda' needs PyTorch", hint="pip install 'headrace[train]'") from error
        self._torch = torch
        try:
            self.device = torch.device(device)
        except RuntimeError as error:
            raise UsageError(f"device {device!r}: {str(error).splitlines()[0]}", hint="use 'cpu' or 'cuda'") from error
        if self.device.type != "cuda":
            raise UsageError(f"device {device!r} is not offered; there are 'cpu' and 'cuda'")
        if not torch.cuda.is_available():
            raise UsageError(
                f"device {device!r}: torch sees no CUDA device", hint="headrace doctor says why; or use device='cpu'"
            )
        self._stream = torch.cuda.Stream(self.device)
        self._dtype = None if table is None else getattr(torch, dtype)
        self._table = None if table is None else torch.from_numpy(table).to(self.device)

    def allocate(self, size_bytes: int) -> tuple[npt.NDArray[np.uint8], torch.Tensor]:
        """Return pinned host memory as an array for the native threads, and the tensor that owns it."""
        tensor = self._torch.empty(size_bytes, dtype=self._torch.uint8, pin_memory=True)
        return tensor.numpy(), tensor

    def to_device(self, pinned: torch.Tensor, shape: tuple[int, int, int, int], labels: torch.Tensor) -> tuple[Any, Any]:
        """Start the copy. Return images [N, 3, H, W] over channels-last memory and labels, for the current stream."""
        torch = self._torch
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            images = pinned.view(shape).to(self.device, non_blocking=True).permute(0, 3, 1, 2)
            if self._table is not None:
                images = self._values(images)
            labels = labels.pin_memory().to(self.device, non_blocking=True)
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self._stream)
        # The tensors belong to the copy stream; their memory may be reused only after the consumer's stream has finished.
        images.record_stream(current)
        labels.record_stream(current)
        return images, labels

    def _values(self, images: torch.Tensor) -> torch.Tensor:
        """Return the table's values by one multiply-add a channel: ToDtype and Normalize are affine."""
        assert self._table is not None
        offset = self._table[:, 0].view(1, 3, 1, 1)
        slope = ((self._table[:, 255] - self._table[:, 0]) / 255).view(1, 3, 1, 1)
        return self._torch.addcmul(offset, images.float(), slope).to(self._dtype)
