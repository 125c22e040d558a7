"""Other formats than JPEG, and JPEG kinds that libjpeg-turbo decodes, equal Pillow's open().convert("RGB")."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import headrace
import numpy as np
import pytest
from headrace import _native
from headrace.images.decode import reason
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
def test_png_equals_pillow(mode: str) -> None:
    assert_equals_pillow(encoded(image(mode), "PNG"))


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_png_palettes_of_few_bits_equal_pillow(bits: int) -> None:
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


def test_interlaced_and_animated_png_equal_pillow() -> None:
    frames = [photograph(WIDTH, HEIGHT, seed) for seed in range(3)]
    assert_equals_pillow(encoded(frames[0], "PNG", save_all=True, append_images=frames[1:]))


@pytest.mark.parametrize("options", [{"quality": 80}, {"quality": 10}, {"lossless": True}, {"quality": 95, "method": 6}])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_webp_equals_pillow(mode: str, options: dict[str, object]) -> None:
    assert_equals_pillow(encoded(image(mode), "WEBP", **options))


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (16, 16), (17, 33), (200, 150)])
def test_webp_equals_pillow_at_odd_sizes(size: tuple[int, int]) -> None:
    assert_equals_pillow(encoded(photograph(*size, seed=2), "WEBP", quality=75))


def test_animated_webp_gives_the_first_frame() -> None:
    frames = [photograph(WIDTH, HEIGHT, seed) for seed in range(3)]
    assert_equals_pillow(encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], quality=80))


@pytest.mark.parametrize("mode", ["1", "L", "P", "P16", "RGB"])
@pytest.mark.parametrize("options", [{}, {"interlace": 1}, {"transparency": 5}])
def test_gif_equals_pillow(mode: str, options: dict[str, object]) -> None:
    assert_equals_pillow(encoded(image(mode), "GIF", **options))


def test_animated_gif_gives_the_first_frame() -> None:
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
def test_tiff_equals_pillow(mode: str, compression: str | None) -> None:
    assert_equals_pillow(encoded(image(mode), "TIFF", compression=compression))


def test_tiff_fax_and_white_is_zero() -> None:
    assert_equals_pillow(encoded(image("1"), "TIFF", compression="group4"))
    assert_equals_pillow(encoded(image("L"), "TIFF", tiffinfo={262: 0}))
    assert_equals_pillow(encoded(image("1"), "TIFF", tiffinfo={262: 0}))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_tiff_is_always_upright(orientation: int) -> None:
    assert_equals_pillow(encoded(image("RGB"), "TIFF", tiffinfo={274: orientation}))


Tags = dict[int, int | list[int]]


def tiff(samples: bytes | list[bytes], bits: list[int], photometric: int, tags: Tags | None = None) -> bytes:
    """An uncompressed little-endian TIFF of the samples: in one strip, or a strip for each plane. Pillow cannot write all."""
    strips = [samples] if isinstance(samples, bytes) else samples
    fields: Tags = {256: WIDTH, 257: HEIGHT, 258: bits, 259: 1, 262: photometric, 277: len(bits), 278: HEIGHT}
    places, counts = (324, 325) if 322 in (tags or {}) else (273, 279)  # of tiles or strips
    fields |= {284: 1 if len(strips) == 1 else 2, places: [0] * len(strips), counts: [len(strip) for strip in strips]}
    fields |= tags or {}
    values = {tag: [value] if isinstance(value, int) else value for tag, value in fields.items()}
    kinds = {tag: "I" if tag in (places, counts) else "H" for tag in values}
    at = 8 + 2 + 12 * len(values) + 4 + sum(4 * len(value) for value in values.values())
    values[places] = [at + sum(map(len, strips[:number])) for number in range(len(strips))]
    entries, behind = b"", b""
    for tag in sorted(values):
        field = struct.pack(f"<{len(values[tag])}{kinds[tag]}", *values[tag])
        if len(field) > 4:
            place = struct.pack("<I", 8 + 2 + 12 * len(values) + 4 + len(behind))
            behind += field + b"\0" * (len(field) % 2)
            field = place
        entries += struct.pack("<HHI", tag, 3 if kinds[tag] == "H" else 4, len(values[tag])) + field.ljust(4, b"\0")
    head = struct.pack("<2sHIH", b"II", 42, 8, len(values)) + entries + struct.pack("<I", 0) + behind
    return head.ljust(at, b"\0") + b"".join(strips)


def noise(bits: int, channels: int = 1) -> bytes:
    row = -(-WIDTH * channels * bits // 8)
    return np.random.default_rng(bits).integers(0, 256, HEIGHT * row, dtype=np.uint8).tobytes()


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_tiff_of_few_bits(bits: int) -> None:
    colours = np.random.default_rng(3).integers(0, 65536, 3 << bits).tolist()
    assert_equals_pillow(tiff(noise(bits), [bits], 0))
    assert_equals_pillow(tiff(noise(bits), [bits], 1))
    assert_equals_pillow(tiff(noise(bits), [bits], 3, {320: colours}))


def test_tiff_of_sixteen_bits_is_not_inverted() -> None:
    values = np.random.default_rng(4).integers(0, 600, WIDTH * HEIGHT).astype("<u2")
    assert_equals_pillow(tiff(values.tobytes(), [16], 0))
    assert_equals_pillow(tiff(values.tobytes(), [16], 1))


@pytest.mark.parametrize("bits", [8, 16])
def test_tiff_with_premultiplied_alpha(bits: int) -> None:
    values = np.frombuffer(noise(bits, 4), dtype=f"<u{bits // 8}").reshape(-1, 4).copy()
    values[:50, 3] = 0
    values[50:90, 3] = -1 & (1 << bits) - 1
    assert_equals_pillow(tiff(values.tobytes(), [bits] * 4, 2, {338: 1}))


@pytest.mark.parametrize(("photometric", "channels", "tags"), [(2, 3, {}), (2, 4, {338: 2}), (5, 4, {})])
def test_tiff_of_separate_planes(photometric: int, channels: int, tags: Tags) -> None:
    planes = [photograph(WIDTH, HEIGHT, seed).convert("L").tobytes() for seed in range(channels)]
    assert_equals_pillow(tiff(planes, [8] * channels, photometric, tags))


@pytest.mark.parametrize("mode", ["RGB", "L", "YCbCr"])
@pytest.mark.parametrize("size", [(53, 37), (300, 217)])  # one strip, and several
def test_tiff_with_jpeg_compression(mode: str, size: tuple[int, int]) -> None:
    for quality in (40, 95):
        assert_equals_pillow(encoded(photograph(*size).convert(mode), "TIFF", compression="jpeg", quality=quality))


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:0", "4:2:2"])
@pytest.mark.parametrize("tile", [None, (32, 16), (64, 48)])
def test_tiff_of_subsampled_jpegs(subsampling: str, tile: tuple[int, int] | None) -> None:
    """In strips of 16 rows, or in tiles that reach beyond the image, as libtiff's own programs write them."""
    whole = photograph(WIDTH, HEIGHT)
    width, height = tile or (WIDTH, 16)
    corners = [(x, y) for y in range(0, HEIGHT, height) for x in range(0, WIDTH, width)]
    bottom = [HEIGHT if tile is None else y + height for _, y in corners]
    areas = [(x, y, x + width, min(y + height, end)) for (x, y), end in zip(corners, bottom, strict=True)]
    jpegs = [without_markers(encoded(whole.crop(area), "JPEG", subsampling=subsampling)) for area in areas]
    tags: Tags = {259: 7, 530: [int(digit) for digit in {"4:4:4": "11", "4:2:0": "22", "4:2:2": "21"}[subsampling]], 284: 1}
    tags |= {278: height} if tile is None else {322: width, 323: height}
    assert_equals_pillow(tiff(jpegs, [8] * 3, 6, tags))


