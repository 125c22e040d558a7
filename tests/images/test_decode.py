"""decode_into gives the pixels of Pillow's decode, crop, resize and flip, or a status with a reason."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import headrace
import numpy as np
import pytest
from headrace.errors import DecodeError, UsageError
from headrace.images.decode import reason
from PIL import Image
from sample_images import jpeg


def reference(data: bytes, box: tuple[int, int, int, int], flip: bool, size: int = 224) -> np.ndarray:
    """The same image by Pillow."""
    x, y, w, h = box
    image = (
        Image.open(io.BytesIO(data)).convert("RGB").crop((x, y, x + w, y + h)).resize((size, size), Image.Resampling.BILINEAR)
    )
    return np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image)


def random_box(rng: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
    return int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1)), w, h


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "gray"])
def test_equals_pillow_on_generated_images(subsampling: str) -> None:
    rng = np.random.default_rng(1)
    images, boxes, flips = [], [], []
    for seed in range(12):
        width, height = int(rng.integers(1, 400)), int(rng.integers(1, 300))
        if subsampling == "gray":
            file = io.BytesIO()
            Image.open(io.BytesIO(jpeg(width, height, seed))).convert("L").save(file, "JPEG")
            images.append(file.getvalue())
        else:
            images.append(jpeg(width, height, seed, quality=60 + 3 * seed, subsampling=subsampling))
        boxes.append(random_box(rng, width, height))
        flips.append(bool(seed % 2))
    out = np.full((len(images), 224, 224, 3), 99, dtype=np.uint8)
    status = headrace.decode_into(images, out, boxes=boxes, flips=flips, threads=2)
    assert status.tolist() == [0] * len(images)
    for image, result, box, flip in zip(images, out, boxes, flips, strict=True):
        np.testing.assert_array_equal(result, reference(image, box, flip))


@pytest.mark.parametrize("size", [(1, 1), (4096, 3), (2, 4096), (4093, 37)])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:0"])
@pytest.mark.parametrize("blocks", [0, 5])
def test_equals_pillow_at_extreme_sizes_and_with_restart_markers(size: tuple[int, int], subsampling: str, blocks: int) -> None:
    image = jpeg(*size, subsampling=subsampling, restart_marker_blocks=blocks)
    rng = np.random.default_rng(3)
    boxes = [(0, 0, *size), *(random_box(rng, *size) for _ in range(3))]
    out = np.full((len(boxes), 64, 64, 3), 99, dtype=np.uint8)
    assert not headrace.decode_into([image] * len(boxes), out, boxes=boxes).any()
    for result, box in zip(out, boxes, strict=True):
        np.testing.assert_array_equal(result, reference(image, box, False, 64))


FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@pytest.mark.parametrize("resample", FILTERS)
def test_equals_pillow_with_each_filter(resample: str) -> None:
    image = jpeg(211, 167, seed=8)
    rng = np.random.default_rng(5)
    boxes = [random_box(rng, 211, 167) for _ in range(20)]
    out = np.full((len(boxes), 48, 56, 3), 99, dtype=np.uint8)
    assert not headrace.decode_into([image] * len(boxes), out, boxes=boxes, resample=resample).any()
    opened = Image.open(io.BytesIO(image)).convert("RGB")
    for result, (x, y, w, h) in zip(out, boxes, strict=True):
        np.testing.assert_array_equal(result, opened.crop((x, y, x + w, y + h)).resize((56, 48), FILTERS[resample]))


def test_equals_pillow_on_photographs(sample_images: list[Path]) -> None:
    rng = np.random.default_rng(2)
    images = [path.read_bytes() for path in sample_images[::8]]
    boxes = [random_box(rng, *Image.open(io.BytesIO(image)).size) for image in images]
    flips = [bool(number % 2) for number in range(len(images))]
    out = np.empty((len(images), 224, 224, 3), dtype=np.uint8)
    assert not headrace.decode_into(images, out, boxes=boxes, flips=flips, threads=2).any()
    for image, result, box, flip in zip(images, out, boxes, flips, strict=True):
        np.testing.assert_array_equal(result, reference(image, box, flip))


def test_decodes_the_whole_image_into_a_tensor() -> None:
    torch = pytest.importorskip("torch")
    image = jpeg(120, 90)
    out = torch.zeros((1, 64, 64, 3), dtype=torch.uint8)
    assert headrace.decode_into([image], out).tolist() == [0]
    np.testing.assert_array_equal(out[0].numpy(), reference(image, (0, 0, 120, 90), False, 64))


def test_a_bad_image_gives_a_reason_and_black_pixels() -> None:
    good = jpeg(100, 80)
    images = [good, b"", b"plain text, not an image", good[: len(good) // 2], good]
    out = np.full((5, 32, 32, 3), 99, dtype=np.uint8)
    status = headrace.decode_into(images, out, boxes=[(0, 0, 50, 50)] * 4 + [(90, 0, 50, 50)], flips=[False] * 5)
    assert status[0] == 0
    assert all(status[1:])
    assert not out[1:].any()
    assert "empty" in reason(status[1])
    assert "truncated" in reason(status[3])
    assert "box" in reason(status[4])


def without_segment(data: bytes, marker: int) -> bytes:
    """The JPEG without all segments of one kind before its scan."""
    kept, position = data[:2], 2
    while True:
        end = position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        if data[position + 1] == 0xDA:
            return kept + data[position:]
        kept += b"" if data[position + 1] == marker else data[position:end]
        position = end


def replaced(data: bytes, marker: int, offset: int, new: bytes) -> bytes:
    """The JPEG with bytes of its first segment `marker` (offset 0: the segment's FF) replaced."""
    at = data.index(bytes([0xFF, marker])) + offset
    return data[:at] + new + data[at + len(new) :]


def inserted(data: bytes, new: bytes) -> bytes:
    """The JPEG with bytes put into the middle of its entropy-coded data, not behind an FF."""
    at = (data.index(b"\xff\xda") + len(data)) // 2
    at += data[at - 1] == 0xFF
    return data[:at] + new + data[at:]


DAMAGE = {
    "cut in the header": (lambda data: data[:100], "too early"),
    "cut in the scan": (lambda data: data[: len(data) * 2 // 3], "too early"),
    "no end marker": (lambda data: data[:-2], "too early"),
    "no quantisation table": (lambda data: without_segment(data, 0xDB), "table is missing"),
    "no Huffman table of that number": (lambda data: replaced(data, 0xDA, 6, b"\x33"), "table is missing"),
    "no frame header": (lambda data: without_segment(data, 0xC0), "header|too early"),
    "height 0": (lambda data: replaced(data, 0xC0, 5, b"\0\0"), "header|kind"),
    "more pixels than allowed": (lambda data: replaced(data, 0xC0, 5, b"\xff\xff\xff\xff"), "pixel limit"),
    "twice as high as its data": (
        lambda data: replaced(data, 0xC0, 5, (320).to_bytes(2, "big")),
        "restart markers|damaged|early",
    ),
    "sampling factor 0": (lambda data: replaced(data, 0xC0, 11, b"\0"), "header"),
    "table of impossible codes": (lambda data: replaced(data, 0xC4, 5, b"\xff" * 16), "header"),
    "a frame header in the scan": (
        lambda data: inserted(data, b"\xff\xc0\0\x0b\x08\0\x08\0\x08\1\1\x11\0"),
        "restart|damaged|header",
    ),
    "an end marker in the scan": (lambda data: inserted(data, b"\xff\xd9"), "restart|damaged|early"),
    "a restart marker too many": (lambda data: inserted(data, b"\xff\xd0"), "restart markers"),
    "lossless": (lambda data: replaced(data, 0xC0, 1, b"\xc3"), "kind"),
}
MARKED_DAMAGE = {
    "an interval that does not fit": (lambda data: replaced(data, 0xDD, 4, b"\0\x07"), "restart markers"),
    "no interval": (lambda data: without_segment(data, 0xDD), "restart markers"),
    "a marker missing": (lambda data: data.replace(b"\xff\xd1", b"", 1), "restart markers"),
    "a marker of another number": (lambda data: data.replace(b"\xff\xd1", b"\xff\xd2", 1), "restart markers"),
}


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("damage", [*DAMAGE, *MARKED_DAMAGE])
def test_each_kind_of_damage_gives_its_reason_and_black_pixels(damage: str, marked: bool) -> None:
    if damage in MARKED_DAMAGE and not marked:
        pytest.skip("needs restart markers")
    change, reasons = (DAMAGE | MARKED_DAMAGE)[damage]
    good = jpeg(240, 160, quality=92)
    good = headrace.restart_markers(good) if marked else good
    bad = change(good)
    assert bad != good
    out = np.full((3, 32, 32, 3), 99, dtype=np.uint8)
    status = headrace.decode_into([good, bad, good], out, threads=1)
    assert status[0] == status[2] == 0
    assert re.search(reasons, reason(status[1])), reason(status[1])
    assert not out[1].any()
    np.testing.assert_array_equal(out[0], out[2])


def test_motion_jpeg_without_huffman_tables_uses_the_standard_ones() -> None:
    image = without_segment(jpeg(90, 70), 0xC4)
    out = np.zeros((1, 40, 40, 3), dtype=np.uint8)
    assert headrace.decode_into([image], out, boxes=[(5, 7, 60, 50)]).tolist() == [0]
    np.testing.assert_array_equal(out[0], reference(image, (5, 7, 60, 50), False, 40))


def test_a_truncated_file_is_bad_for_every_crop() -> None:
    image = jpeg(400, 300, quality=95)
    out = np.empty((1, 16, 16, 3), dtype=np.uint8)
    for box in [(0, 0, 400, 300), (0, 0, 20, 20), (380, 280, 20, 20)]:
        assert headrace.decode_into([image[:-2000]], out, boxes=[box])[0] != 0, box


def test_arguments_that_do_not_fit_raise_usage_errors() -> None:
    image = jpeg(40, 40)
    out = np.zeros((1, 8, 8, 3), dtype=np.uint8)
    for arguments, words in [
        (([image], np.zeros((1, 8, 8, 3), dtype=np.float32)), "uint8"),
        (([image, image], out), "2 images"),
        (([image], out, [(0, 0, 8, 8)] * 2), "2 boxes"),
        (([image], out, [(0, 0, 8)]), "boxes"),
        (([image], out, None, None, 0), "threads"),
        (([image], np.zeros((1, 8, 16, 3), dtype=np.uint8)[:, :, ::2]), "contiguous"),
    ]:
        with pytest.raises(UsageError, match=words):
            headrace.decode_into(*arguments)
    with pytest.raises(UsageError, match="interpolation"):
        headrace.decode_into([image], out, resample="cubic")  # type: ignore[arg-type]


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_an_index_changes_no_pixel(subsampling: str) -> None:
    images = [jpeg(300, 200, seed, subsampling=subsampling) for seed in range(4)]
    indexes = [headrace.checkpoint_index(image) for image in images]
    assert all(index.rows > 0 for index in indexes)
    rng = np.random.default_rng(4)
    plain, indexed = np.zeros((2, 4, 64, 64, 3), dtype=np.uint8)
    for _ in range(5):
        boxes = [random_box(rng, 300, 200) for _ in images]
        assert not headrace.decode_into(images, plain, boxes=boxes).any()
        kept = [index if number % 2 else index.to_bytes() for number, index in enumerate(indexes)]
        assert not headrace.decode_into(images, indexed, boxes=boxes, index=kept).any()
        np.testing.assert_array_equal(plain, indexed)


def test_an_index_of_another_image_is_refused() -> None:
    image, other = jpeg(300, 200, 1), jpeg(300, 200, 2)
    out = np.full((1, 16, 16, 3), 9, dtype=np.uint8)
    status = headrace.decode_into([image], out, boxes=[(40, 40, 100, 100)], index=[headrace.checkpoint_index(other)])
    assert "index" in reason(status[0])
    assert not out.any()
    with pytest.raises(UsageError, match="index"):
        headrace.decode_into([image], out, index=[b"not an index"])
    assert headrace.checkpoint_index(headrace.restart_markers(image)).rows == 0
    with pytest.raises(DecodeError, match="truncated"):
        headrace.checkpoint_index(image[:900])


def test_dct_scale_is_off_by_default_and_close_to_exact_when_on() -> None:
    y, x = np.mgrid[0:600, 0:800]
    waves = np.stack([127 + 90 * np.sin(x / 40), 127 + 90 * np.cos(y / 30), 127 + 60 * np.sin((x + y) / 50)], axis=-1)
    file = io.BytesIO()
    Image.fromarray(waves.astype(np.uint8)).save(file, "JPEG", quality=92, subsampling="4:2:0")
    image = file.getvalue()
    exact, scaled, small = np.zeros((3, 1, 128, 128, 3), dtype=np.uint8)
    box = [(10, 20, 700, 560)]  # more than four times the target each way
    assert not headrace.decode_into([image], exact, boxes=box, dct_scale="off").any()
    assert not headrace.decode_into([image], scaled, boxes=box, dct_scale="auto").any()
    assert (exact != scaled).any()
    assert np.abs(exact.astype(int) - scaled).mean() < 2
    np.testing.assert_array_equal(exact[0], reference(image, box[0], False, 128))
    # A crop that is not twice the target is decoded as it is.
    headrace.decode_into([image], small, boxes=[(0, 0, 200, 250)], dct_scale="auto")
    np.testing.assert_array_equal(small[0], reference(image, (0, 0, 200, 250), False, 128))
    with pytest.raises(UsageError, match="dct_scale"):
        headrace.decode_into([image], exact, dct_scale="half")  # type: ignore[arg-type]


FOLLOW = """
import io, sys
import numpy as np
from PIL import Image
import headrace
from headrace import _native

rng = np.random.default_rng(0)
file = io.BytesIO()
Image.fromarray(rng.integers(0, 256, (900, 70, 3), dtype=np.uint8)).save(file, "JPEG", quality=95)
_native.follow_pillow(int(sys.argv[1]))
out = np.zeros((1, 64, 64, 3), dtype=np.uint8)
assert headrace.decode_into([file.getvalue()], out).tolist() == [0]
picture = Image.open(file).convert("RGB")
across_first = picture.resize((64, 900), Image.Resampling.BILINEAR).resize((64, 64), Image.Resampling.BILINEAR)
down_first = picture.resize((70, 64), Image.Resampling.BILINEAR).resize((64, 64), Image.Resampling.BILINEAR)
print((out[0] == np.asarray(across_first)).all(), (out[0] == np.asarray(down_first)).all())
"""


@pytest.mark.parametrize(("major", "expected"), [(12, "True False"), (13, "False True")])
def test_the_order_of_resize_passes_follows_the_version_of_pillow(major: int, expected: str) -> None:
    run = subprocess.run([sys.executable, "-c", FOLLOW, str(major)], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == expected, run.stderr
