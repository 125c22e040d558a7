"""Decoding by nvImageCodec: the region of each crop of any baseline JPEG, then resize and flip on the GPU.

nvImageCodec is an optional package of NVIDIA (`pip install 'nvidia-nvimgcodec-cu13[nvjpeg]'`). It uses nvJPEG, whose pixels are
not those of the CPU kernel (`is_exact` is False). Resize and flip are exact on what it decoded. What it does on a GPU awaits
one: it is tested with a stand-in that has the interface of nvImageCodec 0.9.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from headrace._native import encode_jpeg
from headrace.gpu.resampling.decoders import NOT_DECODED, Decoded, Place, runtime_errors
from headrace.gpu.resampling.pixels import interleaved_pixels
from headrace.gpu.resampling.resample import filter_refusal, resample
from headrace.system.text.foreign_errors import first_line

__all__ = ["NvImageCodecDecoder", "available"]

_MODULE = "nvidia.nvimgcodec"
_OPTIONS = ":fancy_upsampling=1"  # as libjpeg-turbo upsamples chroma


def available(device: str, filters: frozenset[str]) -> str | None:
    """Return why nvImageCodec cannot decode on a device for crops that are resized by these filters, or None."""
    if (reason := filter_refusal(filters)) is not None:
        return reason
    try:
        if importlib.util.find_spec(_MODULE) is None:
            return "nvImageCodec is not installed"
    except ImportError:  # there is no package `nvidia`
        return "nvImageCodec is not installed"
    try:
        module = importlib.import_module(_MODULE)
    except (ImportError, OSError, RuntimeError) as error:
        return f"nvImageCodec cannot be loaded: {first_line(error)}"
    if not hasattr(module, "CodeStream") or not hasattr(module.CodeStream, "get_sub_code_stream"):
        return "this nvImageCodec is older than 0.7"
    import torch

    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        return "torch sees no CUDA device"
    try:
        probe = encode_jpeg(bytes(192), 8, 8, 50, 8)
        found = NvImageCodecDecoder(device, (4, 4), filters).decode([probe], [Place((0, 0, 8, 8), (4, 4), (0, 0, 4, 4))])
    except (RuntimeError, TypeError, ValueError) as error:
        return first_line(error)
    return None if found.statuses[0] == 0 else "it does not decode a small JPEG on this GPU"


class NvImageCodecDecoder:
    """nvImageCodec's batch decoder on one GPU, behind the seam of `headrace.gpu.resampling.decoders`."""

    name = "nvImageCodec"
    is_exact = False

    def __init__(self, device: str, size: tuple[int, int], filters: frozenset[str]) -> None:
        """size: height and width of the output. filters: at most one name of `FILTERS`; none means bilinear.

        Raises what nvImageCodec raises if it cannot be used: `available` says so before.
        """
        import torch

        self._codec: Any = importlib.import_module(_MODULE)
        self._device, self._size = torch.device(device), size
        self._filter = next(iter(filters), "bilinear")
        index = -1 if self._device.index is None else self._device.index  # -1: the current device
        self._decoder = self._codec.Decoder(device_id=index, options=_OPTIONS)
        self._params = self._codec.DecodeParams(apply_exif_orientation=False)

    def decode(self, files: Sequence[bytes], places: Sequence[Place]) -> Decoded:
        """Decode the box of each file, then resize. Files that nvImageCodec does not decode are left to the CPU."""
        import torch

        stream = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0
        with runtime_errors():
            regions = [self._region(file, place) for file, place in zip(files, places, strict=True)]
            images = self._decoder.decode(regions, params=self._params, cuda_stream=stream)
        if len(images) != len(files):
            raise RuntimeError(f"nvImageCodec decoded {len(images)} of {len(files)} files")
        out = torch.empty((len(files), *self._size, 3), dtype=torch.uint8, device=self._device)
        made = {at: torch.from_dlpack(image) for at, image in enumerate(images) if image is not None}
        good = [at for at, image in made.items() if image.shape[2:] == (3,)]  # not a gray one, if it stays gray
        if good:
            pixels = interleaved_pixels([made[at] for at in good])
            moved = [places[at]._replace(box=(0, 0, *places[at].box[2:])) for at in good]
            out[torch.tensor(good, device=self._device)] = resample(pixels, moved, self._size, self._filter)
        return Decoded(out, [0 if at in good else NOT_DECODED for at in range(len(files))])

    def _region(self, file: bytes, place: Place) -> Any:
        left, top, width, height = place.box
        region = self._codec.Region(top, left, top + height, left + width)
        return self._codec.CodeStream(file).get_sub_code_stream(region=region)
