"""What a small file may ask for: pixels, memory and work have limits, and memory that is not there is an error of one image."""

from __future__ import annotations

import io
import os
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import headrace
import numpy as np
import pytest
from headrace.errors import UsageError
from headrace.images.decode import TOO_LARGE, reason
from headrace.system.text.size_limits import PIXEL_LIMIT, max_pixels
from PIL import Image

TRUNCATED = 3
LIMIT = 178_956_970

DECODE_IN_LITTLE_MEMORY = """
import resource, sys
import numpy as np
import headrace

first, *images = [open(path, "rb").read() for path in sys.argv[2:]]
out = np.empty((1, 2, 2, 3), np.uint8)
headrace.decode_into([first], out)  # threads, tables and buffers are there now
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (int(sys.argv[1]) << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
print([int(headrace.decode_into([data], out)[0]) for data in images])
"""


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def status(data: bytes) -> int:
    """Decode one pixel of an image; return the status."""
    return int(headrace.decode_into([data], np.empty((1, 1, 1, 3), np.uint8), boxes=[(0, 0, 1, 1)])[0])


def statuses_in(mebibytes: int, folder: Path, *images: bytes) -> list[int]:
    """Decode images in a process that may take so much memory in addition; return the statuses."""
    paths = []
    for number, data in enumerate([encoded(Image.new("RGB", (8, 8)), "PNG"), *images]):
        paths.append(folder / str(number))
        paths[-1].write_bytes(data)
    command = [sys.executable, "-c", DECODE_IN_LITTLE_MEMORY, str(mebibytes), *map(str, paths)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    return [int(number) for number in re.findall(r"\d+", ended.stdout)]


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png_with_profile(mebibytes: int) -> bytes:
    """Return a PNG of 8 × 8 pixels whose colour profile is that many MiB of zeros."""
    packer = zlib.compressobj(1)
    profile = b"".join(packer.compress(bytes(1 << 20)) for _ in range(mebibytes)) + packer.flush()
    plain = encoded(Image.new("RGB", (8, 8), (10, 200, 30)), "PNG")
    return plain[:33] + chunk(b"iCCP", b"profile\0\0" + profile) + plain[33:]


def blank_webp(width: int, height: int) -> bytes:
    """Return a lossless WebP of 34 bytes: every code has one symbol, so pixels take no bits (RFC 9649, section 3.7.2)."""
    bits = "".join(f"{value:0{count}b}"[::-1] for value, count in ((width - 1, 14), (height - 1, 14), (0, 4)))
    bits += "000" + "1000" * 5  # no transform, cache or meta codes; five codes of the symbol 0
    codes = sum(int(bit) << at for at, bit in enumerate(bits)).to_bytes(13, "little")
    return b"RIFF" + struct.pack("<I", 26) + b"WEBPVP8L" + struct.pack("<I", 14) + b"\x2f" + codes


def progressive_jpeg(width: int, height: int) -> bytes:
    """Return a progressive JPEG of few bytes that states this size."""
    data = encoded(Image.new("RGB", (16, 16), (90, 100, 110)), "JPEG", progressive=True)
    frame = data.index(b"\xff\xc2")
    return data[: frame + 5] + struct.pack(">HH", height, width) + data[frame + 9 :]


def test_a_colour_profile_of_a_png_is_not_decompressed(tmp_path: Path) -> None:
    bomb = png_with_profile(200)
    assert len(bomb) < 1 << 20
    assert statuses_in(64, tmp_path, bomb) == [0]
    reference = np.asarray(Image.open(io.BytesIO(png_with_profile(1))).convert("RGB"))
    out = np.empty((1, 8, 8, 3), np.uint8)
    assert headrace.decode_into([bomb], out)[0] == 0
    np.testing.assert_array_equal(out[0], reference)


def test_a_png_too_short_for_its_pixels_takes_no_memory(tmp_path: Path) -> None:
    head = struct.pack(">IIBBBBB", 11_000, 11_000, 8, 6, 0, 0, 0)
    ends = chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    assert statuses_in(64, tmp_path, b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + ends) == [TRUNCATED]


def test_34_bytes_are_no_image_of_179_megapixels() -> None:
    small = blank_webp(60, 40)
    assert len(small) == 34
    out = np.full((1, 40, 60, 3), 7, np.uint8)
    assert headrace.decode_into([small], out)[0] == 0
    np.testing.assert_array_equal(out[0], np.asarray(Image.open(io.BytesIO(small)).convert("RGB")))
    assert status(blank_webp(16_000, 11_000)) == TOO_LARGE
    assert status(blank_webp(8_192, 8_193)) == TOO_LARGE  # more than 2^26 pixels


def test_a_lossless_webp_takes_memory_for_one_image(tmp_path: Path) -> None:
    size = 2_500  # 24 MiB of RGBA in libwebp and twice 18 MiB of RGB; a second image would not fit
    plain = encoded(Image.new("RGB", (size, size), (1, 2, 3)), "WEBP", lossless=True, method=0)
    assert statuses_in(70, tmp_path, blank_webp(size, size), plain) == [0, 0]


def test_scans_times_pixels_follow_the_bytes_of_a_jpeg() -> None:
    assert status(progressive_jpeg(13_000, 12_400)) == TOO_LARGE  # 161 megapixels in less than 1 KB
    assert status(progressive_jpeg(4_000, 4_000)) == TOO_LARGE  # ten scans of them
    assert status(encoded(Image.new("RGB", (3_000, 3_000), (90, 100, 110)), "JPEG", progressive=True)) == 0


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "JPEG", "JPEG2"])
def test_memory_that_is_not_there_is_an_error_of_the_image(format: str, tmp_path: Path) -> None:
    picture = Image.new("RGB", (4_000, 4_000), (9, 9, 9))  # 46 MiB
    options: dict[str, object] = {"compression": "tiff_lzw"} if format == "TIFF" else {"progressive": format == "JPEG2"}
    data = encoded(picture, format.rstrip("2"), **({} if format in ("PNG", "WEBP", "GIF", "BMP", "PPM") else options))
    assert statuses_in(30, tmp_path, data) == [TOO_LARGE]


