"""Files that Pillow refuses though other readers get all their pixels: an error of Pillow's is what a script meets."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import numpy as np
from PIL import Image
from sample_images import photograph
from tiff_files import (
    BLACK_IS_ZERO,
    WHITE_IS_ZERO,
    Compression,
    TiffLayout,
    directory_entries,
    sample_values,
    tiff_file,
    with_directory,
)

__all__ = ["REFUSED"]

WIDTH, HEIGHT = 40, 30
STRIP_BYTE_COUNTS = 279


def saved(image: Image.Image, format: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def bitmap_with_an_empty_row() -> bytes:
    runs = bytes([WIDTH, 7, 0, 0] * (HEIGHT - 2) + [0, 0, WIDTH, 5, 0, 0, 0, 1])
    palette = bytes(range(256)) * 4
    header = struct.pack("<IiiHHIIiiII", 40, WIDTH, HEIGHT, 1, 8, 1, len(runs), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 1078 + len(runs), 0, 0, 1078) + header + palette + runs


def bitmap_with_a_mask_of_seven_bits() -> bytes:
    values = bytes(np.arange(WIDTH * HEIGHT * 4, dtype=np.uint32).astype(np.uint8))
    header = struct.pack(
        "<IiiHHIIiiII4I", 56, WIDTH, HEIGHT, 1, 32, 3, len(values), 0, 0, 0, 0, 0xFF0000, 0xFF00, 0xFF, 0x7F000000
    )
    return b"BM" + struct.pack("<IHHI", 70 + len(values), 0, 0, 70) + header + values


def plain_bitmap_with_a_mark_behind_it() -> bytes:
    return b"P1\n%d %d\n" % (WIDTH, HEIGHT) + b"0 1 " * (WIDTH * HEIGHT // 2 - 1) + b"0 1!"


def gif_whose_last_block_leaves_the_file() -> bytes:
    data = bytearray(saved(photograph(WIDTH, HEIGHT, seed=3).quantize(32), "GIF"))
    at = data.index(b",\0\0\0\0") + 11
    while data[at + 1 + data[at]]:
        at += 1 + data[at]
    data[at] += 4
    return bytes(data)


def webp_whose_container_holds_nothing() -> bytes:
    data = saved(photograph(WIDTH, HEIGHT), "WEBP", lossless=True)
    return data[:4] + struct.pack("<I", 8) + data[8:]


def animation_with_a_frame_outside() -> bytes:
    frames = [photograph(WIDTH, HEIGHT, seed=seed) for seed in range(2)]
    data = bytearray(saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True))
    second = data.index(b"ANMF", data.index(b"ANMF") + 4)
    data[second + 8] = 200
    return bytes(data)


def strip_with_too_few_bytes(compression: Compression, missing: int) -> bytes:
    layout = TiffLayout(BLACK_IS_ZERO, 1, 8, rows_per_strip=100, compression=compression)
    data = tiff_file(layout, sample_values(layout, HEIGHT, WIDTH))
    return with_directory(
        data,
        [
            (*entry[:3], struct.pack("<I", int.from_bytes(entry[3], "little") - missing))
            if entry[0] == STRIP_BYTE_COUNTS
            else entry
            for entry in directory_entries(data)
        ],
    )


def gray_in_which_0_is_white() -> bytes:
    layout = TiffLayout(WHITE_IS_ZERO, 1, 16, rows_per_strip=100, big_endian=True)
    return tiff_file(layout, sample_values(layout, HEIGHT, WIDTH))


REFUSED: dict[str, Callable[[], bytes]] = {
    "bitmap with an empty row": bitmap_with_an_empty_row,
    "bitmap with a mask of seven bits": bitmap_with_a_mask_of_seven_bits,
    "plain bitmap with a mark behind it": plain_bitmap_with_a_mark_behind_it,
    "GIF whose last block leaves the file": gif_whose_last_block_leaves_the_file,
    "WebP whose container holds nothing": webp_whose_container_holds_nothing,
    "animation with a frame outside": animation_with_a_frame_outside,
    "PackBits strip that leaves the file": lambda: strip_with_too_few_bytes("packbits", -300_000),
    "LZW strip that leaves the file": lambda: strip_with_too_few_bytes("lzw", -300_000),
    "Deflate strip that leaves the file": lambda: strip_with_too_few_bytes("deflate", -300_000),
    "gray of 16 bits in which 0 is white": gray_in_which_0_is_white,
}
