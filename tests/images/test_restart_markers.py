"""Restart markers change no pixel; damaged files raise errors."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from headrace import _native
from headrace.errors import DecodeError, UsageError
from headrace.images.decode import decode_into
from headrace.images.restart_markers import restart_markers
from PIL import Image, ImageOps
from sample_images import jpeg, photograph


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def restart_interval(data: bytes) -> int:
    position = data.find(b"\xff\xdd\x00\x04")
    return int.from_bytes(data[position + 4 : position + 6], "big") if position >= 0 else 0


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("size", [(1, 1), (8, 8), (9, 17), (33, 31), (227, 149)])
@pytest.mark.parametrize("progressive", [False, True])
def test_pixels_stay_and_the_file_grows_little(subsampling: str, size: tuple[int, int], progressive: bool) -> None:
    data = jpeg(*size, subsampling=subsampling, progressive=progressive)
    marked = restart_markers(data)
    np.testing.assert_array_equal(pixels(marked), pixels(data))
    assert restart_markers(marked) == marked
    assert not Image.open(io.BytesIO(marked)).info.get("progressive")
    assert (restart_interval(marked) > 0) == (size[0] > 32 or size[1] > 16)


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"optimize": True}, {"quality": 5}, {"quality": 100}])
def test_each_colour_mode_keeps_its_pixels(mode: str, options: dict[str, object]) -> None:
    file = io.BytesIO()
    photograph(131, 77, seed=3).convert(mode).save(file, "JPEG", **options)
    data = file.getvalue()
    marked = restart_markers(data)
    np.testing.assert_array_equal(pixels(marked), pixels(data))
    assert Image.open(io.BytesIO(marked)).mode == mode


@pytest.mark.parametrize("blocks", [1, 3, 1000])
def test_files_that_have_markers_keep_their_pixels(blocks: int) -> None:
    data = jpeg(200, 100, restart_marker_blocks=blocks)
    marked = restart_markers(data)
    np.testing.assert_array_equal(pixels(marked), pixels(data))
    assert marked == restart_markers(jpeg(200, 100))


@pytest.mark.parametrize("fill", [1, 2, 3])
def test_fill_bytes_before_a_stuffed_zero_change_no_pixel(fill: int) -> None:
    """The standard allows fill bytes before markers only. Pillow accepts these files, with pixels of its own."""
    pixels_of_noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels_of_noise).save(file, "JPEG", quality=95)
    data = file.getvalue()
    scan = data.index(b"\xff\xda") + 14
    stuffed = [at for at in range(scan, len(data) - 1) if data[at : at + 2] == b"\xff\x00"]
    odd = [data[:at] + b"\xff" * fill + data[at:] for at in stuffed]
    assert any((pixels(one) != pixels(data)).any() for one in odd)
    for one in odd:
        np.testing.assert_array_equal(pixels(restart_markers(one)), pixels(one))


def test_metadata_stays_unless_it_is_dropped() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "a description"
    file = io.BytesIO()
    photograph(64, 48).save(file, "JPEG", exif=exif.tobytes(), icc_profile=b"profile" * 20, comment=b"hello", dpi=(72, 96))
    data = file.getvalue()
    kept, dropped = (Image.open(io.BytesIO(restart_markers(data, keep_metadata=keep))) for keep in (True, False))
    assert kept.info["icc_profile"] == b"profile" * 20
    assert kept.info["comment"] == b"hello"
    assert kept.info["dpi"] == (72, 96)
    assert dict(kept.getexif()) == {0x0112: 6, 0x010E: "a description"}
    assert "icc_profile" not in dropped.info and "comment" not in dropped.info
    assert dict(dropped.getexif()) == {0x0112: 6}


def segments(data: bytes, marker: int) -> list[bytes]:
    """Payloads of a JPEG's segments of one kind, before its first scan."""
    found, position = [], 2
    while data[position + 1] != 0xDA:
        end = position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        if data[position + 1] == marker:
            found.append(data[position + 4 : end])
        position = end
    return found


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("kind", ["RGB by Adobe", "RGB by names", "CMYK", "YCCK", "CMYK without marker"])
def test_the_colour_space_survives(kind: str, keep: bool) -> None:
    file = io.BytesIO()
    mode = "RGB" if kind.startswith("RGB") else "CMYK"
    photograph(70, 45, seed=4).convert(mode).save(file, "JPEG", keep_rgb=mode == "RGB", icc_profile=b"profile" * 20000)
    data = file.getvalue()
    adobe = data.find(b"Adobe")
    if kind == "RGB by Adobe" and adobe < 0:
        data = data[:2] + b"\xff\xee\x00\x0eAdobe\x00\x64" + bytes(5) + data[2:]
    elif kind == "YCCK":
        data = data[: adobe + 11] + b"\x02" + data[adobe + 12 :]
    elif kind == "CMYK without marker":
        data = data[: adobe - 4] + data[adobe + 12 :]
    marked = restart_markers(data, keep_metadata=keep)
    np.testing.assert_array_equal(pixels(marked), pixels(data))
    assert Image.open(io.BytesIO(marked)).mode == mode
    assert segments(marked, 0xEE) == segments(data, 0xEE)
    profile = segments(data, 0xE2)
    assert len(profile) == 3, "larger than a segment"
    assert segments(marked, 0xE2) == (profile if keep else [])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("keep", [True, False])
