"""TIFF files with tags that lie, contradict or lead nowhere, and sides beyond 16 bits: Pillow's pixels, or a true refusal."""

from __future__ import annotations

import io
import struct
from dataclasses import replace

import numpy as np
import pytest
from against_pillow import decoded, outcome
from headrace.images.decode import UNSUPPORTED
from PIL import Image
from tiff_files import (
    BLACK_IS_ZERO,
    RGB,
    WHITE_IS_ZERO,
    Compression,
    TiffLayout,
    directory_entries,
    sample_values,
    tiff_file,
    with_directory,
)

TRUNCATED, CORRUPT_HEADER = 3, 4
COMPRESSION, STRIP_BYTE_COUNTS, X_RESOLUTION, SOFTWARE, EXTRA_SAMPLES = 259, 279, 282, 305, 338


def beyond_the_end(tag: int) -> tuple[int, int, int, bytes]:
    return tag, 2, 20, struct.pack("<I", 1 << 20)


def associated_alpha() -> bytes:
    layout = TiffLayout(samples=4, extra=(1,), rows_per_strip=100)
    return tiff_file(layout, sample_values(layout, 15, 16))


def test_tags_behind_values_that_leave_the_file_do_not_count() -> None:
    """Pillow stops reading there: it does not learn that alpha is associated."""
    data = associated_alpha()
    assert outcome(data) == "equal"
    odd = with_directory(data, sorted([*directory_entries(data), beyond_the_end(X_RESOLUTION)]))
    assert decoded(odd) == TRUNCATED


@pytest.mark.filterwarnings("ignore:Truncated File Read")
def test_values_that_leave_the_file_do_no_harm_behind_the_tags_of_the_pixels() -> None:
    data = tiff_file(TiffLayout(rows_per_strip=100), sample_values(TiffLayout(), 15, 16))
    odd = with_directory(data, sorted([*directory_entries(data), beyond_the_end(SOFTWARE)]))
    assert outcome(odd) == "equal" or decoded(odd) == TRUNCATED  # 317, the predictor, comes behind
    plain = [entry for entry in directory_entries(data) if entry[0] < SOFTWARE]
    assert outcome(with_directory(data, sorted([*plain, beyond_the_end(SOFTWARE)]))) == "equal"


@pytest.mark.parametrize("tag", [256, 257, 259, 262, 277, 278])
def test_a_tag_of_the_pixels_that_stands_twice_must_say_the_same(tag: int) -> None:
    data = tiff_file(TiffLayout(rows_per_strip=100), sample_values(TiffLayout(), 15, 16))
    found = directory_entries(data)
    twice = next(entry for entry in found if entry[0] == tag)
    assert outcome(with_directory(data, sorted([*found, twice]))) == "equal"
    other = (*twice[:3], struct.pack("<I", int.from_bytes(twice[3], "little") + 1))
    for place in (0, len(found)):
        assert decoded(with_directory(data, [*found[:place], other, *found[place:]])) == CORRUPT_HEADER


@pytest.mark.parametrize("compression", ["packbits", "lzw", "deflate", "none"])
def test_a_small_image_with_a_large_number_in_a_tag_is_not_too_large(compression: Compression) -> None:
    layout = TiffLayout(BLACK_IS_ZERO, 1, 8, rows_per_strip=100, compression=compression)
    data = tiff_file(layout, sample_values(layout, 15, 16))
    stated = struct.pack("<I", 2_068_642_666)
    odd = with_directory(
        data, [(*entry[:3], stated) if entry[0] == STRIP_BYTE_COUNTS else entry for entry in directory_entries(data)]
    )
    ours = decoded(odd)
    if isinstance(ours, int):
        assert ours in (UNSUPPORTED, TRUNCATED)
    else:
        assert outcome(odd) == "equal"


@pytest.mark.parametrize("size", [(65_536, 1), (70_001, 3), (1, 65_536), (3, 70_001)])
def test_fax_data_of_a_long_side_are_decoded_or_of_an_unsupported_kind(size: tuple[int, int]) -> None:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).random(size[::-1]) < 0.5).save(file, "TIFF", compression="group4")
    ours = decoded(file.getvalue())
    if isinstance(ours, int):
        assert ours == UNSUPPORTED
    else:
        assert outcome(file.getvalue()) == "equal"


