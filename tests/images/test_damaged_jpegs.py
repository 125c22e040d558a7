"""Damaged JPEGs: a crop has the status of the file, or, where a crop of a baseline file meets no damage, 0.

The rule does not depend on a JPEG index, on whether one is being made, on the scale, or on the other crops of the batch.
"""

from __future__ import annotations

import io
import os
from typing import Any

import headrace
import numpy as np
import pytest
from headrace import _native
from headrace.errors import DecodeError
from headrace.images.decode import checkpoint_index
from headrace.images.header import read_header
from headrace.packing.encoding.lossless import check_pixels
from sample_images import photograph

WIDTH, HEIGHT = 230, 150
FILES = int(os.environ.get("HEADRACE_TEST_DAMAGED_FILES", "40"))  # of each kind
CROPS = 12

KINDS: dict[str, dict[str, Any]] = {
    "4:2:0": {"subsampling": "4:2:0"},
    "4:4:4": {"subsampling": "4:4:4"},
    "4:2:2, optimised": {"subsampling": "4:2:2", "optimize": True},
    "gray": {"gray": True},
    "restart markers": {"subsampling": "4:2:0", "restart_marker_blocks": 2},
    "long segments": {"subsampling": "4:4:4", "restart_marker_blocks": 77},
    "progressive": {"progressive": True},
}


def encoded(kind: str) -> bytes:
    options = dict(KINDS[kind])
    image = photograph(WIDTH, HEIGHT, seed=5)
    image = image.convert("L") if options.pop("gray", False) else image
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85, **options)
    return file.getvalue()


