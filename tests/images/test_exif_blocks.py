"""EXIF blocks of every kind, generated: the orientation is Pillow's, and files of which Pillow warns are known as such."""

from __future__ import annotations

import io
import os
import random
import struct
import warnings
import zlib
from typing import NamedTuple

import headrace
import numpy as np
import numpy.typing as npt
import pytest
from headrace._native import quiet_orientation
from PIL import Image, ImageOps
from sample_images import photograph

SIZE = (12, 8)
BLOCKS = 400_000 if "HEADRACE_TEST_LONG" in os.environ else 12_000
ORIENTATION, EXIF, GPS, INTEROPERABILITY = 0x0112, 0x8769, 0x8825, 0xA005
UNITS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
#: Tags with the type and the number of values that cameras write.
USUAL = {
    0x010E: (2, 11),
    0x010F: (2, 6),
    0x011A: (5, 1),
    0x011B: (5, 1),
    0x0128: (3, 1),
    0x0131: (2, 3),
    0x0213: (3, 1),
    0x8298: (2, 9),
    0x9C9B: (1, 12),
}
INNER = {0x829A: (5, 1), 0x9000: (7, 4), 0x9204: (10, 1), 0x927C: (7, 40), 0xA000: (7, 4), 0xA002: (4, 1), 0xA005: (4, 1)}
PLACE = {0: (1, 4), 1: (2, 2), 2: (5, 3), 3: (2, 2), 4: (5, 3), 6: (5, 1), 29: (2, 11)}

Field = tuple[int, int, int, bytes]
"""Tag, type, number of values, and their bytes."""


class Block(NamedTuple):
    """An EXIF block, and whether it is one that cameras write."""

    data: bytes
    usual: bool


def number_bytes(random_: random.Random, order: str, kind: int, number: int) -> bytes:
    """Return a number as a value of a type."""
    match kind:
        case 3 | 8:
            return struct.pack(order + "h", number)
        case 4 | 9 | 13:
            return struct.pack(order + "i", number)
        case 5 | 10:
            factor = random_.choice([1, 1, 2, 7, -1, 0])
            return struct.pack(order + "ii", number * factor, factor)
        case 11:
            return struct.pack(order + "f", number)
        case 12:
            return struct.pack(order + "d", number)
        case 16:
            return struct.pack(order + "q", number)
        case _:
            return bytes([number & 255])


def fields_of(random_: random.Random, order: str, tags: dict[int, tuple[int, int]], *, oddity: float) -> list[Field]:
    """Return fields of some of these tags; a share of them, `oddity`, with any type, count and values."""
    fields = []
    for tag in random_.sample(sorted(tags), random_.randint(0, len(tags))):
        kind, count = tags[tag]
        if random_.random() < oddity:
            kind, count = random_.randint(0, 18), random_.choice([0, 1, 1, 2, 3, 5, 300, 1 << 28, (1 << 32) - 1])
        size = min(UNITS.get(kind, 1) * count, 4096)
        values = bytes(random_.choice(b"\0\0\0\1\2ab\xff") for _ in range(size))
        fields.append((tag, kind, count, values))
    return fields


def orientation_field(random_: random.Random, order: str, *, oddity: float) -> Field:
    kind = random_.choice(sorted(UNITS)) if random_.random() < 3 * oddity else 3
    number = random_.randint(-1, 10) if random_.random() < oddity else random_.randint(1, 8)
    count = random_.choice([0, 2, 3, 70_000]) if random_.random() < oddity else 1
    values = number_bytes(random_, order, kind, number) * min(count, 4)
    return ORIENTATION, kind, count, values


def directory(random_: random.Random, order: str, fields: list[Field], at: int, *, oddity: float) -> bytes:
    """Return a directory that stands at an offset, with its values behind it."""
    entries, values = b"", b""
    end = at + 2 + 12 * len(fields) + 4
    for tag, kind, count, data in fields:
        if UNITS.get(kind, 1) * count <= 4 and len(data) <= 4:
            field = data.ljust(4, b"\0")
        else:
            place = end + len(values)
            if random_.random() < oddity / 4:
                place = random_.choice([0, place + 5000, (1 << 32) - 2, place - 3])
            field = struct.pack(order + "I", place & 0xFFFF_FFFF)
            values += data + bytes(len(data) & 1)
        entries += struct.pack(order + "HHI", tag, kind, count) + field
    count = len(fields) + (random_.choice([-1, 1, 900]) if fields and random_.random() < oddity / 8 else 0)
    behind = struct.pack(order + "I", 0 if random_.random() > oddity else random_.randint(0, 99))
    return struct.pack(order + "H", count) + entries + behind + values