def without_markers(jpeg: bytes) -> bytes:
    """The JPEG without its first segment, JFIF's."""
    return jpeg[:2] + jpeg[4 + int.from_bytes(jpeg[4:6], "big") :]


def test_tiff_of_jpegs_that_contradict_its_tags() -> None:
    good, small = (without_markers(encoded(photograph(*size), "JPEG")) for size in ((WIDTH, HEIGHT), (WIDTH, 8)))
    gray = without_markers(encoded(photograph(WIDTH, HEIGHT).convert("L"), "JPEG"))
    assert decoded(tiff(good, [8] * 3, 6, {259: 7}))[0] == 0
    assert reason(decoded(tiff(small, [8] * 3, 6, {259: 7}))[0]) == "the compressed image data is damaged"
    assert reason(decoded(tiff(b"no JPEG", [8] * 3, 6, {259: 7}))[0]) == "the compressed image data is damaged"
    assert reason(decoded(tiff(good[:-200], [8] * 3, 6, {259: 7}))[0]) == "the image data ends too early (truncated file)"
    assert reason(decoded(tiff(gray, [8] * 3, 6, {259: 7}))[0]).startswith("a valid image of a kind")
    assert reason(decoded(tiff([good] * 5, [8] * 3, 6, {259: 7, 278: 8, 284: 1}))[0]) == "the compressed image data is damaged"


