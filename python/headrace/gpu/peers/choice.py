"""The choice among the GPU decoders of a machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.gpu.resampling.decoders import NOT_DECODED, Decoded, GpuDecoder, Place

__all__ = ["DECODERS", "Candidates"]


class Candidates:
    """The decoders of a CUDA device in the order of `DECODERS`; each is made when it is asked for.

    device: "cuda" or "cuda:N". size: height and width of the output. filters: Pillow's names of the resize filters in use.
    exact_only: leave out decoders whose pixels are not the CPU kernel's. `reasons` says why decoders were left out.
    """

    def __init__(self, device: str, size: tuple[int, int], filters: frozenset[str], *, exact_only: bool) -> None:
        self._arguments, self._exact_only = (device, size, filters), exact_only
        self._waiting = list(DECODERS.items())
        self.reasons: list[str] = []

    def next(self) -> GpuDecoder | None:
        """Return the next decoder that works, or None when there is no further one."""
        while self._waiting:
            name, make = self._waiting.pop(0)
            found = make(*self._arguments)
            if isinstance(found, str):
                self.reasons.append(f"{name}: {found}")
            elif self._exact_only and not found.is_exact:
                self.reasons.append(f"{name}: slightly different pixels; decode='gpu' or 'split' allows it")
            else:
                return found
        return None


def _own(device: str, size: tuple[int, int], filters: frozenset[str]) -> GpuDecoder | str:
    from headrace.gpu.decoder import CudaJpegDecoder, available

    others = filters - {"bilinear"}
    if others:
        return f"it resizes by bilinear, not by {', '.join(sorted(others))}"
    reason = available(device)
    return reason if reason is not None else _Own(CudaJpegDecoder(device, size))


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
    from headrace.gpu.peers.nvjpeg import NvjpegDecoder, available

    reason = available(device, filters)
    return reason if reason is not None else NvjpegDecoder(device, size, filters)


def _nvimagecodec(device: str, size: tuple[int, int], filters: frozenset[str]) -> GpuDecoder | str:
    from headrace.gpu.peers.nvimagecodec import NvImageCodecDecoder, available

    reason = available(device, filters)
    return reason if reason is not None else NvImageCodecDecoder(device, size, filters)


def _torchcodec(device: str, size: tuple[int, int], filters: frozenset[str]) -> GpuDecoder | str:
    from headrace.gpu.peers.torchcodec_jpeg import TorchcodecDecoder, available

    reason = available(device, filters)
    return reason if reason is not None else TorchcodecDecoder(device, size, filters)


DECODERS: dict[str, Callable[[str, tuple[int, int], frozenset[str]], GpuDecoder | str]] = {
    "headrace's CUDA decoder": _own,
    "nvImageCodec": _nvimagecodec,
    "nvJPEG through torchcodec": _torchcodec,
    "nvJPEG through torchvision": _nvjpeg,
}
"""The decoders in order of preference: each returns a decoder, or why it cannot be used."""
