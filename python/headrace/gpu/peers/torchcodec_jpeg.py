"""Decoding by nvJPEG through torchcodec: any baseline JPEG, whole images, then crop and resize on the GPU.

torchcodec is an optional package (`pip install torchcodec`), whose `decode_jpeg` decodes a batch on a CUDA device. It turns
images by their EXIF orientation, which the CPU kernel does not: files with an orientation are left to the CPU. nvJPEG's pixels
are not those of the CPU kernel (`is_exact` is False). What it does on a GPU awaits one: it is tested with torchcodec 0.17 on
the CPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace._native import encode_jpeg, jpeg_shape
from headrace.gpu.peers.nvjpeg import NvjpegDecoder
from headrace.gpu.resampling.decoders import NOT_DECODED, Decoded, Place
from headrace.gpu.resampling.resample import filter_refusal
from headrace.system.text.foreign_errors import first_line

if TYPE_CHECKING:
    import torch

__all__ = ["TorchcodecDecoder", "available"]

_MODULE = "torchcodec.decoders"
_UPRIGHT = 1  # the EXIF orientation of an image that is stored as it is shown, and of one without EXIF


def available(device: str, filters: frozenset[str]) -> str | None:
    """Return why torchcodec cannot decode on a device for crops that are resized by these filters, or None."""
    if (reason := filter_refusal(filters)) is not None:
        return reason
    if importlib.util.find_spec("torchcodec") is None:
        return "torchcodec is not installed"
    import torch

    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        return "torch sees no CUDA device"
    try:
        module = importlib.import_module(_MODULE)
    except (ImportError, OSError, RuntimeError) as error:
        return f"torchcodec cannot be loaded: {first_line(error)}"
    if not hasattr(module, "decode_jpeg"):
        return "this torchcodec decodes no JPEGs; 0.17 does"
    try:
        probe = encode_jpeg(bytes(192), 8, 8, 50, 8)
        TorchcodecDecoder(device, (4, 4), filters).decode([probe], [Place((0, 0, 8, 8), (4, 4), (0, 0, 4, 4))])
    except (RuntimeError, TypeError, ValueError) as error:
        return first_line(error)
    return None


class TorchcodecDecoder(NvjpegDecoder):
    """torchcodec's batch decoder on one GPU, behind the seam of `headrace.gpu.resampling.decoders`."""

    name = "nvJPEG through torchcodec"

    def decode(self, files: Sequence[bytes], places: Sequence[Place]) -> Decoded:
        """Decode the upright files whole, then cut the crops. Raises RuntimeError for a file that nvJPEG does not decode."""
        import torch

        upright = [at for at, file in enumerate(files) if (shape := jpeg_shape(file)) is not None and shape[3] == _UPRIGHT]
        if len(upright) == len(files):
            return super().decode(files, places)
        pixels = torch.empty((len(files), *self._size, 3), dtype=torch.uint8, device=self._device)
        if upright:
            part = super().decode([files[at] for at in upright], [places[at] for at in upright])
            pixels[torch.tensor(upright, device=self._device)] = part.pixels
        statuses = [NOT_DECODED] * len(files)
        for at in upright:
            statuses[at] = 0
        return Decoded(pixels, statuses)

    def _images(self, files: Sequence[bytes]) -> list[torch.Tensor]:
        import torch

        decode_jpeg = importlib.import_module(_MODULE).decode_jpeg
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's about memory that it must not write, and does not
            data = [torch.frombuffer(file, dtype=torch.uint8) for file in files]
        images: list[torch.Tensor] = decode_jpeg(data, mode="RGB", device=self._device)
        return images