def test_tiff_kinds_that_would_differ_from_pillow_are_refused() -> None:
    refused = {
        "JPEG compression of CMYK": encoded(image("CMYK"), "TIFF", compression="jpeg"),
        "floating point": encoded(image("L").convert("F"), "TIFF"),
        "Lab": encoded(image("RGB").convert("LAB"), "TIFF"),
        "the lowest bit first": tiff(noise(8), [8], 1, {266: 2}),
        "bits, the lowest first": tiff(noise(1), [1], 1, {266: 2}),
        "planes of 16 bits": tiff([noise(16)] * 3, [16] * 3, 2),
        "signed": tiff(noise(8), [8], 1, {339: 2}),
    }
    for kind, data in refused.items():
        opened(data).load()  # it is sound
        assert reason(decoded(data)[0]).startswith("a valid image of a kind"), kind


def portable(kind: int, maximum: int, width: int = WIDTH, height: int = HEIGHT) -> bytes:
    """A file of magic number P1 to P6 with samples of all values."""
    rng = np.random.default_rng(10 * maximum + kind)
    shape = (height, width * (3 if kind in (3, 6) else 1))
    head = b"P%d # comment\r%d\t%d\n" % (kind, width, height)
    if kind in (1, 4):
        bits = rng.integers(0, 2, shape)
        return head + (np.packbits(bits, axis=1).tobytes() if kind == 4 else (bits + ord("0")).astype(np.uint8).tobytes())
    head += b"%d\n" % maximum
    if kind in (2, 3):
        return head + b" ".join(b"%d" % value for value in rng.integers(0, maximum + 1, shape).ravel()) + b"\n"
    size = ">u1" if maximum < 256 else ">u2"  # samples above the maximum count as white
    return head + rng.integers(0, 256 ** int(size[2]), shape).astype(size).tobytes()


@pytest.mark.parametrize("maximum", [1, 2, 15, 100, 254, 255, 256, 300, 4095, 32768, 65534, 65535])
@pytest.mark.parametrize("kind", range(1, 7))
def test_portable_formats_equal_pillow(kind: int, maximum: int) -> None:
    for width, height in ((WIDTH, HEIGHT), (1, 1), (8, 2)):
        assert_equals_pillow(portable(kind, maximum, width, height))