def test_the_orientation_survives(orientation: int, keep: bool) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    photograph(64, 48).save(file, "JPEG", exif=exif.tobytes())
    marked = restart_markers(file.getvalue(), keep_metadata=keep)
    before, after = (ImageOps.exif_transpose(Image.open(io.BytesIO(data))) for data in (file.getvalue(), marked))
    np.testing.assert_array_equal(np.asarray(before), np.asarray(after))
    if keep:
        assert segments(marked, 0xE1) == segments(file.getvalue(), 0xE1)


@pytest.mark.parametrize(("tile", "interval"), [(1, 1), (16, 2), (32, 5), (64, 10), (100, 25), (10_000, 50), (1 << 40, 50)])
def test_the_tile_sets_the_restart_interval(tile: int, interval: int) -> None:
    data = jpeg(400, 40, subsampling="4:4:4")  # 50 MCUs of 8 pixels
    marked = restart_markers(data, tile=tile)
    assert restart_interval(marked) == interval
    np.testing.assert_array_equal(pixels(marked), pixels(data))


@pytest.mark.parametrize("interval", [0, 2, 8])
@pytest.mark.parametrize("behind", [b"\xff\xd0", b"\xff\xd1", b"\xff\xd7", b"\xff\xd3\xff\xff\xd3", b"\xff\xdc\0\4\0\x28",
                                    b"\xff\xd5\xff\xdc\0\4\0\x28"])  # fmt: skip
def test_restart_markers_and_a_height_behind_the_scan_are_ignored(interval: int, behind: bytes) -> None:
    """As libjpeg does: some cameras and scanners write them."""
    sound = jpeg(60, 40, restart_marker_blocks=interval)
    data = sound[:-2] + behind + sound[-2:]
    out = np.zeros((1, 40, 60, 3), np.uint8)
    assert int(decode_into([data], out)[0]) == 0
    np.testing.assert_array_equal(out[0], pixels(data))
    np.testing.assert_array_equal(out[0], pixels(sound))
    np.testing.assert_array_equal(pixels(restart_markers(data)), pixels(sound))


def test_a_restart_marker_inside_a_scan_without_an_interval_is_damage() -> None:
    sound = jpeg(60, 40)
    middle = len(sound) - 100
    out = np.zeros((1, 40, 60, 3), np.uint8)
    assert int(decode_into([sound[:middle] + b"\xff\xd1" + sound[middle:]], out)[0]) == 7


def test_damage_raises_decode_errors_with_reason_and_status() -> None:
    data = jpeg(100, 100)
    with pytest.raises(DecodeError, match="truncated") as caught:
        restart_markers(data[:-2])
    assert caught.value.status == 3
    assert pickle.loads(pickle.dumps(caught.value)).status == 3
    with pytest.raises(DecodeError, match="empty"):
        restart_markers(b"")
    with pytest.raises(DecodeError, match="not an image"):
        restart_markers(b"GIF89a")
    with pytest.raises(UsageError, match="at least 1"):
        restart_markers(data, tile=0)


def test_photographs_keep_their_pixels(sample_images: list[Path]) -> None:
    for path in sample_images[::20]:
        data = path.read_bytes()
        marked = restart_markers(data)
        np.testing.assert_array_equal(pixels(marked), pixels(data))
        assert restart_markers(marked) == marked
        assert len(marked) < 1.1 * len(data)


def test_crc32c_gives_the_published_values() -> None:
    assert _native.crc32c(b"123456789") == 0xE3069283
    assert _native.crc32c(b"6789", _native.crc32c(b"12345")) == 0xE3069283
    large = bytes(1 << 20)
    assert _native.crc32c(large) == _native.crc32c(large[1:], _native.crc32c(large[:1]))