def test_a_column_of_millions_of_rows_is_refused(tmp_path: Path) -> None:
    tall = b"P4 1 6000000 " + bytes(6_000_000)
    program = """
import sys
import numpy as np, headrace
out = np.empty((1, 8, 224, 3), np.uint8)  # between the passes: 6,000,000 rows of 224 pixels, 4 GB
data = open(sys.argv[1], "rb").read()
print(int(headrace.decode_into([data], out, resample="bilinear-int16")[0]))  # the horizontal pass comes first
"""
    path = tmp_path / "tall.pbm"
    path.write_bytes(tall)
    ended = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout.strip()) == (0, str(TOO_LARGE)), ended.stderr


def pgm(width: int, height: int) -> bytes:
    return f"P5 {width} {height} 255\n".encode()


@pytest.mark.parametrize(("setting", "expected"), [("", [9, 3]), ("5000", [9, 9]), ("400000000", [3, 3])])
def test_a_variable_sets_the_limit_of_pixels(setting: str, expected: list[int], tmp_path: Path) -> None:
    (tmp_path / "beyond").write_bytes(pgm(20_000, 9_000))
    (tmp_path / "within").write_bytes(pgm(100, 60))
    program = """
import sys
import numpy as np, headrace
from headrace.system.text.size_limits import max_pixels
out = np.empty((2, 1, 1, 3), np.uint8)
data = [open(path, "rb").read() for path in sys.argv[1:]]
print(*headrace.decode_into(data, out, boxes=[(0, 0, 1, 1)] * 2), max_pixels())
"""
    command = [sys.executable, "-c", program, str(tmp_path / "beyond"), str(tmp_path / "within")]
    environment = {**os.environ, PIXEL_LIMIT: setting}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert [int(number) for number in ended.stdout.split()] == [*expected, int(setting or LIMIT)]


@pytest.mark.parametrize("setting", ["many", "0", "-5", "1e9", "9999999999", "²"])
def test_a_limit_that_is_no_number_of_pixels_is_refused(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PIXEL_LIMIT, setting)
    with pytest.raises(UsageError, match="is not a number of pixels"):
        max_pixels()


def test_the_reason_names_the_limits() -> None:
    assert "pixel limit" in reason(TOO_LARGE) and "memory" in reason(TOO_LARGE)
