"""Images in memory that another thread changes: any status, but never memory beyond the buffers."""

from __future__ import annotations

import contextlib
import io
import re
import threading
import time
from collections.abc import Callable

import headrace
import numpy as np
import pytest
from headrace import _native
from sample_images import photograph

SECONDS = 1.0


def jpeg(**options: object) -> bytearray:
    file = io.BytesIO()
    photograph(160, 120, seed=4).save(file, "JPEG", quality=90, **options)
    return bytearray(file.getvalue())


def while_toggling(data: bytearray, positions: range, work: Callable[[], None]) -> None:
    """Run `work` for a while, as another thread changes the height and width at `positions` to other values, and back."""
    stop = threading.Event()
    stored = bytes(data[positions.start : positions.stop])

    def toggle() -> None:
        while not stop.is_set():
            for size in (b"\x02\x00\x04\x00", b"\x00\x01\x00\x01", b"\x00\x00\x00\x00"):
                data[positions.start : positions.stop] = (2 * size)[: len(positions)]
            data[positions.start : positions.stop] = stored

    thread = threading.Thread(target=toggle)
    thread.start()
    try:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            work()
    finally:
        stop.set()
        thread.join()
        data[positions.start : positions.stop] = stored


def frame_size(data: bytearray) -> range:
    """Return the place of height and width in the frame header."""
    for marker in (b"\xff\xc0", b"\xff\xc2"):
        at = data.find(marker)
        if at >= 0:
            return range(at + 5, at + 9)
    raise AssertionError("no frame header")


@pytest.mark.parametrize("progressive", [False, True])
def test_a_size_that_changes_during_the_decode_is_harmless(progressive: bool) -> None:
    data = jpeg(progressive=progressive)
    out = np.empty((4, 64, 64, 3), dtype=np.uint8)
    seen: set[int] = set()
    view = memoryview(data)

    def decode() -> None:
        seen.update(int(status) for status in headrace.decode_into([data, view, data, view], out, threads=2))

    while_toggling(data, frame_size(data), decode)
    assert seen  # any status is right; the process is alive
    assert list(headrace.decode_into([data, view, data, view], out)) == [0, 0, 0, 0]


def test_libjpeg_turbo_alone_and_header_readers_survive_changes() -> None:
    data = jpeg()

    def read() -> None:
        for reader in (_native.reference_decode, _native.image_size):
            try:
                reader(data)
            except ValueError:
                continue

    while_toggling(data, frame_size(data), read)
    assert _native.image_size(data) == (160, 120)


# For each format: the bytes of the header that state the size of the image.
FIELDS = {
    "PNG": lambda data: range(16, 24),
    "BMP": lambda data: range(18, 26),
    "GIF": lambda data: range(6, 10),
    "WEBP": lambda data: range(26, 30),
    "TIFF": lambda data: range((at := re.search(rb"\x00\x01[\x03\x04]\x00\x01\x00\x00\x00", data).end()), at + 4),
    "PPM": lambda data: range(3, 7),
}


@pytest.mark.parametrize("kind", FIELDS)
def test_sizes_of_every_format_that_change_during_the_decode_are_harmless(kind: str) -> None:
    file = io.BytesIO()
    photograph(160, 120, seed=4).convert("P" if kind == "GIF" else "RGB").save(file, kind)
    data = bytearray(file.getvalue())
    view, out, store = memoryview(data), np.empty((4, 64, 64, 3), dtype=np.uint8), _native.Store("hwc")
    items = [(data, (0, 0, 50, 40), (64, 64), "bilinear", None, False, False)] * 4

    def work() -> None:
        headrace.decode_into([data, view, data, view], out, threads=2, exif=True)
        _native.fill_items(items, [(store, out)], threads=2)
        with contextlib.suppress(ValueError):
            _native.image_size(data)

    while_toggling(data, FIELDS[kind](data), work)
    assert list(headrace.decode_into([data, view, data, view], out)) == [0, 0, 0, 0]


def test_bytes_and_views_of_bytes_are_decoded_in_place_and_equal_copies() -> None:
    data = bytes(jpeg())
    padded = b"xx" + data + b"yy"
    read_only_array = np.frombuffer(data, dtype=np.uint8)
    kinds = [data, memoryview(data), memoryview(padded)[2:-2], bytearray(data), read_only_array, memoryview(bytearray(data))]
    out = np.zeros((len(kinds), 32, 32, 3), dtype=np.uint8)
    assert not headrace.decode_into(kinds, out).any()
    assert out[0].any() and all((out[0] == other).all() for other in out[1:])


def test_strided_memory_is_refused_in_words() -> None:
    with pytest.raises(headrace.errors.UsageError, match="contiguous"):
        headrace.decode_into([memoryview(bytes(jpeg()) * 2)[::2]], np.zeros((1, 8, 8, 3), dtype=np.uint8))