def generated_block(random_: random.Random) -> Block:
    """Return an EXIF block, half of them without anything odd."""
    oddity = random_.choice([0.0, 0.0, 0.05, 0.3])
    order = random_.choice("<>")
    head = b"II*\0" if order == "<" else b"MM\0*"
    if random_.random() < oddity / 4:
        head = random_.choice([b"II\0*", b"MM*\0", b"II+\0", b"MM\0+", b"MM\0\0", b"xx*\0"])
    at = 8 if random_.random() >= oddity / 4 else random_.randint(0, 40)
    fields = fields_of(random_, order, USUAL, oddity=oddity)
    if random_.random() < 0.9:
        fields.append(orientation_field(random_, order, oddity=oddity))
    if fields and random_.random() < oddity:
        fields.append(random_.choice([*fields, orientation_field(random_, order, oddity=oddity)]))
    data = head + struct.pack(order + "I", at)
    inner = b""
    start = 3000  # of the inner directories
    for tag, tags in ((EXIF, INNER), (GPS, PLACE)):
        if random_.random() < 0.5:
            place = start + len(inner)
            found = fields_of(random_, order, tags, oddity=oddity)
            deeper = place + 2000
            found = [(t, k, c, struct.pack(order + "I", deeper) if t == INTEROPERABILITY else d) for t, k, c, d in found]
            part = directory(random_, order, sorted(found), place, oddity=oddity).ljust(2000, b"\0")
            inner += part + directory(random_, order, [(1, 2, 4, b"R98\0")], deeper, oddity=oddity).ljust(100, b"\0")
            fields.append((tag, 4, 1, struct.pack(order + "I", place)))
    if random_.random() >= oddity / 2:
        fields.sort()
    data += directory(random_, order, fields, 8, oddity=oddity)
    if inner:
        data = data.ljust(start, b"\0") + inner
    if random_.random() < oddity:
        data = data[: random_.randint(0, len(data))]
    prefix = b"Exif\0\0" * (2 if random_.random() < oddity / 4 else 1)
    return Block(prefix + data[:60_000], oddity == 0.0)


def encoded(format: str) -> bytes:
    file = io.BytesIO()
    photograph(*SIZE, seed=4).save(file, format, **({"lossless": True} if format == "WEBP" else {}))
    return file.getvalue()


BASES = {name: encoded(name) for name in ("JPEG", "PNG", "WEBP")}


def in_jpeg(random_: random.Random, block: bytes, *, usual: bool) -> bytes:
    parts = [block]
    if not usual and random_.random() < 0.05:
        cut = random_.randint(0, len(block))
        parts = [block[:cut], b"Exif\0\0" + block[cut:]]
    base = BASES["JPEG"]
    if random_.random() < 0.5:
        base = base[:2] + base[20:]  # without JFIF, whose resolution Pillow prefers to that of EXIF
    return base[:2] + b"".join(b"\xff\xe1" + struct.pack(">H", len(part) + 2) + part for part in parts) + base[2:]


def in_png(random_: random.Random, block: bytes, *, usual: bool) -> bytes:
    content = block.removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I", len(content)) + b"eXIf" + content + struct.pack(">I", zlib.crc32(b"eXIf" + content))
    at = random_.choice([33, len(BASES["PNG"]) - 12])
    return BASES["PNG"][:at] + chunk + BASES["PNG"][at:]


