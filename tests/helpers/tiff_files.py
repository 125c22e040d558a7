"""TIFF files of every layout, written byte by byte: what no library writes must be read or refused too."""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image

WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, CMYK, YCBCR = 0, 1, 2, 3, 5, 6
COLOURS = {WHITE_IS_ZERO: 1, BLACK_IS_ZERO: 1, RGB: 3, PALETTE: 1, CMYK: 4, YCBCR: 3}
"""Colour channels of each photometric interpretation."""
Compression = Literal["none", "lzw", "deflate", "old deflate", "packbits", "group3", "group4"]
_NUMBERS = {"none": 1, "group3": 3, "group4": 4, "lzw": 5, "deflate": 8, "old deflate": 32946, "packbits": 32773}
_PILLOW_NAMES = {"lzw": "tiff_lzw", "packbits": "packbits", "group3": "group3", "group4": "group4"}


@dataclass(frozen=True)
class TiffLayout:
    """How the samples of an image are stored."""

    photometric: int = RGB
    samples: int = 3
    bits: int = 8
    extra: tuple[int, ...] = ()  # ExtraSamples: 0 unspecified, 1 associated alpha, 2 unassociated alpha
    tile: tuple[int, int] | None = None  # height, width
    rows_per_strip: int = 8
    planar: bool = False
    predictor: bool = False
    compression: Compression = "none"
    big_endian: bool = False
    stated_rows_per_strip: int | None = None  # None: rows_per_strip

    @property
    def name(self) -> str:
        """The layout in words, for messages of tests."""
        kind = {0: "white is zero", 1: "gray", 2: "RGB", 3: "palette", 5: "CMYK", 6: "YCbCr"}[self.photometric]
        parts = [kind, f"{self.samples} × {self.bits} bits", f"extra {list(self.extra)}"]
        parts += ["tiles" if self.tile else "strips", "planes" if self.planar else "interleaved", self.compression]
        parts += ["predictor"] * self.predictor + ["big-endian"] * self.big_endian
        return ", ".join(parts)


