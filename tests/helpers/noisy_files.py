"""Image files of which Pillow warns when it opens, converts or turns them, by what is wrong with them."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

from PIL import Image
from sample_images import photograph

SIZE = (40, 30)


def _encoded(format: str, **options: object) -> bytes:
    file = io.BytesIO()
    photograph(*SIZE, seed=3).save(file, format, **options)
    return file.getvalue()


def with_segment(jpeg: bytes, marker: int, payload: bytes) -> bytes:
    """Return a JPEG with one more segment, and without JFIF, so that Pillow looks for the resolution in EXIF."""
    return jpeg[:2] + bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload + jpeg[20:]


def exif(*entries: tuple[int, int, int, int], behind: bytes = bytes(4)) -> bytes:
    """Return an EXIF block of entries (tag, type, number of values, value or place)."""
    fields = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(entries)) + fields + behind


def png_chunk(name: bytes, content: bytes) -> bytes:
    """Return a chunk with its checksum."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _with_chunk(name: bytes, content: bytes) -> bytes:
    png = _encoded("PNG")
    return png[:33] + png_chunk(name, content) + png[33:]


def _palette() -> bytes:
    file = io.BytesIO()
    photograph(*SIZE, seed=3).quantize(16).save(file, "PNG", transparency=bytes(range(0, 160, 10)))
    return file.getvalue()


def _tiff(*, values_beyond: bool) -> bytes:
    """Return a TIFF file, one of whose fields is too long or stands beyond the end."""
    data = bytearray(_encoded("TIFF", software="abcdefghij"))
    (at,) = struct.unpack("<I", data[4:8])
    (count,) = struct.unpack("<H", data[at : at + 2])
    for entry in range(at + 2, at + 2 + 12 * count, 12):
        (tag,) = struct.unpack("<H", data[entry : entry + 2])
        if tag == 305 and values_beyond:
            data[entry + 8 : entry + 12] = struct.pack("<I", len(data))
        if tag == 284 and not values_beyond:
            data[entry + 4 : entry + 8] = struct.pack("<I", 2)
    return bytes(data)


def _webp() -> bytes:
    return _encoded("WEBP", exif=exif((0x112, 3, 1, 6), behind=b""))


ON_OPENING: dict[str, Callable[[], bytes]] = {
    "palette.png": _palette,
    "animation.png": lambda: _with_chunk(b"acTL", struct.pack(">II", 0, 0)),
    "cut.jpg": lambda: with_segment(_encoded("JPEG"), 0xE1, exif((0x112, 3, 1, 1), behind=b"")),
    "no_entries.jpg": lambda: with_segment(_encoded("JPEG"), 0xE1, exif()[:12] + b"\xff\0"),
    "beyond.jpg": lambda: with_segment(_encoded("JPEG"), 0xE1, exif((0x10E, 2, 30, 5000))),
    "larger.jpg": lambda: with_segment(_encoded("JPEG"), 0xE1, exif((0x10E, 2, 70_000, 8))),
    "many.jpg": lambda: with_segment(_encoded("JPEG"), 0xE1, exif((0x128, 3, 2, 2))),
    "pictures.jpg": lambda: with_segment(_encoded("JPEG"), 0xE2, b"MPF\0" + exif((0xB001, 4, 1, 2))[6:]),
    "field.tif": lambda: _tiff(values_beyond=False),
    "values.tif": lambda: _tiff(values_beyond=True),
}
"""Names of files, and what makes their bytes: Pillow warns of them when it opens or converts them."""

ON_TURNING: dict[str, Callable[[], bytes]] = {
    "turned.webp": _webp,
    "turned.png": lambda: _encoded("PNG", exif=exif((0x112, 3, 2, 6))),
    "turned.jpg": lambda: with_segment(_encoded("JPEG"), 0xE1, exif((0x112, 3, 2, 6))),
    "rewritten.jpg": lambda: with_segment(_encoded("JPEG"), 0xE1, exif((0x112, 3, 1, 6), (0x213, 3, 2, 1))),
    "inner.jpg": lambda: with_segment(_encoded("JPEG"), 0xE1, exif((0x112, 3, 1, 6), (0x8769, 4, 1, 5000))),
}
"""The same for `ImageOps.exif_transpose`."""


def write_noisy_files(folder: str, names: list[str]) -> list[str]:
    """Write files, and return their paths."""
    from pathlib import Path

    paths = []
    for name in names:
        path = Path(folder) / name
        path.write_bytes((ON_OPENING | ON_TURNING)[name]())
        paths.append(str(path))
    return paths


def large_png(width: int, height: int) -> bytes:
    """Return a white PNG of one bit a pixel."""
    file = io.BytesIO()
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    Image.new("1", (width, height), 1).save(file, "PNG")
    Image.MAX_IMAGE_PIXELS = limit
    return file.getvalue()
