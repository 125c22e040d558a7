"""The choice among the GPU decoders of a machine."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.gpu.decoders import NOT_DECODED, Decoded, GpuDecoder, Place

__all__ = ["DECODERS", "ChosenDecoder", "choose_decoder"]


@dataclass(frozen=True, slots=True)
class ChosenDecoder:
    """The decoder of a device, or None with the reasons why each candidate cannot be used there."""

    decoder: GpuDecoder | None
    reasons: tuple[str, ...]


def choose_decoder(device: str, size: tuple[int, int], filters: frozenset[str]) -> ChosenDecoder:
    """Return the first decoder of `DECODERS` that works on a CUDA device.

    device: "cuda" or "cuda:N". size: height and width of the output. filters: Pillow's names of the resize filters in use.
    """
    reasons: list[str] = []
    for name, make in DECODERS.items():
        found = make(device, size, filters)
        if not isinstance(found, str):
            return ChosenDecoder(found, tuple(reasons))
        reasons.append(f"{name}: {found}")
    return ChosenDecoder(None, tuple(reasons))


def _own(device: str, size: tuple[int, int], filters: frozenset[str]) -> GpuDecoder | str:
    """Return headrace's own CUDA decoder, which lives in `headrace.gpu.decoder` where this build has it."""
    if importlib.util.find_spec("headrace.gpu.decoder") is None:
        return "this build does not have it"
    if filters - {"bilinear"}:
        return f"it resizes by bilinear, not by {', '.join(sorted(filters - {'bilinear'}))}"
    module = importlib.import_module("headrace.gpu.decoder")
    reason = module.available(device)
    return str(reason) if reason is not None else _Own(module.CudaJpegDecoder(device, size))


class _Own:
    """headrace's own decoder behind the seam: it leaves flips from top to bottom to the CPU."""

    name = "headrace's CUDA decoder"
    is_exact = True

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder

    def decode(self, files: Sequence[bytes], places: Sequence[Place]) -> Decoded:
        """Decode the batch, and wait until the GPU has reported damaged images."""
        batch = self._decoder.decode(
            files,
            [place.box for place in places],
            [place.flip_x for place in places],
            sizes=[place.size for place in places],
            windows=[place.window for place in places],
        )
        done = zip(batch.statuses().tolist(), places, strict=True)
        statuses = [NOT_DECODED if refusal or place.flip_y else 0 for refusal, place in done]
        return Decoded(batch.images.permute(0, 2, 3, 1), statuses)


def _nvjpeg(device: str, size: tuple[int, int], filters: frozenset[str]) -> GpuDecoder | str:
    from headrace.gpu.nvjpeg import NvjpegDecoder, available

    reason = available(device, filters)
    return reason if reason is not None else NvjpegDecoder(device, size, filters)


DECODERS: dict[str, Callable[[str, tuple[int, int], frozenset[str]], GpuDecoder | str]] = {
    "headrace's CUDA decoder": _own,
    "nvJPEG through torchvision": _nvjpeg,
}
"""The decoders in order of preference: each returns a decoder, or why it cannot be used."""