@pytest.mark.parametrize(
    "data",
    [
        b"P6\t1\x0b1\x0c255\rabc trailing",
        b"P5 1#in a number\n2 1 255 " + bytes(range(12)),
        b"P5 1 1 255 #\n",  # the sample is 35
        b"P3 1 1 255 1#also here\n2 3 4#",
        b"P1 3 1 01#\n1",
    ],
)
def test_unusual_portable_files_equal_pillow(data: bytes) -> None:
    assert_equals_pillow(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"P6 0 1 255 abc", "header of the image is damaged"),
        (b"P6 1 1 0 abc", "header of the image is damaged"),
        (b"P6 1 1 65536 abcdef", "header of the image is damaged"),
        (b"P6 1 1 255#\nabc", "header of the image is damaged"),
        (b"P6 -1 1 255 abc", "header of the image is damaged"),
        (b"P6 00000000001 1 255 abc", "header of the image is damaged"),
        (b"P6 1 1 ", "ends too early"),
        (b"P6 1 1 255 ab", "ends too early"),
        (b"P5 9000 9000 255 ab", "ends too early"),
        (b"P2 9000 9000 255 1 2", "ends too early"),
        (b"P6 9999999999 9999999999 255 abc", "pixel limit"),
        (b"P6 100000 100000 255 abc", "pixel limit"),
        (b"P3 1 1 255 1 2 256", "data is damaged"),
        (b"P3 1 1 255 1 x 3", "data is damaged"),
        (b"P1 3 1 012", "data is damaged"),
    ],
)
def test_damaged_portable_files_are_refused(data: bytes, words: str) -> None:
    out = np.full((1, 1, 1, 3), 77, dtype=np.uint8)
    assert words in reason(int(headrace.decode_into([data], out, boxes=[(0, 0, 1, 1)])[0]))
    with pytest.raises((OSError, ValueError, Image.DecompressionBombError)):
        opened(data).load()


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA"])
def test_bmp_equals_pillow(mode: str) -> None:
    assert_equals_pillow(encoded(image(mode), "BMP"))


@pytest.mark.parametrize("bits", [15, 16])
def test_bmp_of_sixteen_bits_equals_pillow(bits: int) -> None:
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
def test_cmyk_jpeg_equals_pillow(options: dict[str, object], adobe: str) -> None:
    data = encoded(image("CMYK"), "JPEG", **options)
    if adobe == "ycck":
        data = adobe_marker(data, 2)
    elif adobe == "none":
        position = data.index(b"\xff\xee")
        data = data[:position] + data[position + 16 :]
    assert_equals_pillow(data)


@pytest.mark.parametrize("transform", [0, 1])
def test_adobe_rgb_jpeg_equals_pillow(transform: int) -> None:
    data = encoded(image("RGB"), "JPEG", keep_rgb=True)
    assert_equals_pillow(adobe_marker(data, transform) if b"Adobe" in data else data)


@pytest.mark.parametrize("options", [{}, {"subsampling": "4:2:0"}, {"subsampling": "4:2:2"}])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_progressive_jpeg_equals_pillow(mode: str, options: dict[str, object]) -> None:
    assert_equals_pillow(encoded(image(mode), "JPEG", progressive=True, **options))


MAKERS: dict[str, Callable[[], bytes]] = {
    "PNG": lambda: encoded(image("RGB"), "PNG"),
    "WEBP": lambda: encoded(image("RGB"), "WEBP"),
    "WEBP lossless": lambda: encoded(image("RGB"), "WEBP", lossless=True),
    "GIF": lambda: encoded(image("P"), "GIF"),
    "TIFF": lambda: encoded(image("RGB"), "TIFF", compression="tiff_lzw"),
    "BMP": lambda: encoded(image("RGB"), "BMP"),
    "TIFF of JPEGs": lambda: encoded(image("RGB"), "TIFF", compression="jpeg"),
    "TIFF planes": lambda: tiff([noise(8)] * 3, [8] * 3, 2),
    "binary PPM": lambda: portable(6, 255),
    "binary PGM": lambda: portable(5, 1000),
    "binary PBM": lambda: portable(4, 1),
    "plain PPM": lambda: portable(3, 255),
    "plain PBM": lambda: portable(1, 1),
    "CMYK JPEG": lambda: encoded(image("CMYK"), "JPEG"),
    "progressive JPEG": lambda: encoded(image("RGB"), "JPEG", progressive=True),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_truncated_files_give_a_reason(kind: str) -> None:
    data = MAKERS[kind]()
    for sixteenths in range(1, 16):
        out = np.full((1, 8, 8, 3), 77, dtype=np.uint8)
        status = headrace.decode_into([data[: len(data) * sixteenths // 16]], out, boxes=[(0, 0, 8, 8)])
        assert status[0] != 0, f"{sixteenths}/16 of a {kind} file was taken"
        assert not out.any(), "a failed image leaves its slot black"


@pytest.mark.parametrize("kind", MAKERS)
def test_sizes_that_lie_are_refused_before_memory_is_allocated(kind: str) -> None:
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
