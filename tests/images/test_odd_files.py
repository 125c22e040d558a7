"""Odd and damaged files of other formats than JPEG and TIFF: Pillow's pixels, or a refusal."""

from __future__ import annotations

import io
import struct
import zlib
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from against_pillow import decoded, outcome
from headrace.images.decode import UNSUPPORTED, reason
from PIL import Image
from sample_images import photograph

WIDTH, HEIGHT = 8, 4
NOISE = np.random.default_rng(0).integers(0, 256, 4096).astype(np.uint8).tobytes()
TRUNCATED, CORRUPT_HEADER, CORRUPT, TOO_LARGE = 3, 4, 6, 9


def assert_equals_pillow(data: bytes) -> None:
    ours = decoded(data)
    assert not isinstance(ours, int), reason(ours)
    with Image.open(io.BytesIO(data)) as image:
        np.testing.assert_array_equal(ours, np.asarray(image.convert("RGB")))


def bitmap(
    bits: int, data: bytes, *, compression: int = 0, masks: tuple[int, ...] = (), colours: int = 0, data_at: int | None = None
) -> bytes:
    """Return a bitmap of WIDTH by HEIGHT pixels with a palette of noise."""
    palette = NOISE[: 4 * (colours or 1 << bits)] if bits <= 8 else b""
    size = 56 if len(masks) == 4 else 40
    header = struct.pack("<IiiHHIIiiII", size, WIDTH, HEIGHT, 1, bits, compression, len(data), 0, 0, colours, 0)
    header += struct.pack(f"<{len(masks)}I", *masks)
    at = 14 + len(header) + len(palette)
    return b"BM" + struct.pack("<IHHI", at + len(data), 0, 0, at if data_at is None else data_at) + header + palette + data


@pytest.mark.parametrize("masks", [(), (0x7C00, 0x3E0, 0x1F), (0x7C00, 0x3E0, 0x1F, 0x8000), (0xF800, 0x7E0, 0x1F)])
def test_bitmaps_of_sixteen_bits_with_and_without_alpha(masks: tuple[int, ...]) -> None:
    assert_equals_pillow(bitmap(16, NOISE[:64], compression=3 if masks else 0, masks=masks))


def test_rows_of_compressed_bitmaps_that_end_early_have_colour_0() -> None:
    runs = bytes([3, 5, 0, 0, 8, 7, 0, 0, 0, 3, 1, 2, 3, 0, 0, 0, 2, 9, 1, 4, 0, 0])
    assert_equals_pillow(bitmap(8, runs, compression=1))
    nibbles = bytes([5, 0x4B, 0, 0, 8, 0x77, 0, 0, 0, 5, 0x12, 0x34, 0x50, 0, 0, 0, 1, 0x90, 0, 0])
    assert_equals_pillow(bitmap(4, nibbles, compression=2))
    assert_equals_pillow(bitmap(8, runs, compression=1, colours=10))


@pytest.mark.parametrize(
    "runs",
    [
        bytes([0, 2, 0, 2, 8, 7, 0, 0, 8, 9, 0, 0, 0, 1]),  # two rows up at the start
        bytes([3, 5, 0, 2, 2, 1, 3, 7, 0, 0, 8, 7, 0, 0, 8, 9, 0, 1]),  # to the right and up
        bytes([0, 3, 4, 5, 6, 0, 0, 2, 1, 0, 0, 2, 1, 0, 0, 0, 8, 7, 0, 0, 0, 2, 7, 1, 1, 9, 0, 0, 0, 1]),
        bytes([8, 5, 0, 2, 0, 1, 0, 0, 8, 7, 0, 0, 8, 9, 0, 0, 0, 1]),  # up from the end of a full row
        bytes([8, 5, 0, 0, 2, 8, 0, 2, 6, 0, 0, 0, 8, 7, 0, 0, 8, 9, 0, 1]),  # to the end of the row
        bytes([1, 5, 0, 2, 7, 3]),  # to the end of the image
    ],
)
def test_pixels_that_jumps_of_compressed_bitmaps_skip_have_colour_0(runs: bytes) -> None:
    assert_equals_pillow(bitmap(8, runs, compression=1))
    assert_equals_pillow(bitmap(4, runs.replace(b"\0\3\4\5\6\0", b"\0\3\x45\x60"), compression=2))
    assert_equals_pillow(bitmap(8, runs, compression=1, colours=10))