def entropy_start(data: bytes) -> int:
    at = data.index(b"\xff\xda")
    return at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Cut, flip, insert, remove or move bytes, most often in the entropy-coded data."""
    first = entropy_start(data) if rng.random() < 0.9 else 2
    at = int(rng.integers(first, len(data) - 2))
    noise = rng.integers(0, 256, int(rng.integers(1, 9)), dtype=np.uint8).tobytes()
    marker = bytes([0xFF, int(rng.choice([0xD0, 0xD3, 0xD7, 0xD8, 0xD9, 0xDA, 0xC4, 0xDB, 0xE1, 0x01, 0xFF, 0x00]))])
    changed = bytearray(data)
    choice = int(rng.integers(8))
    if choice == 0:
        return data[:at]
    if choice == 1:
        return data[:at] + b"\xff\xd9"
    if choice == 2:
        for _ in range(int(rng.integers(1, 5))):
            changed[int(rng.integers(first, len(data)))] ^= 1 << int(rng.integers(8))
        return bytes(changed)
    if choice == 3:
        return data[:at] + noise + data[at:]
    if choice == 4:
        return data[:at] + data[at + len(noise) :]
    if choice == 5:
        return data[:at] + marker + data[at + int(rng.integers(3)) :]
    if choice == 6:
        changed[at : at + len(noise)] = noise
        return bytes(changed)
    return data[:at] + bytes(changed[first : first + 40]) + data[at + 40 :]


def boxes_of(width: int, height: int, rng: np.random.Generator) -> list[tuple[int, int, int, int]]:
    """Return crops of any place and size: single pixels, rows, columns, corners and random ones."""
    boxes = [(0, 0, 1, 1), (width - 1, height - 1, 1, 1), (0, height - 1, width, 1), (width - 1, 0, 1, height)]
    while len(boxes) < CROPS:
        x, y = int(rng.integers(width)), int(rng.integers(height))
        boxes.append((x, y, int(rng.integers(1, width - x + 1)), int(rng.integers(1, height - y + 1))))
    return boxes


def plain(data: bytes, boxes: list[tuple[int, int, int, int]], **options: Any) -> tuple[list[int], np.ndarray]:
    out = np.full((len(boxes), 24, 24, 3), 77, dtype=np.uint8)
    statuses = headrace.decode_into([data] * len(boxes), out, boxes=boxes, **options)
    return [int(status) for status in statuses], out


def items(data: bytes, boxes: list[tuple[int, int, int, int]], store: Any, apart: bool) -> tuple[list[int], np.ndarray]:
    """Make the crops in one batch, from one source, or each from a copy of its own; `store` learns the JPEG indexes."""
    out = np.full((len(boxes), 24, 24, 3), 77, dtype=np.uint8)
    sources = [bytes(bytearray(data)) if apart else data for _ in boxes]
    wanted = [(source, box, (24, 24), "bilinear", None, False, False) for source, box in zip(sources, boxes, strict=True)]
    statuses = _native.fill_items(wanted, [(_native.Store("hwc"), out)], indexes=store)
    return list(statuses), out


def check_one(data: bytes, rng: np.random.Generator, baseline: bool) -> bool:
    """Check every way to decode crops of a file; return whether some crops failed and others did not."""
    try:
        width, height = _native.image_size(data)
    except ValueError:
        width = height = 0
    if not 1 <= width * height <= 4 * WIDTH * HEIGHT:
        return False
    whole = plain(data, [(0, 0, width, height)])[0][0]
    try:
        header = read_header(data)
    except DecodeError:
        header = None
        assert whole != 0, "pack and verify refuse what is decoded"
    if header is not None:
        try:
            check_pixels(data, header)
            assert whole == 0
        except DecodeError:
            assert whole != 0, "verify --decode refuses what is decoded"
    boxes = boxes_of(width, height, rng)
    statuses, pixels = plain(data, boxes)
    assert set(statuses) <= ({0, whole} if baseline else {whole}), (whole, statuses)
    assert all(pixels[number].any() == 0 for number, status in enumerate(statuses) if status), "a failed crop is black"
    store = _native.IndexStore(1 << 20)
    ways = [
        items(data, boxes, None, apart=False),
        items(data, boxes, store, apart=True),
        items(data, boxes, store, apart=False),
    ]
    ways.append(items(data, boxes, store, apart=True))
    for one in reversed(boxes):
        items(data, [one], store, apart=True)
    ways.append(items(data, boxes, store, apart=True))
    if whole == 0:
        ways.append(plain(data, boxes, index=[checkpoint_index(data)] * len(boxes)))
    for number, (found, made) in enumerate(ways):
        assert found == statuses, (number, whole, found, statuses)
        assert np.array_equal(made, pixels), f"way {number}"
    small, _ = plain(data, boxes, dct_scale="auto")
    assert set(small) <= ({0, whole} if baseline else {whole})
    return len(set(statuses)) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_crop_of_a_damaged_jpeg_has_the_status_of_the_file_or_meets_no_damage(kind: str) -> None:
    rng = np.random.default_rng(list(KINDS).index(kind) + 1000 * int(os.environ.get("HEADRACE_TEST_SEED", "0")))
    data = encoded(kind)
    baseline = kind != "progressive"
    check_one(data, rng, baseline)
    differing = 0
    for number in range(FILES):
        bad = damaged(data, rng)
        try:
            differing += check_one(bad, rng, baseline)
        except AssertionError as error:
            raise AssertionError(f"file {number}: {error}: {bad.hex()}") from error
    assert not baseline or differing, "no file was damaged in a part only"


def test_files_of_any_process_have_one_status_whatever_the_crop() -> None:
    data = encoded("4:4:4")
    for marker in (*range(0xC0, 0xD0), 0xF7, 0xDE):
        if marker in (0xC4, 0xC8, 0xCC):
            continue  # these are no frame headers
        changed = data.replace(b"\xff\xc0", bytes([0xFF, marker]), 1)
        rng = np.random.default_rng(marker)
        boxes = [*boxes_of(WIDTH, HEIGHT, rng), (0, 0, WIDTH, HEIGHT)]
        assert len(set(plain(changed, boxes)[0])) == 1, hex(marker)
        if marker not in (0xC0, 0xC1):
            check_one(changed, rng, baseline=False)
