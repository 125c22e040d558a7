"""With exif=True, images are turned as by Pillow's ImageOps.exif_transpose."""

from __future__ import annotations

import io
import struct
import zlib

import headrace
import numpy as np
import pytest
from PIL import Image, ImageOps
from sample_images import photograph

SIZE = (75, 41)
BOX = (5, 9, 30, 20)  # lies in the image both ways up
XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>'


def exif_block(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x010E] = "a description, stored elsewhere in the block"
    exif[0x0112] = orientation
    return exif.tobytes()


def encoded(format: str, **options: object) -> bytes:
    file = io.BytesIO()
    photograph(*SIZE, seed=4).save(file, format, **options)
    return file.getvalue()


def assert_turned_as_pillow_does(data: bytes, *, turned: bool = True) -> None:
    stored = Image.open(io.BytesIO(data)).convert("RGB")
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert (upright.tobytes() != stored.tobytes()) == turned
    x, y, w, h = BOX
    for exif, image in ((True, upright), (False, stored)):
        out = np.empty((1, h, w, 3), dtype=np.uint8)
        status = headrace.decode_into([data], out, boxes=[BOX], exif=exif)
        assert status[0] == 0
        np.testing.assert_array_equal(out[0], np.asarray(image)[y : y + h, x : x + w])
        whole = np.empty((1, image.height, image.width, 3), dtype=np.uint8)
        assert headrace.decode_into([data], whole, exif=exif)[0] == 0
        np.testing.assert_array_equal(whole[0], np.asarray(image))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("JPEG", {"quality": 90}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("WEBP", {"quality": 80}),
        ("WEBP", {"lossless": True}),
    ],
)
def test_each_orientation_is_applied_as_by_pillow(format: str, options: dict[str, object], orientation: int) -> None:
    assert_turned_as_pillow_does(encoded(format, exif=exif_block(orientation), **options), turned=orientation > 1)


@pytest.mark.parametrize(("format", "name"), [("JPEG", "xmp"), ("WEBP", "xmp")])
def test_xmp_orientation_applies_if_exif_has_none(format: str, name: str) -> None:
    assert_turned_as_pillow_does(encoded(format, **{name: XMP % 6}))
    silent = Image.Exif()
    silent[0x010E] = "no orientation"
    assert_turned_as_pillow_does(encoded(format, exif=silent.tobytes(), **{name: XMP % 8}))
    assert_turned_as_pillow_does(encoded(format, exif=exif_block(1), **{name: XMP % 8}), turned=False)


def tiff_block(byte_order: str, kind: int, value: int, count: int = 1) -> bytes:
    entry = struct.pack(byte_order + "HHI", 0x0112, kind, count)
    field = struct.pack(byte_order + {1: "B3x", 3: "H2x", 4: "I", 6: "b3x", 8: "h2x", 9: "i"}[kind], value)
    head = (b"MM\0*" if byte_order == ">" else b"II*\0") + struct.pack(byte_order + "I", 8)
    return b"Exif\0\0" + head + struct.pack(byte_order + "H", 1) + entry + field + bytes(4)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("kind", [1, 3, 4, 6, 8, 9])
def test_orientation_entries_of_each_type_count_as_with_pillow(byte_order: str, kind: int) -> None:
    data = encoded("JPEG", exif=tiff_block(byte_order, kind, 6))
    assert_turned_as_pillow_does(data, turned=kind != 1)  # Pillow reads a byte as text


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("orientation", [0, 9, 255])
def test_unknown_orientations_are_ignored(orientation: int) -> None:
    assert_turned_as_pillow_does(encoded("JPEG", exif=tiff_block(">", 3, orientation)), turned=False)


@pytest.mark.parametrize("length", range(6, 30, 3))
def test_damaged_exif_blocks_are_ignored(length: int) -> None:
    data = encoded("JPEG", exif=tiff_block("<", 3, 6)[:length])
    ignored, asked = np.empty((2, 1, SIZE[1], SIZE[0], 3), dtype=np.uint8)
    assert headrace.decode_into([data], ignored)[0] == 0
    assert headrace.decode_into([data], asked, exif=True)[0] == 0
    np.testing.assert_array_equal(asked, ignored)


def png_chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def raw_profile(exif: bytes, *, line: int = 72) -> bytes:
    """The text that ImageMagick writes."""
    digits = exif.hex()
    lines = [digits[at : at + line] for at in range(0, len(digits), line)]
    return b"\nexif\n%8d\n" % len(exif) + "\n".join(lines).encode() + b"\n"