@pytest.mark.parametrize("end", [b"", b"\0\1", b"\0\0\0\1"])
@pytest.mark.parametrize(
    ("runs", "rows"),
    [
        ([0, 0, 8, 7, 0, 0, 3, 9, 0, 0, 8, 5], ["", "7" * 8, "999", "5" * 8]),
        ([8, 7, 0, 0, 0, 0, 0, 0, 8, 5], ["7" * 8, "", "", "5" * 8]),
        ([8, 7, 0, 0, 8, 6, 0, 0, 8, 5, 0, 0, 0, 0], ["7" * 8, "6" * 8, "5" * 8, ""]),
        ([0, 2, 0, 1, 0, 0, 8, 7, 0, 0, 8, 5], ["", "", "7" * 8, "5" * 8]),
        ([0, 0, 0, 0, 0, 0, 0, 0], ["", "", "", ""]),
    ],
)
def test_empty_rows_of_compressed_bitmaps_have_colour_0(runs: list[int], rows: list[str], end: bytes) -> None:
    """As the format says. Pillow passes over empty rows, and refuses the file for its missing pixels."""
    data = bitmap(8, bytes(runs) + end, compression=1)
    with pytest.raises(ValueError, match="not enough image data"), Image.open(io.BytesIO(data)) as image:
        image.load()
    palette = np.frombuffer(NOISE[:1024], np.uint8).reshape(256, 4)[:, 2::-1]
    indices = np.array([[int(value) for value in row.ljust(WIDTH, "0")] for row in reversed(rows)])
    np.testing.assert_array_equal(decoded(data), palette[indices])


@pytest.mark.parametrize(
    ("runs", "status"),
    [
        (bytes([3, 5, 0, 0, 8, 7, 0, 1]), TRUNCATED),  # the end comes before the last row
        (bytes([3, 5, 0, 0, 8]), TRUNCATED),
        (bytes([3, 5, 0, 2, 2]), TRUNCATED),
        (bytes([3, 5, 0, 2, 6, 0, 8, 7, 8, 7, 8, 7]), CORRUPT),  # a jump beyond the row
        (bytes([3, 5, 0, 2, 2, 4, 8, 7, 8, 7, 8, 7]), CORRUPT),  # a jump beyond the last row
        (bytes([8, 5, 0, 2, 1, 1]), CORRUPT),
        (bytes([8, 5, 8, 7, 8, 7, 8, 7]), CORRUPT),  # no end of the row
        (bytes([9, 5, 0, 0]), CORRUPT),
        # Its first row is empty. Pillow skips that row, and takes the row behind the last one in its place.
        (bytes([0, 0, 8, 7, 0, 0, 8, 7, 0, 0, 8, 7, 0, 0, 8, 7]), UNSUPPORTED),
    ],
)
def test_compressed_bitmaps_without_all_pixels_are_refused(runs: bytes, status: int) -> None:
    assert decoded(bitmap(8, runs, compression=1)) == status


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("row", [[8, 5], [7, 5, 1, 0], [3, 1, 4, 2, 1, 9]])
def test_runs_may_fill_a_row_up_to_whole_words(row: list[int], bits: int) -> None:
    """ImageMagick writes runs for the padding that rows have in a bitmap without compression."""
    data = bitmap(bits, bytes([*row, 0, 0] * 4), compression=1 if bits == 8 else 2)
    assert_equals_pillow(data[:18] + struct.pack("<I", 7) + data[22:])


def test_runs_beyond_the_padding_of_a_row_are_refused() -> None:
    data = bitmap(8, bytes([*(7, 5, 2, 0, 0, 0), *(7, 5, 0, 0) * 3]), compression=1)
    with pytest.raises(AssertionError, match="damaged"):
        assert_equals_pillow(data[:18] + struct.pack("<I", 7) + data[22:])


