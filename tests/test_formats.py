"""Formats other than JPEG, and JPEG kinds that only libjpeg-turbo reads, against Pillow's open().convert("RGB")."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import headrace
import numpy as np
import pytest
from headrace import _native
from headrace.decode import reason
from PIL import Image
from sample_images import photograph

WIDTH, HEIGHT = 53, 37


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def decoded(data: bytes, box: tuple[int, int, int, int] | None = None) -> tuple[int, np.ndarray]:
    """Status and pixels of the box, without resizing."""
    width, height = _native.image_size(data)
    x, y, w, h = box or (0, 0, width, height)
    out = np.full((1, h, w, 3), 77, dtype=np.uint8)
    status = headrace.decode_into([data], out, boxes=[(x, y, w, h)])
    return int(status[0]), out[0]


def assert_equals_pillow(data: bytes) -> None:
    reference = np.asarray(opened(data).convert("RGB"))
    assert _native.image_size(data) == reference.shape[1::-1]
    status, pixels = decoded(data)
    assert status == 0, reason(status)
    np.testing.assert_array_equal(pixels, reference)
    if min(reference.shape[:2]) > 8:
        _, pixels = decoded(data, (3, 2, 5, 4))
        np.testing.assert_array_equal(pixels, reference[2:6, 3:8])


def image(mode: str) -> Image.Image:
    rgb = photograph(WIDTH, HEIGHT, seed=5)
    if mode == "I;16":
        values = np.random.default_rng(0).integers(0, 65536, (HEIGHT, WIDTH)).astype(np.uint16)
        values[:5] //= 200
        return Image.fromarray(values)
    if mode in ("LA", "RGBA"):
        with_alpha = rgb.convert(mode)
        with_alpha.putalpha(photograph(WIDTH, HEIGHT, seed=6).convert("L"))
        return with_alpha
    if mode == "P":
        return rgb.quantize(200)
    if mode == "P16":
        return rgb.quantize(16)
    return rgb.convert(mode)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "P16", "RGB", "RGBA", "I;16"])
def test_png(mode: str) -> None:
    assert_equals_pillow(encoded(image(mode), "PNG"))


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_png_palettes_of_few_bits(bits: int) -> None:
    assert_equals_pillow(encoded(photograph(WIDTH, HEIGHT).quantize(1 << bits), "PNG", bits=bits))


def test_png_transparency_is_dropped() -> None:
    assert_equals_pillow(encoded(image("P"), "PNG", transparency=3))
    assert_equals_pillow(encoded(image("RGB"), "PNG", transparency=(1, 2, 3)))
    assert_equals_pillow(encoded(image("L"), "PNG", transparency=9))


@pytest.mark.parametrize("transparent", [False, True])
@pytest.mark.parametrize(("colour_type", "channels"), [(2, 3), (4, 2), (6, 4), (0, 1)])
def test_png_of_sixteen_bits(colour_type: int, channels: int, transparent: bool) -> None:
    import zlib

    if transparent and colour_type in (4, 6):
        pytest.skip("a transparent value (tRNS) is forbidden beside an alpha channel")
    values = np.random.default_rng(1).integers(0, 65536, (HEIGHT, WIDTH * channels)).astype(">u2")
    values[:5] //= 200
    rows = b"".join(b"\0" + row.tobytes() for row in values)

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, 16, colour_type, 0, 0, 0))
    if transparent:
        header += chunk(b"tRNS", values[7, :channels].tobytes())
    assert_equals_pillow(
        b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""),
    )


def test_png_interlaced_and_animated() -> None:
    frames = [photograph(WIDTH, HEIGHT, seed) for seed in range(3)]
    assert_equals_pillow(encoded(frames[0], "PNG", save_all=True, append_images=frames[1:]))


@pytest.mark.parametrize("options", [{"quality": 80}, {"quality": 10}, {"lossless": True}, {"quality": 95, "method": 6}])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_webp(mode: str, options: dict[str, object]) -> None:
    assert_equals_pillow(encoded(image(mode), "WEBP", **options))


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (16, 16), (17, 33), (200, 150)])
def test_webp_sizes(size: tuple[int, int]) -> None:
    assert_equals_pillow(encoded(photograph(*size, seed=2), "WEBP", quality=75))


def test_webp_animated() -> None:
    frames = [photograph(WIDTH, HEIGHT, seed) for seed in range(3)]
    assert_equals_pillow(encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], quality=80))


@pytest.mark.parametrize("mode", ["1", "L", "P", "P16", "RGB"])
@pytest.mark.parametrize("options", [{}, {"interlace": 1}, {"transparency": 5}])
def test_gif(mode: str, options: dict[str, object]) -> None:
    assert_equals_pillow(encoded(image(mode), "GIF", **options))


def test_gif_first_frame() -> None:
    frames = [photograph(WIDTH, HEIGHT, seed) for seed in range(3)]
    assert_equals_pillow(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))


@pytest.mark.parametrize("transparent", [None, 2])
@pytest.mark.parametrize("corner", [(4, 3), (0, 3), (40, 30)])
def test_gif_frame_smaller_than_or_beyond_its_screen(transparent: int | None, corner: tuple[int, int]) -> None:
    data = bytearray(encoded(photograph(20, 10).quantize(8), "GIF", **({"transparency": 2} if transparent else {})))
    data[6:10] = struct.pack("<HH", 45, 33)  # a larger screen
    frame = data.index(b"\x2c", 13 + 3 * 8)
    data[frame + 1 : frame + 5] = struct.pack("<HH", *corner)
    assert_equals_pillow(bytes(data))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate", "packbits"])
def test_tiff(mode: str, compression: str | None) -> None:
    assert_equals_pillow(encoded(image(mode), "TIFF", compression=compression))


def test_tiff_fax_and_white_is_zero() -> None:
    assert_equals_pillow(encoded(image("1"), "TIFF", compression="group4"))
    assert_equals_pillow(encoded(image("L"), "TIFF", tiffinfo={262: 0}))
    assert_equals_pillow(encoded(image("1"), "TIFF", tiffinfo={262: 0}))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_tiff_is_always_upright(orientation: int) -> None:
    assert_equals_pillow(encoded(image("RGB"), "TIFF", tiffinfo={274: orientation}))


def test_tiff_kinds_that_would_differ_are_refused() -> None:
    status, _ = decoded(encoded(image("RGB"), "TIFF", compression="jpeg"))
    assert reason(status).startswith("a valid image of a kind")


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA"])
def test_bmp(mode: str) -> None:
    assert_equals_pillow(encoded(image(mode), "BMP"))


@pytest.mark.parametrize("bits", [15, 16])
def test_bmp_of_sixteen_bits(bits: int) -> None:
    values = np.random.default_rng(2).integers(0, 65536, (16, 64)).astype("<u2")
    masks = (0x7C00, 0x3E0, 0x1F) if bits == 15 else (0xF800, 0x7E0, 0x1F)
    header = struct.pack("<IiiHHIIiiII", 40, 64, 16, 1, 16, 3, values.nbytes, 0, 0, 0, 0) + struct.pack("<III", *masks)
    data = b"BM" + struct.pack("<IHHI", 14 + len(header) + values.nbytes, 0, 0, 14 + len(header)) + header
    assert_equals_pillow(data + values.tobytes())


def adobe_marker(data: bytes, transform: int) -> bytes:
    """The JPEG with its Adobe marker's transform changed."""
    position = data.index(b"Adobe")
    return data[: position + 11] + bytes([transform]) + data[position + 12 :]


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 30}, {"subsampling": "4:2:0"}])
@pytest.mark.parametrize("adobe", ["as written", "ycck", "none"])
def test_cmyk_jpeg(options: dict[str, object], adobe: str) -> None:
    data = encoded(image("CMYK"), "JPEG", **options)
    if adobe == "ycck":
        data = adobe_marker(data, 2)
    elif adobe == "none":
        position = data.index(b"\xff\xee")
        data = data[:position] + data[position + 16 :]
    assert_equals_pillow(data)


