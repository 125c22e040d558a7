"""Headers of images agree with Pillow; damaged headers raise errors."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from against_pillow import decoded
from headrace import restart_markers
from headrace.errors import DecodeError
from headrace.images.header import format_of, read_header
from PIL import Image
from sample_images import jpeg, photograph, pixels, with_junk


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("quality", [10, 50, 75, 90, 95, 100])
def test_jpeg_headers_tell_how_the_file_was_encoded(subsampling: str, quality: int) -> None:
    header = read_header(jpeg(50, 40, quality=quality, subsampling=subsampling, restart_marker_blocks=3))
    assert (header.format, header.width, header.height) == ("jpeg", 50, 40)
    assert header.jpeg is not None
    assert (header.jpeg.subsampling, header.jpeg.quality, header.jpeg.restart_interval) == (subsampling, quality, 3)
    assert (header.jpeg.process, header.jpeg.bits, header.jpeg.components) == ("baseline", 8, 3)


def test_progressive_and_grey_jpegs_are_recognised() -> None:
    assert read_header(jpeg(50, 40, progressive=True)).jpeg.process == "progressive"
    file = io.BytesIO()
    photograph(9, 8).convert("L").save(file, "JPEG")
    assert read_header(file.getvalue()).jpeg.subsampling == "grey"


@pytest.mark.parametrize("name", ["PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_other_formats_give_format_and_size(name: str) -> None:
    file = io.BytesIO()
    photograph(17, 13).save(file, name)
    header = read_header(file.getvalue())
    assert (header.format, header.width, header.height, header.jpeg) == (name.lower(), 17, 13, None)
    assert format_of(file.getvalue()) == name.lower()


@pytest.mark.parametrize("kind", [b"P1", b"P2", b"P3", b"P4", b"P5", b"P6"])
def test_portable_headers_give_format_and_size_or_an_error(kind: bytes) -> None:
    name = {b"1": "pbm", b"2": "pgm", b"3": "ppm"}[b"%d" % ((kind[1] - b"1"[0]) % 3 + 1)]
    header = read_header(kind + b"\n# of a scanner\n 17\t13 255\n" + bytes(17 * 13 * 3))
    assert (header.format, header.width, header.height) == (name, 17, 13)
    damages = [b" 0 13 255 ", b" -1 3 255 ", b" 17", b" 99999999999 3 255 ", b" 65500 65500 255 "]
    if name != "pbm":
        damages += [b" 17 13 0 ", b" 17 13 65536 "]
    for damaged in damages:
        with pytest.raises(DecodeError, match=name.upper()):
            read_header(kind + damaged)


@pytest.mark.parametrize("cut", [0, 1, 3, 10, 100, 300, 620, 800, -1])
def test_truncated_jpegs_are_refused(cut: int) -> None:
    with pytest.raises(DecodeError):
        read_header(jpeg(64, 48)[:cut])


@pytest.mark.parametrize("progressive", [False, True])
def test_bytes_between_segments_are_skipped_as_by_the_decoders(progressive: bool) -> None:
    plain = jpeg(64, 48, progressive=progressive, restart_marker_blocks=3)
    if progressive:
        junk = plain.replace(b"\xff\xc2", b"\0junk\xff\0\x12\xff\xff\xc2", 1)
    else:
        junk = with_junk(plain)
    assert read_header(junk) == read_header(plain)
    assert np.array_equal(decoded(junk), decoded(plain))
    assert np.array_equal(pixels(junk), pixels(plain))


@pytest.mark.parametrize("code", [0x02, 0x4F, 0xBF, 0xD8, 0xDE, 0xDF, 0xF0, 0xFD])
def test_markers_without_a_place_in_a_header_are_refused_by_readers_and_decoders(code: int) -> None:
    data = jpeg(64, 48)
    first = 4 + int.from_bytes(data[4:6], "big")
    odd = data[:first] + bytes([0xFF, code, 0, 2]) + data[first:]
    with pytest.raises(DecodeError, match=f"marker {code:#04x} at byte {first}"):
        read_header(odd)
    assert isinstance(decoded(odd), int)
    with pytest.raises(DecodeError):
        restart_markers(odd)
    with pytest.raises(OSError), Image.open(io.BytesIO(odd)) as image:
        image.load()


def test_a_marker_must_follow_the_first_one() -> None:
    data = jpeg(64, 48)
    odd = data[:2] + b"\0" + data[2:]
    with pytest.raises(DecodeError):
        read_header(odd)
    assert isinstance(decoded(odd), int)
    with pytest.raises(DecodeError):
        restart_markers(odd)


def test_each_single_byte_change_gives_a_header_or_a_decode_error() -> None:
    data = jpeg(16, 16)
    for at in range(len(data)):
        for value in (0, 0xFF, data[at] ^ 0x55):
            try:
                read_header(data[:at] + bytes([value]) + data[at + 1 :])
            except DecodeError as error:
                assert str(error)


def test_headers_of_photographs_agree_with_pillow(sample_images: list[Path]) -> None:
    for path in sample_images[:100]:
        header = read_header(path.read_bytes())
        with Image.open(path) as image:
            assert (header.width, header.height) == image.size