def test_a_compressed_bitmap_at_an_odd_place_is_refused() -> None:
    """Pillow pads stored pixels to even places in the file, the format to even places in the data."""
    runs = bytes([0, 3, 1, 2, 3, 0, 5, 6, 0, 0] * 4)
    assert_equals_pillow(bitmap(8, runs, compression=1))
    sound = bitmap(8, runs, compression=1)
    at = 54 + 1024
    odd = sound[:10] + struct.pack("<I", at + 1) + sound[14:at] + b"\0" + sound[at:]
    assert decoded(odd) == UNSUPPORTED


@pytest.mark.parametrize("bits", [0, 2, 3, 5, 7, 12, 15, 20, 30, 48, 64])
def test_bitmaps_of_other_depths_are_refused(bits: int) -> None:
    assert decoded(bitmap(bits, NOISE)) == UNSUPPORTED


@pytest.mark.parametrize("bits", [8, 24])
@pytest.mark.parametrize("data_at", [0, 10, 20, 53])
def test_pixels_cannot_begin_inside_the_header(bits: int, data_at: int) -> None:
    assert decoded(bitmap(bits, NOISE, data_at=data_at)) == CORRUPT_HEADER


def test_pixels_may_begin_behind_a_gap() -> None:
    for bits, gap in ((8, 9), (24, 6)):
        at = 54 + (1024 if bits == 8 else 0)
        assert_equals_pillow(bitmap(bits, NOISE, data_at=at + gap))


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
@pytest.mark.parametrize("lossless", [True, False])
@pytest.mark.parametrize("flags", [0, 1, 2, 3])  # 1: dispose, 2: do not blend
@pytest.mark.parametrize("wider", [False, True])
def test_first_frame_of_an_animated_webp(mode: str, lossless: bool, flags: int, wider: bool) -> None:
    frames = [photograph(40, 30, seed=seed).convert(mode) for seed in range(3)]
    if mode == "RGBA":
        alpha = np.repeat(np.array([0, 1, 120, 255], dtype=np.uint8), [10, 5, 5, 10])[:, None].repeat(40, axis=1)
        for frame in frames:
            frame.putalpha(Image.fromarray(alpha))
    file = io.BytesIO()
    frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:], lossless=lossless, exact=True)
    data = bytearray(file.getvalue())
    frame, canvas = data.find(b"ANMF"), data.find(b"VP8X")
    data[frame + 8 + 15] = flags
    if wider:
        data[canvas + 12 : canvas + 15] = (49).to_bytes(3, "little")
        data[frame + 8 : frame + 11] = (3).to_bytes(3, "little")  # in units of two pixels
    assert_equals_pillow(bytes(data))


@pytest.mark.parametrize("lossless", [True, False])
@pytest.mark.parametrize("flags", [0, 2])
def test_first_frame_of_an_animated_webp_keeps_the_colour_of_transparent_pixels(lossless: bool, flags: int) -> None:
    """Pillow's encoder of animations makes them black; others do not (image-rs: extended_images/anim.webp)."""
    image = photograph(40, 30, seed=1).convert("RGBA")
    image.putalpha(Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40).astype(np.uint8) // 2))
    file = io.BytesIO()
    image.save(file, "WEBP", lossless=lossless, exact=True)
    still = file.getvalue()

    def chunk(name: bytes, body: bytes) -> bytes:
        return name + len(body).to_bytes(4, "little") + body

    start = 12 + (18 if still[12:16] == b"VP8X" else 0)  # behind the head of an extended still image
    canvas = (39).to_bytes(3, "little") + (29).to_bytes(3, "little")
    frame = chunk(b"ANMF", bytes(6) + canvas + (100).to_bytes(3, "little") + bytes([flags]) + still[start:])
    body = b"WEBP" + chunk(b"VP8X", b"\x12\0\0\0" + canvas) + chunk(b"ANIM", bytes(6)) + frame + frame
    assert_equals_pillow(chunk(b"RIFF", body))


def test_webp_that_ends_before_its_container_is_refused() -> None:
    file = io.BytesIO()
    photograph(40, 30).save(file, "WEBP")
    data = bytearray(file.getvalue())
    assert decoded(bytes(data[:-1])) == TRUNCATED
    data[4:8] = struct.pack("<I", len(data) - 7)
    assert decoded(bytes(data)) == TRUNCATED


