"""WebP files of every layout: Pillow's encoder, and containers that are put together here."""

from __future__ import annotations

import io
import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image
from sample_images import photograph

Coding = Literal["lossy", "lossless"]
Alpha = Literal["none", "noise", "opaque", "transparent"]
Container = Literal["simple", "extended", "animated"]


@dataclass(frozen=True)
class WebPLayout:
    """How the pixels are stored."""

    coding: Coding = "lossy"
    alpha: Alpha = "none"
    container: Container = "simple"
    size: tuple[int, int] = (37, 21)
    quality: int = 75
    method: int = 4
    alpha_quality: int = 100
    frame_flags: int = 0  # animated: 1 disposes of the frame, 2 does not blend
    corner: tuple[int, int] = (0, 0)  # animated: of the frame, in units of two pixels

    @property
    def kind(self) -> str:
        """The row of the table in docs/reference/exactness-files.md."""
        return f"{self.coding}, {'no alpha' if self.alpha == 'none' else 'alpha'}, {self.container}"

    @property
    def name(self) -> str:
        """The layout in words, for messages of tests."""
        return f"{self.kind}: {self}"


def webp_layouts() -> Iterator[WebPLayout]:
    """Every combination; sizes around a macroblock."""
    codings: tuple[Coding, ...] = ("lossy", "lossless")
    alphas: tuple[Alpha, ...] = ("none", "noise", "opaque", "transparent")
    sizes = ((1, 1), (2, 3), (16, 16), (37, 21), (33, 64))
    for coding, alpha, size, quality, method, alpha_quality in itertools.product(
        codings, alphas, sizes, (0, 40, 75, 100), (0, 4, 6), (100, 30)
    ):
        if alpha_quality < 100 and (alpha == "none" or coding == "lossless"):
            continue
        for container in ("simple", "extended"):
            yield WebPLayout(coding, alpha, container, size, quality, method, alpha_quality)
    for coding, alpha, flags, corner in itertools.product(codings, alphas, range(4), ((0, 0), (2, 1))):
        yield WebPLayout(coding, alpha, "animated", frame_flags=flags, corner=corner)


def webp_file(layout: WebPLayout) -> bytes:
    """Return a file; an animated one has two frames."""
    options = {"quality": layout.quality, "method": layout.method, "alpha_quality": layout.alpha_quality, "exact": True}
    options |= {"lossless": True} if layout.coding == "lossless" else {}
    still = _riff_chunks(_encoded(layout, 1, options))
    pixels = [(name, content) for name, content in still if name in (b"ALPH", b"VP8 ", b"VP8L")]
    width, height = layout.size
    match layout.container:
        case "simple":
            return _riff(still)
        case "extended":
            flags = (0x10 if layout.alpha != "none" else 0) | 0x20 | 0x08  # with a colour profile and EXIF
            header = struct.pack("<I", flags) + _three(width - 1) + _three(height - 1)
            return _riff([(b"VP8X", header), (b"ICCP", b"no profile"), *pixels, (b"EXIF", b"odd")])
        case "animated":
            x, y = layout.corner
            header = struct.pack("<I", 0x12) + _three(width + 2 * x) + _three(height + 2 * y)
            place = _three(x) + _three(y) + _three(width - 1) + _three(height - 1) + _three(40)
            second = [(name, content) for name, content in _riff_chunks(_encoded(layout, 2, options)) if name != b"VP8X"]
            frames = [(b"ANMF", place + bytes([layout.frame_flags]) + _joined(parts)) for parts in (pixels, second)]
            return _riff([(b"VP8X", header), (b"ANIM", struct.pack("<IH", 0xFF102030, 0)), *frames])


def _encoded(layout: WebPLayout, seed: int, options: dict[str, object]) -> bytes:
    image = photograph(*layout.size, seed=seed)
    if layout.alpha != "none":
        shape = (layout.size[1], layout.size[0])
        noise = np.random.default_rng(seed).choice(np.array([0, 1, 128, 254, 255], dtype=np.uint8), shape)
        alpha = {"noise": noise, "opaque": np.full_like(noise, 255), "transparent": np.zeros_like(noise)}[layout.alpha]
        image.putalpha(Image.fromarray(alpha))
    file = io.BytesIO()
    image.save(file, "WEBP", **options)
    return file.getvalue()


def _three(value: int) -> bytes:
    return value.to_bytes(3, "little")


def _riff_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    chunks, at = [], 12
    while at < len(data):
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        chunks.append((data[at : at + 4], data[at + 8 : at + 8 + length]))
        at += 8 + length + length % 2
    return chunks


def _joined(chunks: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2) for name, content in chunks)


def _riff(chunks: list[tuple[bytes, bytes]]) -> bytes:
    body = b"WEBP" + _joined(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body
