"""The seam of GPU decoding: what a decoder is given, and what it returns.

A decoder never decides that a file is bad: it reports the images that it did not decode, and the CPU kernel, which decodes
them instead, has the last word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.system.text.foreign_errors import first_line

if TYPE_CHECKING:
    import torch

__all__ = ["NOT_DECODED", "Decoded", "GpuDecoder", "Place", "runtime_errors"]

NOT_DECODED = 1
"""The status of an image that the decoder leaves to the CPU; 0 is success."""

Box = tuple[int, int, int, int]  # x, y, width, height in pixels


class Place(NamedTuple):
    """Where an output image comes from: `box` of the image, resized to `size`, of which `window` is kept, then flipped."""

    box: Box
    size: tuple[int, int]  # width, height in pixels
    window: Box  # of the resized box; as large as the output
    flip_x: bool = False  # left to right
    flip_y: bool = False  # top to bottom


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded images on the GPU: uint8 [N, H, W, 3], and a status for each; rows of another status than 0 hold nothing."""

    pixels: torch.Tensor
    statuses: Sequence[int]


class GpuDecoder(Protocol):
    """A decoder of JPEGs on one GPU. `decode` is called from one thread at a time, on its current stream."""

    @property
    def name(self) -> str:
        """What `explain` calls the decoder."""

    @property
    def is_exact(self) -> bool:
        """Whether its pixels are bit for bit those of the CPU kernel."""

    def decode(self, files: Sequence[bytes], places: Sequence[Place]) -> Decoded:
        """Decode, crop, resize and flip each file. Raises torch's errors: the CPU then decodes the batch."""


@contextmanager
def runtime_errors() -> Iterator[None]:
    """Turn the ValueError or TypeError of a decoding library, which is about a file, into the RuntimeError of `GpuDecoder`.

    Example: `with runtime_errors(): images = decode_jpeg(files)`.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        raise RuntimeError(first_line(error)) from error