@pytest.mark.parametrize("format", ["PNG", "GIF", "BMP", "PPM", "TIFF"])
def test_damaged_files_have_pillows_pixels_or_are_refused(format: str) -> None:
    """These formats have checksums, no compression, or one that both libraries read alike."""
    file = io.BytesIO()
    image = photograph(40, 30)
    (image.quantize(50) if format == "GIF" else image).save(file, format)
    sound, outcomes = file.getvalue(), set()
    for number in range(300):
        random = np.random.default_rng(number)
        if number % 3 == 0:
            data = sound[: int(random.integers(1, len(sound)))]
        else:
            damaged = bytearray(sound)
            limit = len(sound) if number % 4 else min(80, len(sound))
            damaged[int(random.integers(0, limit))] ^= 1 << int(random.integers(0, 8))
            data = bytes(damaged)
        ours = decoded(data)
        outcomes.add(isinstance(ours, int))
        if isinstance(ours, int):
            continue
        with Image.open(io.BytesIO(data)) as opened:
            np.testing.assert_array_equal(ours, np.asarray(opened.convert("RGB")), err_msg=f"damage {number}")
    assert True in outcomes


def test_a_png_that_ends_behind_its_pixels_is_refused() -> None:
    """Text behind the pixels, as ImageMagick writes its dates: a file cut there has all pixels, and was taken."""
    date = b"date:create\x002026-11-23"
    text = struct.pack(">I", len(date)) + b"tEXt" + date + struct.pack(">I", zlib.crc32(b"tEXt" + date))
    file = io.BytesIO()
    Image.fromarray(np.frombuffer(NOISE[:300], np.uint8).reshape(10, 10, 3)).save(file, "PNG")
    end = file.getvalue()[-12:]
    data = file.getvalue()[:-12] + text + end
    sizes = {len(data) - cut for cut in range(1, len(text) + len(end) + 1)}
    assert {size: decoded(data[:size]) for size in sizes} == dict.fromkeys(sizes, TRUNCATED)
    assert_equals_pillow(data + b"behind the end")


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA"])
@pytest.mark.parametrize("size", [(65_536, 1), (70_001, 3), (1, 65_536), (3, 70_001)])
@pytest.mark.parametrize("from_the_top", [False, True])
def test_bitmaps_with_a_side_beyond_16_bits(mode: str, size: tuple[int, int], from_the_top: bool) -> None:
    values = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 4)).astype(np.uint8)
    image = Image.fromarray(values)
    image = image.convert("RGB").quantize(7) if mode == "P" else image.convert(mode)
    file = io.BytesIO()
    image.save(file, "BMP")
    data = bytearray(file.getvalue())
    if from_the_top:
        data[22:26] = struct.pack("<i", -size[1])
    assert_equals_pillow(bytes(data))
    assert decoded(bytes(data[:-4])) == TRUNCATED


def test_bitmaps_of_four_bits_with_a_side_beyond_16_bits() -> None:
    width = 65_541
    stride = (width * 4 + 31) // 32 * 4
    data = bytearray(bitmap(4, np.random.default_rng(2).integers(0, 256, stride).astype(np.uint8).tobytes(), colours=11))
    data[18:26] = struct.pack("<ii", width, 1)
    assert_equals_pillow(bytes(data))
    data[22:26] = struct.pack("<i", 1 << 30)
    assert decoded(bytes(data)) == TOO_LARGE


def boolean_coded(bits: str) -> bytes:
    """Return bits of equal probability as the boolean coder of VP8 writes them (RFC 6386, section 7.3)."""
    out, low, span, left = bytearray(), 0, 255, 24
    for bit in bits + "0" * 32:
        split = 1 + ((span - 1) * 128 >> 8)
        low, span = (low + split, span - split) if bit == "1" else (low, split)
        while span < 128:
            if low >> 31:  # a carry into the bytes before
                out[:] = (int.from_bytes(out, "big") + 1).to_bytes(len(out), "big")
            low, span, left = low << 1 & 0xFFFFFFFF, span << 1, left - 1
            if left == 0:
                out.append(low >> 24)
                low, left = low & 0xFFFFFF, 8
    return bytes(out)