def sample_values(layout: TiffLayout, height: int, width: int) -> np.ndarray:
    """Return samples [height, width, samples] with smooth and noisy parts and both extremes."""
    noise = np.random.default_rng(7).integers(0, 60, (height, width, layout.samples))
    y, x, channel = np.mgrid[:height, :width, : layout.samples]
    values = (x * 5 + y * 3 + channel * 70 + noise) % 256
    values[0, : width // 2], values[-1, width // 2 :] = 0, 255
    if layout.bits > 8:
        return np.asarray(values * 257 ^ noise).astype(np.uint16)
    return np.asarray(values >> (8 - layout.bits)).astype(np.uint8)


def tiff_file(layout: TiffLayout, values: np.ndarray) -> bytes:
    """Return a file with `values` [height, width, samples]."""
    height, width, samples = values.shape
    tile_height, tile_width = layout.tile or (layout.rows_per_strip, width)
    chunks = []
    for plane in np.split(values, samples, axis=2) if layout.planar else [values]:
        for top in range(0, height, tile_height):
            for left in range(0, width, tile_width):
                part = plane[top : top + tile_height, left : left + tile_width]
                if layout.tile:
                    missing = (tile_height - part.shape[0], tile_width - part.shape[1])
                    part = np.pad(part, ((0, missing[0]), (0, missing[1]), (0, 0)), mode="edge")
                chunks.append(_compressed(layout, part))
    tags = [
        (256, "I", [width]),
        (257, "I", [height]),
        (258, "H", [layout.bits] * samples),
        (259, "H", [_NUMBERS[layout.compression]]),
        (262, "H", [layout.photometric]),
        (277, "H", [samples]),
        (284, "H", [2 if layout.planar else 1]),
        (317, "H", [2 if layout.predictor else 1]),
    ]
    if layout.tile:
        tags += [(322, "I", [tile_width]), (323, "I", [tile_height]), (324, "I", []), (325, "I", [len(c) for c in chunks])]
    else:
        rows = layout.stated_rows_per_strip or tile_height
        tags += [(273, "I", []), (278, "I", [rows]), (279, "I", [len(c) for c in chunks])]
    if layout.extra:
        tags.append((338, "H", list(layout.extra)))
    if layout.photometric == PALETTE:
        colours = np.random.default_rng(3).integers(0, 65536, 3 << layout.bits)
        tags.append((320, "H", [int(value) for value in colours]))
    return _assembled(sorted(tags), chunks, ">" if layout.big_endian else "<")


def _compressed(layout: TiffLayout, part: np.ndarray) -> bytes:
    if layout.compression in ("group3", "group4"):
        white = part[..., 0] != 0
        return _strip_of_pillow(Image.fromarray(white), _PILLOW_NAMES[layout.compression])
    if layout.predictor:
        part = np.concatenate([part[:, :1], part[:, 1:] - part[:, :-1]], axis=1)  # modulo the sample's range
    rows = part.reshape(len(part), -1)
    if layout.bits < 8:
        bits = np.unpackbits(rows[..., None], axis=2)[..., 8 - layout.bits :]
        rows = np.packbits(bits.reshape(len(part), -1), axis=1)
    stored = np.ascontiguousarray(rows.astype(rows.dtype.newbyteorder(">" if layout.big_endian else "<")))
    if layout.compression == "none":
        return stored.tobytes()
    if "deflate" in layout.compression:
        return zlib.compress(stored.tobytes())
    as_gray = Image.fromarray(stored.view(np.uint8).reshape(len(part), -1))
    return _strip_of_pillow(as_gray, _PILLOW_NAMES[layout.compression])


def _strip_of_pillow(image: Image.Image, compression: str) -> bytes:
    file = io.BytesIO()
    image.save(file, "TIFF", compression=compression, tiffinfo={278: image.height, 262: BLACK_IS_ZERO})
    with Image.open(file) as written:
        (offset,), (size,) = written.tag_v2[273], written.tag_v2[279]
    return file.getvalue()[offset : offset + size]


def _assembled(tags: list[tuple[int, str, list[int]]], chunks: list[bytes], order: str) -> bytes:
    """Return header, directory, values that do not fit into the directory, and the chunks."""
    places = 8 + 2 + 12 * len(tags) + 4
    offsets_bytes = 4 * len(chunks)
    outside = b""
    first = places + sum(struct.calcsize(f"={len(v)}{k}") for _, k, v in tags if struct.calcsize(f"={len(v)}{k}") > 4)
    first += offsets_bytes if len(chunks) > 1 else 0
    starts = [first + sum(len(chunk) for chunk in chunks[:number]) for number in range(len(chunks))]
    directory = struct.pack(f"{order}H", len(tags))
    for tag, kind, given in tags:
        values = starts if tag in (273, 324) else given
        packed = struct.pack(f"{order}{len(values)}{kind}", *values)
        directory += struct.pack(f"{order}HHI", tag, {"H": 3, "I": 4}[kind], len(values))
        if len(packed) <= 4:
            directory += packed.ljust(4, b"\0")
        else:
            directory += struct.pack(f"{order}I", places + len(outside))
            outside += packed
    magic = b"II*\0" if order == "<" else b"MM\0*"
    return magic + struct.pack(f"{order}I", 8) + directory + bytes(4) + outside + b"".join(chunks)


def directory_entries(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Return tag, type, count and value field of each entry of a little-endian file."""
    at = int.from_bytes(data[4:8], "little")
    count = int.from_bytes(data[at : at + 2], "little")
    return [struct.unpack_from("<HHI4s", data, at + 2 + 12 * number) for number in range(count)]


def with_directory(data: bytes, given: list[tuple[int, int, int, bytes]]) -> bytes:
    """Return the file with another directory, at its end."""
    directory = struct.pack("<H", len(given)) + b"".join(struct.pack("<HHI4s", *entry) for entry in given) + bytes(4)
    return data[:4] + struct.pack("<I", len(data)) + data[8:] + directory
