"""TIFF files of every layout: the pixels are Pillow's, or the file is refused. Never wrong pixels, never a panic."""

from __future__ import annotations

import io
import itertools
import struct
from collections import Counter
from collections.abc import Iterator

import headrace
import numpy as np
import pytest
from headrace import _native
from headrace.images.decode import UNSUPPORTED, reason
from PIL import Image
from tiff_files import (
    BLACK_IS_ZERO,
    CMYK,
    COLOURS,
    PALETTE,
    RGB,
    WHITE_IS_ZERO,
    Compression,
    TiffLayout,
    sample_values,
    tiff_file,
)

HEIGHT, WIDTH = 21, 37  # neither a multiple of a tile's side nor of a strip's rows
BILEVEL = ("group3", "group4")


def decoded(data: bytes) -> np.ndarray | int:
    """Return the pixels, or the status of the refusal."""
    out = np.zeros((1, HEIGHT, WIDTH, 3), dtype=np.uint8)
    status = int(headrace.decode_into([data], out, boxes=[(0, 0, WIDTH, HEIGHT)])[0])
    return status or out[0]


def pixels_of_pillow(data: bytes) -> np.ndarray | None:
    """Return Pillow's pixels, None if it does not read the file."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def layouts() -> Iterator[TiffLayout]:
    """Every combination that the format allows; byte orders take turns."""
    kinds = itertools.product((WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, CMYK), (1, 2, 4, 8, 16), (1, 2, 3, 4, 5), (0, 1, 2))
    places = ((None, False), (None, True), ((16, 16), False), ((16, 16), True))
    number = 0
    for photometric, bits, samples, extra in kinds:
        beyond = samples - COLOURS[photometric]
        if beyond < 0 or (beyond == 0 and extra) or (bits < 8 and (beyond > 1 or photometric == CMYK)):
            continue
        for (tile, planar), compression in itertools.product(
            places, ("none", "lzw", "deflate", "old deflate", "packbits", *BILEVEL)
        ):
            if (compression in BILEVEL and (bits > 1 or samples > 1)) or (planar and samples == 1):
                continue
            for predictor in (False, True)[: 1 + (bits >= 8)]:  # of "none" and "packbits" undone by some readers only
                number += 1
                yield TiffLayout(
                    photometric, samples, bits, (extra,) * min(beyond, 1) + (0,) * (beyond - 1), tile, 8, planar,
                    predictor, compression, number % 2 == 0,
                )  # fmt: skip


@pytest.mark.slow
def test_pixels_of_every_layout_are_pillows_or_the_file_is_refused() -> None:
    outcomes: Counter[str] = Counter()
    faults = []
    for layout in layouts():
        data = tiff_file(layout, sample_values(layout, HEIGHT, WIDTH))
        ours = decoded(data)
        if isinstance(ours, int):
            outcomes["refused"] += 1
            if ours != UNSUPPORTED:  # the file is sound, so no other reason is true
                faults.append(f"{layout.name}: {reason(ours)}")
            continue
        outcomes["decoded"] += 1
        expected = pixels_of_pillow(data)
        if expected is None:
            # Pillow has no mode for them; in the other byte order it reads them.
            if (layout.photometric, layout.bits, layout.samples) != (WHITE_IS_ZERO, 16, 1):
                faults.append(f"{layout.name}: decoded, though Pillow refuses it")
        elif not np.array_equal(ours, expected):
            faults.append(f"{layout.name}: wrong pixels")
    assert not faults, "\n".join(faults[:20])
    assert outcomes["decoded"] > 250 and outcomes["refused"] > 1000, outcomes


@pytest.mark.parametrize(
    "layout",
    [
        TiffLayout(),
        TiffLayout(tile=(16, 16)),
        TiffLayout(tile=(16, 16), predictor=True, compression="deflate"),
        TiffLayout(planar=True, predictor=True, compression="lzw"),
        TiffLayout(samples=4, extra=(2,), planar=True),
        TiffLayout(samples=4, extra=(2,), tile=(16, 16), predictor=True, compression="deflate"),
        TiffLayout(samples=4, extra=(0,)),
        TiffLayout(samples=4, extra=(1,), compression="lzw", predictor=True),
        TiffLayout(BLACK_IS_ZERO, 1, 1, compression="group4"),
        TiffLayout(PALETTE, 1, 4, compression="packbits"),
        TiffLayout(CMYK, 4, 16, compression="deflate"),
    ],
    ids=lambda layout: layout.name,
)
def test_usual_layouts_are_decoded(layout: TiffLayout) -> None:
    data = tiff_file(layout, sample_values(layout, HEIGHT, WIDTH))
    np.testing.assert_array_equal(decoded(data), pixels_of_pillow(data))


@pytest.mark.parametrize("compression", ["none", "lzw", "deflate", "packbits", "group4"])
@pytest.mark.parametrize("stated", [2**32 - 1, HEIGHT + 1])
@pytest.mark.parametrize("big_endian", [False, True])
def test_a_strip_may_state_more_rows_than_the_image_has(compression: str, stated: int, big_endian: bool) -> None:
    kind = {"photometric": BLACK_IS_ZERO, "samples": 1, "bits": 1} if compression == "group4" else {}
    layout = TiffLayout(
        **kind, rows_per_strip=HEIGHT, stated_rows_per_strip=stated, compression=compression, big_endian=big_endian
    )
    data = tiff_file(layout, sample_values(layout, HEIGHT, WIDTH))
    np.testing.assert_array_equal(decoded(data), pixels_of_pillow(data))


@pytest.mark.parametrize("compression", ["none", "packbits"])
def test_a_predictor_without_lzw_or_deflate_is_refused(compression: Compression) -> None:
    """The format does not define it: libtiff leaves the differences as they are, other readers add them up."""
    layout = TiffLayout(predictor=True, compression=compression)
    assert decoded(tiff_file(layout, sample_values(layout, HEIGHT, WIDTH))) == UNSUPPORTED


@pytest.mark.parametrize("orientation", [1, 2, 6])
def test_a_bigtiff_that_is_not_upright_is_refused(orientation: int) -> None:
    """Pillow turns every TIFF as its tag says; the reader of the tag does not read BigTIFF."""
    photograph = Image.fromarray(sample_values(TiffLayout(), HEIGHT, WIDTH))
    file = io.BytesIO()
    photograph.save(file, "TIFF", big_tiff=True, tiffinfo={274: orientation})
    assert file.getvalue()[2] == 43
    if orientation == 1:
        np.testing.assert_array_equal(decoded(file.getvalue()), pixels_of_pillow(file.getvalue()))
    else:
        assert decoded(file.getvalue()) == UNSUPPORTED


@pytest.mark.parametrize(("kind", "count", "value"), [(3, 1, HEIGHT - 2), (4, 1, 1), (18, 1, HEIGHT)])
def test_a_bigtiff_whose_tags_can_be_read_in_two_ways_is_refused(kind: int, count: int, value: int) -> None:
    """Of a height that stands twice Pillow takes the last one; of a tag of type IFD8 it takes none."""
    file = io.BytesIO()
    Image.fromarray(sample_values(TiffLayout(), HEIGHT, WIDTH)).save(file, "TIFF", big_tiff=True)
    data = bytearray(file.getvalue())
    (begin,) = struct.unpack_from("<Q", data, 8)
    (entries,) = struct.unpack_from("<Q", data, begin)
    places = [begin + 8 + 20 * number for number in range(entries)]
    tags = [struct.unpack_from("<H", data, place)[0] for place in places]
    assert tags == sorted(tags) and not isinstance(decoded(bytes(data)), int)
    struct.pack_into("<HHQQ", data, places[-1], 257, kind, count, value)
    assert isinstance(decoded(bytes(data)), int)


def test_tiles_in_planes_are_refused_in_words_by_every_entry_point() -> None:
    layout = TiffLayout(planar=True, tile=(16, 16))
    data = tiff_file(layout, sample_values(layout, HEIGHT, WIDTH))
    assert pixels_of_pillow(data) is not None or layout.compression == "none"
    assert _native.image_size(data) == (WIDTH, HEIGHT)
    assert decoded(data) == UNSUPPORTED
    with pytest.raises(headrace.errors.DecodeError, match="does not decode"):
        headrace.checkpoint_index(data)