@pytest.mark.parametrize("transform", [0, 1])
def test_adobe_rgb_jpeg(transform: int) -> None:
    data = encoded(image("RGB"), "JPEG", keep_rgb=True)
    assert_equals_pillow(adobe_marker(data, transform) if b"Adobe" in data else data)


@pytest.mark.parametrize("options", [{}, {"subsampling": "4:2:0"}, {"subsampling": "4:2:2"}])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_progressive_jpeg(mode: str, options: dict[str, object]) -> None:
    assert_equals_pillow(encoded(image(mode), "JPEG", progressive=True, **options))


MAKERS: dict[str, Callable[[], bytes]] = {
    "PNG": lambda: encoded(image("RGB"), "PNG"),
    "WEBP": lambda: encoded(image("RGB"), "WEBP"),
    "WEBP lossless": lambda: encoded(image("RGB"), "WEBP", lossless=True),
    "GIF": lambda: encoded(image("P"), "GIF"),
    "TIFF": lambda: encoded(image("RGB"), "TIFF", compression="tiff_lzw"),
    "BMP": lambda: encoded(image("RGB"), "BMP"),
    "CMYK JPEG": lambda: encoded(image("CMYK"), "JPEG"),
    "progressive JPEG": lambda: encoded(image("RGB"), "JPEG", progressive=True),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_truncated_files_have_a_reason(kind: str) -> None:
    data = MAKERS[kind]()
    for sixteenths in range(1, 16):
        out = np.full((1, 8, 8, 3), 77, dtype=np.uint8)
        status = headrace.decode_into([data[: len(data) * sixteenths // 16]], out, boxes=[(0, 0, 8, 8)])
        assert status[0] != 0, f"{sixteenths}/16 of a {kind} file was taken"
        assert not out.any(), "a failed image leaves its slot black"


@pytest.mark.parametrize("kind", MAKERS)
def test_lying_sizes_are_refused_before_memory_is_taken(kind: str) -> None:
    data = bytearray(MAKERS[kind]())
    huge = 65_500
    match kind.split()[-1]:
        case "PNG":
            import zlib

            data[16:24] = struct.pack(">II", huge, huge)
            data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
        case "GIF":
            data[6:10] = struct.pack("<HH", huge, huge)
        case "BMP":
            data[18:26] = struct.pack("<ii", huge, huge)
        case "JPEG":
            position = next(data.index(marker) for marker in (b"\xff\xc0", b"\xff\xc2") if marker in data)
            data[position + 5 : position + 9] = struct.pack(">HH", huge, huge)
        case _:
            pytest.skip("the size is not at a fixed place, or cannot be that large")
    with pytest.raises(ValueError, match="pixel limit"):
        _native.image_size(bytes(data))