def text_chunk(kind: str, key: bytes, value: bytes) -> bytes:
    match kind:
        case "tEXt":
            return png_chunk(b"tEXt", key + b"\0" + value)
        case "zTXt":
            return png_chunk(b"zTXt", key + b"\0\0" + zlib.compress(value))
        case "iTXt":
            return png_chunk(b"iTXt", key + b"\0\0\0en\0\0" + value)
        case _:
            return png_chunk(b"iTXt", key + b"\0\1\0\0\0" + zlib.compress(value))


def with_chunks(png: bytes, *chunks: bytes, behind_pixels: bool = False) -> bytes:
    at = len(png) - 12 if behind_pixels else 33  # before IEND, or after IHDR
    return png[:at] + b"".join(chunks) + png[at:]


TEXTS = ["tEXt", "zTXt", "iTXt", "compressed iTXt"]
RAW_PROFILE = b"Raw profile type exif"


@pytest.mark.parametrize("behind_pixels", [False, True])
@pytest.mark.parametrize("line", [72, 71])  # 71: a byte goes over two lines
@pytest.mark.parametrize("orientation", [1, 6, 7])
@pytest.mark.parametrize("kind", TEXTS)
def test_a_raw_profile_in_a_png_counts_as_with_pillow(kind: str, orientation: int, line: int, behind_pixels: bool) -> None:
    text = raw_profile(exif_block(orientation), line=line)
    data = with_chunks(encoded("PNG"), text_chunk(kind, RAW_PROFILE, text), behind_pixels=behind_pixels)
    assert_turned_as_pillow_does(data, turned=orientation > 1)


def test_of_several_exif_blocks_of_a_png_pillows_counts() -> None:
    six, eight = (text_chunk("zTXt", RAW_PROFILE, raw_profile(exif_block(number))) for number in (6, 8))
    assert_turned_as_pillow_does(with_chunks(encoded("PNG"), six, eight))
    assert_turned_as_pillow_does(
        with_chunks(encoded("PNG"), eight, text_chunk("tEXt", RAW_PROFILE, raw_profile(exif_block(1)))), turned=False
    )
    # eXIf goes first, even where it has no orientation; then XMP counts.
    silent = Image.Exif()
    silent[0x010E] = "no orientation"
    assert_turned_as_pillow_does(with_chunks(encoded("PNG", exif=exif_block(3)), six))
    assert_turned_as_pillow_does(with_chunks(encoded("PNG", exif=silent.tobytes()), six), turned=False)
    assert_turned_as_pillow_does(
        with_chunks(encoded("PNG", exif=silent.tobytes()), text_chunk("iTXt", b"XML:com.adobe.xmp", XMP % 3))
    )


@pytest.mark.parametrize("kind", TEXTS)
def test_xmp_in_a_png_counts_as_with_pillow(kind: str) -> None:
    assert_turned_as_pillow_does(with_chunks(encoded("PNG"), text_chunk(kind, b"XML:com.adobe.xmp", XMP % 6)))


@pytest.mark.parametrize(
    "chunk",
    [
        png_chunk(b"zTXt", RAW_PROFILE + b"\0\0no zlib stream"),
        png_chunk(b"zTXt", RAW_PROFILE + b"\0\0"),
        png_chunk(b"iTXt", RAW_PROFILE + b"\0\1\0\0\0no zlib stream"),
        png_chunk(b"iTXt", RAW_PROFILE + b"\0\1\7\0\0"),
        png_chunk(b"iTXt", RAW_PROFILE),
        png_chunk(b"tEXt", RAW_PROFILE + b"\0\nexif\n"),
        png_chunk(b"tEXt", b"Raw profile type APP1\0" + raw_profile(exif_block(6))),
        png_chunk(b"tEXt", b"Comment\0" + raw_profile(exif_block(6))),
    ],
)
def test_other_texts_of_a_png_do_not_turn_it(chunk: bytes) -> None:
    assert_turned_as_pillow_does(with_chunks(encoded("PNG"), chunk), turned=False)


@pytest.mark.parametrize("text", [b"\nexif\n 4\n4g", b"\nexif\n 4\n4d4", b"\nexif\n 4\n4 d4d"])
def test_raw_profiles_that_pillow_cannot_read_are_ignored(text: bytes) -> None:
    data = with_chunks(encoded("PNG"), text_chunk("tEXt", RAW_PROFILE, text))
    with pytest.raises(ValueError):
        Image.open(io.BytesIO(data)).getexif()
    ignored, asked = np.empty((2, 1, SIZE[1], SIZE[0], 3), dtype=np.uint8)
    assert headrace.decode_into([data], ignored)[0] == 0
    assert headrace.decode_into([data], asked, exif=True)[0] == 0
    np.testing.assert_array_equal(asked, ignored)