@pytest.mark.parametrize("compression", ["packbits", "lzw", "deflate"])
@pytest.mark.parametrize("layout", [TiffLayout(rows_per_strip=4), TiffLayout(tile=(16, 16)), TiffLayout(planar=True)])
def test_strips_that_hold_less_than_their_samples_are_refused(layout: TiffLayout, compression: Compression) -> None:
    """The library fills up what is missing, or reads on behind the strip."""
    layout = replace(layout, compression=compression)
    data = tiff_file(layout, sample_values(layout, 15, 16))
    assert outcome(data) == "equal"
    counts = 325 if layout.tile else STRIP_BYTE_COUNTS
    place = next(entry for entry in directory_entries(data) if entry[0] == counts)
    at = int.from_bytes(place[3], "little")  # of several counts; one count stands in the entry
    if place[2] == 1:
        at = data.index(struct.pack("<HHI", *place[:3])) + 8
    count = int.from_bytes(data[at : at + 4], "little")
    for stated in (count // 2, count // 4, len(data) + 1):
        odd = data[:at] + struct.pack("<I", stated) + data[at + 4 :]
        assert isinstance(decoded(odd), int), stated


@pytest.mark.parametrize(("kind", "count"), [(0, 1), (99, 1), (3, 0)])
@pytest.mark.parametrize("tag", [258, 259, 277])
def test_a_tag_of_the_pixels_without_values_of_a_known_type_is_refused(tag: int, kind: int, count: int) -> None:
    """Pillow passes over it, and takes the default; so does libtiff, which then fails or not."""
    layout = TiffLayout(BLACK_IS_ZERO, 1, 8, rows_per_strip=100, compression="packbits")
    data = tiff_file(layout, sample_values(layout, 15, 16))
    found = [(tag, kind, count, entry[3]) if entry[0] == tag else entry for entry in directory_entries(data)]
    assert decoded(with_directory(data, found)) == CORRUPT_HEADER


SHORT, LONG, BYTES = 3, 4, 7


@pytest.mark.parametrize(
    ("tag", "kind", "values"),
    [
        (256, BYTES, [16]),
        (257, 1, [15]),
        (259, 1, [1]),
        (262, BYTES, [1]),
        (278, BYTES, [100]),
        (279, 1, [240]),
        (266, SHORT, [7]),  # neither order of bits
        (280, LONG, [1 << 31]),
        (281, SHORT, [1, 2]),
        (323, LONG, [16]),  # a tile's height without its width
        (338, SHORT, [7]),  # no kind of a further sample
        (340, SHORT, [0, 255]),  # of one sample
        (341, SHORT, [0, 255]),
    ],
)
@pytest.mark.parametrize("compression", ["none", "packbits", "lzw", "deflate"])
def test_a_tag_that_pillow_or_libtiff_does_not_take_is_refused(
    tag: int, kind: int, values: list[int], compression: Compression
) -> None:
    layout = TiffLayout(BLACK_IS_ZERO, 1, 8, rows_per_strip=100, compression=compression)
    data = tiff_file(layout, sample_values(layout, 15, 16))
    assert outcome(data) == "equal"
    packed = struct.pack(f"<{len(values)}{'H' if kind == SHORT else 'I'}", *values).ljust(4, b"\0")
    entries = [entry for entry in directory_entries(data) if entry[0] != tag]
    odd = with_directory(data, sorted([*entries, (tag, kind, len(values), packed)]))
    assert decoded(odd) == CORRUPT_HEADER


@pytest.mark.parametrize("photometric", [RGB, BLACK_IS_ZERO])
@pytest.mark.parametrize("compression", ["none", "packbits"])
def test_strips_that_reach_into_the_tags_are_not_changed_on_the_way(photometric: int, compression: Compression) -> None:
    """The library gets other rows of a strip than the file states, in a tag that is part of the pixels here."""
    layout = TiffLayout(photometric, 3 if photometric == RGB else 1, rows_per_strip=100, compression=compression)
    data = tiff_file(layout, sample_values(layout, 15, 16))
    for offset in (0, 2, 7, 32, 100):
        entries = [(*entry[:3], struct.pack("<I", offset)) if entry[0] == 273 else entry for entry in directory_entries(data)]
        odd = data[:10] + b"".join(struct.pack("<HHI4s", *entry) for entry in entries) + data[10 + 12 * len(entries) :]
        assert outcome(odd) != "wrong", offset


def test_a_strip_that_states_fewer_bytes_than_it_has_does_not_hide_that_it_reaches_into_the_tags() -> None:
    """A byte of the tags, which were changed on the way, became a pixel."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 16, (17, 23)).astype(np.uint8), "P")
    image.putpalette([value % 256 for number in range(256) for value in (7 * number, 11 * number, 13 * number)])
    file = io.BytesIO()
    image.save(file, "TIFF", compression="tiff_adobe_deflate")
    data = file.getvalue()
    assert outcome(data) == "equal"
    begin = struct.unpack_from("<I", data, 4)[0]
    assert 8 < begin < 8 + 17 * 23  # the tags stand behind the packed samples, and among as many bytes as there are samples
    raw = struct.pack("<I", 1)
    entries = [(*entry[:3], raw) if entry[0] == COMPRESSION else entry for entry in directory_entries(data)]
    odd = (
        data[: begin + 2] + b"".join(struct.pack("<HHI4s", *entry) for entry in entries) + data[begin + 2 + 12 * len(entries) :]
    )
    assert outcome(odd) == "only Pillow"


def test_a_jpeg_in_a_tiff_needs_tags_of_its_bits() -> None:
    """The JPEG states them too, but Pillow finds the mode by the tags."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (30, 40, 3)).astype(np.uint8)).save(
        file, "TIFF", compression="jpeg"
    )
    data = file.getvalue()
    assert outcome(data) == "equal"
    found = directory_entries(data)
    assert outcome(with_directory(data, [entry for entry in found if entry[0] != 258])) == "neither"
    assert outcome(with_directory(data, sorted([*found, (339, SHORT, 1, struct.pack("<I", 2))]))) == "neither"


@pytest.mark.parametrize(
    "layout", [TiffLayout(BLACK_IS_ZERO, 1, 16), TiffLayout(WHITE_IS_ZERO, 1, 8), TiffLayout(BLACK_IS_ZERO, 1, 8)]
)
def test_one_plane_of_one_sample(layout: TiffLayout) -> None:
    """Pillow takes the first letter of its mode for a plane, which is another mode for all but 8 bits."""
    layout = replace(layout, planar=True, rows_per_strip=100)
    data = tiff_file(layout, sample_values(layout, 15, 16))
    assert outcome(data) in ("equal", "neither", "only Pillow")