def in_webp(random_: random.Random, block: bytes, *, usual: bool) -> bytes:
    flags = 8 if usual else random_.choice([8, 8, 8, 8, 0, 12])
    extended = bytes([flags, 0, 0, 0]) + (SIZE[0] - 1).to_bytes(3, "little") + (SIZE[1] - 1).to_bytes(3, "little")
    block = block if random_.random() < 0.5 else block.removeprefix(b"Exif\0\0")
    chunks = [(b"VP8X", extended), None, (b"EXIF", block)]
    if not usual and random_.random() < 0.1:
        chunks.append((b"EXIF", block[: random_.randint(0, len(block))]))
    body = b"WEBP"
    for chunk in chunks:
        name, content = chunk or (b"", b"")
        stored = name + struct.pack("<I", len(content)) + content + bytes(len(content) & 1)
        body += stored if chunk else BASES["WEBP"][12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body


def generated_tiff(random_: random.Random) -> bytes:
    """Return a TIFF file without compression that has more fields, odd ones among them."""
    oddity = random_.choice([0.0, 0.0, 0.05, 0.3])
    order = random_.choice("<>")
    pixels = photograph(*SIZE, seed=4).tobytes()
    number = lambda kind, value: struct.pack(order + ("H" if kind == 3 else "I"), value)  # noqa: E731
    needed = {256: SIZE[0], 257: SIZE[1], 259: 1, 262: 2, 273: 8, 277: 3, 278: SIZE[1], 279: len(pixels)}
    fields: list[Field] = [(tag, 4 if tag in (273, 279) else 3, 1, b"") for tag in needed]
    fields = [(tag, kind, 1, number(kind, needed[tag])) for tag, kind, _, _ in fields]
    fields.append((258, 3, 3, number(3, 8) * 3))
    fields += fields_of(random_, order, USUAL, oddity=oddity)
    if random_.random() < 0.9:
        fields.append(orientation_field(random_, order, oddity=oddity))
    if random_.random() < oddity:
        fields.append(random_.choice(fields))
    fields.sort()
    at = 8 + len(pixels)
    if random_.random() < 0.3:
        fields.append((EXIF, 4, 1, number(4, at + 8000)))
    head = (b"II*\0" if order == "<" else b"MM\0*") + number(4, at)
    data = head + pixels + directory(random_, order, fields, at, oddity=oddity)
    tags = {tag: usual for tag, usual in INNER.items() if tag != INTEROPERABILITY}
    inner = fields_of(random_, order, tags, oddity=oddity)
    data = data.ljust(at + 8000, b"\0") + directory(random_, order, sorted(inner), at + 8000, oddity=oddity)
    return data[: random_.randint(0, len(data))] if random_.random() < oddity / 2 else data


def turned_by_pillow(data: bytes) -> tuple[npt.NDArray[np.uint8] | None, bool]:
    """Return the upright pixels (None where Pillow raises), and whether Pillow was quiet."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
        except Exception:
            return None, False
    return np.asarray(image), not given


def turned(stored: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    image = stored.swapaxes(0, 1) if orientation > 4 else stored
    left_right = orientation in (2, 3, 6, 7)
    top_bottom = orientation in (3, 4, 7, 8)
    return image[:: -1 if top_bottom else 1, :: -1 if left_right else 1]


def native_pixels(data: bytes, shape: tuple[int, ...]) -> npt.NDArray[np.uint8] | None:
    out = np.empty((1, *shape), dtype=np.uint8)
    return out[0] if headrace.decode_into([data], out, exif=True)[0] == 0 else None


def generated_file(random_: random.Random) -> tuple[str, bytes, bool]:
    """Return the kind of a file, its bytes, and whether its EXIF block is one that cameras write."""
    kind = random_.choice(["JPEG", "JPEG", "JPEG", "PNG", "WEBP", "TIFF"])
    if kind == "TIFF":
        return kind, generated_tiff(random_), False
    block = generated_block(random_)
    wrap = {"JPEG": in_jpeg, "PNG": in_png, "WEBP": in_webp}[kind]
    return kind, wrap(random_, block.data, usual=block.usual), block.usual


@pytest.mark.slow
def test_generated_blocks_turn_images_as_pillow_does() -> None:
    stored = {name: np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for name, data in BASES.items()}
    stored["TIFF"] = np.asarray(photograph(*SIZE, seed=4))
    quiet, warned, turns = 0, 0, 0
    for seed in range(BLOCKS):
        kind, data, usual = generated_file(random.Random(seed))
        theirs, silent = turned_by_pillow(data)
        ours = quiet_orientation(data)
        if ours is not None:
            assert silent, f"seed {seed}, {kind}: Pillow warns or raises"
            assert np.array_equal(turned(stored[kind], ours), theirs), f"seed {seed}, {kind}: {ours}"
            quiet += 1
            turns += ours > 1
        elif usual:
            assert not silent, f"seed {seed}, {kind}: a usual block is not known as quiet"
        warned += not silent
        # Pillow's versions differ in what they make of BigTIFF in EXIF.
        if theirs is not None and b"\0+\0\0" not in data and (mine := native_pixels(data, theirs.shape)) is not None:
            # Also where Pillow warns, the images of `headrace.Loader` stand as Pillow's.
            assert np.array_equal(mine, theirs), f"seed {seed}, {kind}: turned otherwise"
    assert min(quiet, warned, turns) > BLOCKS // 8, (quiet, warned, turns)