def signed(value: int) -> str:
    """Return the bits of a number that is stated, of six bits and a sign (RFC 6386, section 9.6)."""
    return f"1{abs(value):06b}{int(value < 0)}"


@pytest.mark.parametrize("simple", [0, 1])
@pytest.mark.parametrize(("level", "of_segments", "difference"), [(52, 34, -63), (3, -20, 30), (30, 10, -20), (63, 0, -40)])
def test_filter_levels_of_a_lossy_webp_beyond_their_limits(simple: int, level: int, of_segments: int, difference: int) -> None:
    """A damaged frame header: decoders limit levels to 0 to 63 at different steps."""
    file = io.BytesIO()
    photograph(150, 100).save(file, "WEBP", quality=60)
    data = file.getvalue()
    start = data.index(b"VP8 ") + 8 + 10
    segments = "1" + "01" + "0" + "0000" + signed(of_segments) * 4  # their data without a map, added to those of the frame
    header = "00" + segments + f"{simple}{level:06b}000" + "11" + signed(difference) + "000" + "0000" + "00" + f"{40:07b}00000"
    coded = boolean_coded(header)
    assert_equals_pillow(data[:start] + coded + data[start + len(coded) :])


def damaged_webps(sound: bytes, start: int, count: int) -> Iterator[bytes]:
    """Yield copies of a file with one to three changed bits behind `start`."""
    for number in range(count):
        random = np.random.default_rng(number)
        damaged = bytearray(sound)
        end = len(sound) if number % 2 else min(len(sound), start + 80)
        for _ in range(1 + number % 3):
            damaged[int(random.integers(start, end))] ^= 1 << int(random.integers(0, 8))
        yield bytes(damaged)


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
@pytest.mark.parametrize(
    "options",
    [{"quality": 60, "method": 0}, {"quality": 5}, {"quality": 95}, {"lossless": True, "method": 0}, {"lossless": True}],
)
@pytest.mark.parametrize("frames", [1, 2])
def test_a_damaged_webp_has_pillows_pixels_or_is_refused_as_by_pillow(mode: str, options: dict[str, int], frames: int) -> None:
    """No checksum tells of damage: coefficients leave 16 bits, and partitions end early, where decoders differ."""
    images = [photograph(70, 50, seed=seed).convert(mode) for seed in range(frames)]
    for image in images if mode == "RGBA" else []:
        image.putalpha(image.getchannel("G"))
    file = io.BytesIO()
    images[0].save(file, "WEBP", save_all=frames > 1, append_images=images[1:], exact=True, **options)
    sound = file.getvalue()
    outcomes = Counter(outcome(data) for data in damaged_webps(sound, sound.index(b"VP8", 16 if frames > 1 else 12) + 8, 300))
    assert set(outcomes) <= {"equal", "neither"}, outcomes
    assert outcomes["neither"]


@pytest.mark.parametrize("interlace", [0, 1])
def test_a_gif_that_ends_in_the_last_block_of_its_first_frame_is_refused(interlace: int) -> None:
    """All pixels may be there already. Pillow takes no part of a block, and so refuses the file."""
    file = io.BytesIO()
    photograph(40, 30).quantize(50).save(file, "GIF", interlace=interlace)
    sound = file.getvalue()
    at = sound.index(b",\0\0\0\0") + 11
    while sound[at + 1 + sound[at]]:
        at += 1 + sound[at]
    behind = at + 1 + sound[at]  # the last block
    for end in range(at, behind):
        assert isinstance(decoded(sound[:end]), int), end
    assert outcome(sound[: behind - 1]) == "neither"
    assert_equals_pillow(sound)


def test_later_frames_of_a_gif_do_not_matter() -> None:
    """Pillow reads them when a script asks for them."""
    images = [photograph(40, 30, seed=seed).quantize(50) for seed in range(3)]
    file = io.BytesIO()
    images[0].save(file, "GIF", save_all=True, append_images=images[1:])
    sound = file.getvalue()
    second = sound.index(b",", sound.index(b"!\xf9", 800))
    assert_equals_pillow(sound[: second + 1] + b"\xff" * 8 + sound[second + 9 :])  # far beyond any limit of pixels
    assert_equals_pillow(sound[: second + 5])
