"""Items: crop, resize, window and flips give the pixels of Pillow's chain, in the memory and with the values asked for."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import PIL
import pytest
from headrace._native import Engine, Store, fill_items, follow_pillow
from headrace.errors import UsageError
from headrace.images.decode import reason
from PIL import Image
from sample_images import data_folder, jpeg, photograph

FILTERS = ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
Rectangle = tuple[int, int, int, int]
Item = tuple[Any, Rectangle | None, tuple[int, int] | None, str, Rectangle | None, bool, bool]


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def sources() -> dict[str, bytes]:
    """Return an image of each kind that is decoded natively, none with a side that divides by 8."""
    image = photograph(213, 157, 3)
    return {
        "4:4:4": jpeg(213, 157, 1, subsampling="4:4:4"),
        "4:2:2": jpeg(157, 213, 2, subsampling="4:2:2"),
        "4:2:0": jpeg(301, 95, 3),
        "restart markers": jpeg(213, 157, 4, restart_marker_blocks=5),
        "progressive": jpeg(213, 157, 5, progressive=True),
        "gray": saved(image.convert("L"), "JPEG"),
        "CMYK": saved(image.convert("CMYK"), "JPEG"),
        "PNG": saved(image, "PNG"),
        "PNG palette": saved(image.convert("P"), "PNG"),
        "BMP": saved(image, "BMP"),
        "WebP": saved(image, "WEBP", lossless=True),
        "GIF": saved(image.convert("P"), "GIF"),
        "TIFF": saved(image, "TIFF"),
        "PPM": saved(image, "PPM"),
    }


def box_in(rng: np.random.Generator, width: int, height: int) -> Rectangle:
    w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
    return int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1)), w, h


def corners(box: Rectangle) -> Rectangle:
    x, y, w, h = box
    return x, y, x + w, y + h


def by_pillow(item: Item, horizontal_first: bool = False) -> np.ndarray:
    """Return what Pillow makes of an item; `horizontal_first`: as before Pillow 13, one pass after the other."""
    source, box, size, name, window, flip_x, flip_y = item
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as opened:
        image = opened.convert("RGB")
    if box:
        image = image.crop(corners(box))
    if size:
        resample = Image.Resampling[name.upper()]
        if horizontal_first and name != "nearest":
            image = image.resize((size[0], image.height), resample)
        image = image.resize(size, resample)
    if window:
        image = image.crop(corners(window))
    if flip_x:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if flip_y:
        image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    return np.asarray(image)


def random_item(rng: np.random.Generator, source: Any, size: tuple[int, int]) -> Item:
    """Return an item with random parts; each part is missing in some."""
    box = box_in(rng, *size) if rng.random() < 0.6 else None
    shape = (int(rng.integers(1, 300)), int(rng.integers(1, 300))) if rng.random() < 0.8 else None
    grid = shape or (box[2:] if box else size)
    window = box_in(rng, *grid) if rng.random() < 0.7 or not (box or shape) else None
    flips = bool(rng.integers(2)), bool(rng.integers(2))
    return (source, box, shape, FILTERS[int(rng.integers(len(FILTERS)))], window, *flips)


def shape_of(item: Item) -> tuple[int, int]:
    """Return (height, width) of an item's result."""
    _, box, size, _, window, _, _ = item
    width, height = window[2:] if window else size or box[2:]  # type: ignore[index]
    return height, width


def filled(items: list[Item], threads: int = 1) -> list[np.ndarray]:
    """Return each result as uint8 [H, W, 3], from memory that was full of another value."""
    counts = [3 * height * width for height, width in map(shape_of, items)]
    memory = np.full(sum(counts), 77, np.uint8)
    assert fill_items(items, [(Store("hwc"), memory)], None, threads) == [0] * len(items)
    parts = np.split(memory, np.cumsum(counts)[:-1])
    return [part.reshape(*shape_of(item), 3) for part, item in zip(parts, items, strict=True)]


@pytest.mark.parametrize("kind", sources())
def test_random_items_equal_pillow(kind: str) -> None:
    data = sources()[kind]
    size = Image.open(io.BytesIO(data)).size
    rng = np.random.default_rng(len(kind))
    items = [random_item(rng, data, size) for _ in range(40)]
    for item, result in zip(items, filled(items, threads=2), strict=True):
        np.testing.assert_array_equal(result, by_pillow(item), err_msg=str(item[1:]))


@pytest.mark.parametrize("major", [12, 13])
def test_windows_equal_the_whole_resize_in_both_orders_of_passes(major: int) -> None:
    """A tall image that shrinks most in height takes the vertical pass first since Pillow 13; its window must, too."""
    data = jpeg(180, 640, 6)
    rng = np.random.default_rng(major)
    items: list[Item] = []
    for name in FILTERS:
        for size in [(150, 120), (90, 100), (180, 64), (200, 300)]:
            items += [(data, None, size, name, box_in(rng, *size), bool(rng.integers(2)), False) for _ in range(4)]
    results: list[np.ndarray] = []
    follow_pillow(major)
    try:
        thread = threading.Thread(target=lambda: results.extend(filled(items)))  # a new thread follows the version
        thread.start()
        thread.join()
    finally:
        follow_pillow(int(PIL.__version__.split(".")[0]))
    installed_is_old = int(PIL.__version__.split(".")[0]) < 13
    if major == 13 and installed_is_old:
        pytest.skip("the installed Pillow cannot tell the order of version 13")
    for item, result in zip(items, results, strict=True):
        np.testing.assert_array_equal(result, by_pillow(item, horizontal_first=major < 13), err_msg=str(item[1:]))


def test_the_two_orders_differ_so_that_the_test_above_can_fail() -> None:
    item: Item = (jpeg(180, 640, 6), None, (150, 120), "bilinear", (3, 4, 100, 90), False, False)
    image = by_pillow(item)
    assert (image != by_pillow(item, horizontal_first=True)).any() or int(PIL.__version__.split(".")[0]) < 13


def test_photographs_equal_pillow() -> None:
    folder = data_folder()
    if folder is None or not (folder / "imagenet-sample").is_dir():
        pytest.skip("no sample images; set HEADRACE_TEST_DATA to a folder that holds imagenet-sample/")
    paths = sorted(path for path in (folder / "imagenet-sample").rglob("*") if path.is_file())[::23]
    rng = np.random.default_rng(9)
    items = []
    for path in paths:
        with Image.open(path) as image:
            size = image.size
        items += [random_item(rng, str(path), size) for _ in range(2)]  # neighbours with one source
    assert len(items) > 20
    for item, result in zip(items, filled(items, threads=2), strict=True):
        np.testing.assert_array_equal(result, by_pillow(item), err_msg=str(item))


def test_a_window_touches_only_its_own_part_of_the_file() -> None:
    """Damage below the window is not decoded: the window is as before, the whole image is not."""
    data = jpeg(400, 800, 7)
    item: Item = (data, None, (200, 400), "bilinear", (10, 20, 100, 80), False, False)
    (before,) = filled([item])
    at = len(data) * 3 // 4
    damaged = data[:at] + data[at:-2].replace(b"\x3b", b"\x3d") + data[-2:]
    assert damaged != data
    (after,) = filled([(damaged, *item[1:])])  # type: ignore[list-item]
    np.testing.assert_array_equal(before, after)
    (whole,) = filled([(data, None, (200, 400), "bilinear", None, False, False)])
    out = np.zeros((1, 400, 200, 3), np.uint8)
    status = fill_items([(damaged, None, (200, 400), "bilinear", None, False, False)], [(Store("hwc"), out)])
    assert status != [0] or (out[0] != whole).any()


VALUES = np.random.default_rng(0).integers(0, 2**32, (3, 256), dtype=np.uint32).view(np.float32)  # NaNs and infinities too


@pytest.mark.parametrize("layout", ["hwc", "chw"])
@pytest.mark.parametrize("table", [None, "float32", "16 bits"])
def test_layouts_and_values_copy_the_bits_of_the_table(layout: str, table: str | None) -> None:
    values: Any = {None: None, "float32": VALUES, "16 bits": VALUES.view(np.uint32).astype(np.uint16)}[table]
    bits = np.arange(256, dtype=np.uint8)[None].repeat(3, 0) if values is None else values.view(f"u{values.itemsize}")
    items: list[Item] = [
        (jpeg(90, 70, seed), (3, 2, 60, 50), (40, 30), "bilinear", (1, 2, 31, 17), bool(seed % 2), False) for seed in range(5)
    ]
    shape = (5, 17, 31, 3) if layout == "hwc" else (5, 3, 17, 31)
    out = np.zeros(shape, bits.dtype)
    assert fill_items(items, [(Store(layout, values) if values is not None else Store(layout), out)], threads=2) == [0] * 5
    for item, result in zip(items, out, strict=True):
        image = by_pillow(item)
        expected = np.stack([bits[channel][image[..., channel]] for channel in range(3)], axis=-1)
        np.testing.assert_array_equal(result if layout == "hwc" else result.transpose(1, 2, 0), expected)


def test_torch_tensors_equal_the_scripts_own_transforms() -> None:
    torch = pytest.importorskip("torch")
    v1 = pytest.importorskip("torchvision.transforms")
    chain = v1.Compose([v1.ToTensor(), v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])
    ramp = Image.fromarray(np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, 2))
    item: Item = (jpeg(120, 90), None, (64, 48), "bilinear", (5, 6, 32, 32), True, True)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        values = chain(ramp)[:, 0].to(dtype).contiguous()
        table = values.numpy() if dtype == torch.float32 else values.view(torch.int16).numpy().view(np.uint16)
        for memory_format in (torch.contiguous_format, torch.channels_last):
            batch = torch.zeros((2, 3, 32, 32), dtype=dtype).to(memory_format=memory_format)
            layout = "chw" if batch.is_contiguous() else "hwc"
            dense = batch if layout == "chw" else batch.permute(0, 2, 3, 1)
            assert fill_items([item, item], [(Store(layout, table), dense.view(torch.uint8).numpy())]) == [0, 0]
            expected = chain(Image.fromarray(by_pillow(item))).to(dtype)
            assert torch.equal(batch[0], expected) and torch.equal(batch[1], expected)


def test_places_spread_items_over_targets_and_leave_gaps_alone() -> None:
    data, other = jpeg(100, 80, 1), jpeg(60, 90, 2)
    items: list[Item] = [
        (data, None, (8, 6), "bilinear", None, False, False),
        (data, (5, 5, 40, 40), (4, 4), "bicubic", None, True, False),
        (other, None, (5, 7), "box", (1, 1, 3, 5), False, True),
    ]
    small, batch = np.full((2, 100), 9, np.uint8), np.full(400, 9, np.uint8)
    chw = Store("chw", VALUES)
    assert fill_items(items, [(Store("hwc"), small), (chw, batch)], [(0, 200 - 144), (1, 12), (0, 2)]) == [0, 0, 0]
    flat = small.ravel()
    np.testing.assert_array_equal(flat[56:200].reshape(6, 8, 3), by_pillow(items[0]))
    np.testing.assert_array_equal(flat[2:47].reshape(5, 3, 3), by_pillow(items[2]))
    assert (flat[:2] == 9).all() and (flat[47:56] == 9).all()
    bits = VALUES.view(np.uint32)
    image = by_pillow(items[1])
    expected = np.stack([bits[channel][image[..., channel]] for channel in range(3)])
    np.testing.assert_array_equal(batch[12:204].view(np.uint32).reshape(3, 4, 4), expected)
    assert (batch[:12] == 9).all() and (batch[204:] == 9).all()


def test_neighbours_with_one_source_equal_single_items(tmp_path: Path) -> None:
    """Near and far crops of one file: decoded together and one by one, with and without a file of its own."""
    rng = np.random.default_rng(4)
    path = tmp_path / "image.jpg"
    for data in (jpeg(500, 400, 1), jpeg(400, 500, 2, restart_marker_blocks=7), saved(photograph(200, 300), "PNG")):
        path.write_bytes(data)
        with Image.open(path) as image:
            size = image.size
        for source in (data, str(path), path):
            items = [random_item(rng, source, size) for _ in range(6)]
            items += [(source, (0, 0, 30, 30), None, "box", None, False, False)]
            items += [(source, (size[0] - 30, size[1] - 30, 30, 30), (9, 9), "lanczos", None, True, False)]
            for item, result in zip(items, filled(items), strict=True):
                np.testing.assert_array_equal(result, by_pillow(item), err_msg=str(item[1:]))


def test_sources_may_be_any_memory() -> None:
    """Slices of one block, as of shared memory: neighbours over the same bytes are one source, others are not."""
    images = [jpeg(120, 90, 1), jpeg(120, 90, 2), saved(photograph(50, 60), "PNG")]
    block = bytearray(b"".join(images))
    starts = np.cumsum([0, *map(len, images)])
    array = np.frombuffer(block, np.uint8)
    rng = np.random.default_rng(6)
    items, expected = [], []
    for number, data in enumerate(images):
        start, end = starts[number : number + 2]
        for source in (array[start:end], memoryview(block)[start:end], memoryview(data), bytearray(data)):
            item = random_item(rng, source, (50, 60) if number == 2 else (120, 90))
            items.append(item)
            expected.append(by_pillow((data, *item[1:])))
    for result, image in zip(filled(items, threads=2), expected, strict=True):
        np.testing.assert_array_equal(result, image)
    block[:] = bytes(len(block))  # nothing of it is remembered
    out = np.full((1, 8, 8, 3), 9, np.uint8)
    item = (array[: starts[1]], None, (8, 8), "bilinear", None, False, False)
    assert fill_items([item], [(Store("hwc"), out)]) != [0] and not out.any()


def test_failed_items_have_a_status_and_zero_memory(tmp_path: Path) -> None:
    good = jpeg(100, 80)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    crop: Any = ((10, 10, 50, 40), (16, 16), "bilinear", None, False, False)
    cases: list[tuple[Any, str]] = [
        (b"", "empty"),
        (b"plain text, not an image", "format"),
        (good[: len(good) // 2], "too early"),
        (str(tmp_path / "missing.jpg"), "not be read"),
        (str(tmp_path / "pipe"), "not be read"),  # without waiting for a writer
        (str(tmp_path), "not be read"),
        ("/dev/zero", "not be read"),
        (tmp_path / "empty", "empty"),
        (str(tmp_path / "with\0null"), "not be read"),
        (good, ""),
    ]
    out = np.full((len(cases) + 3, 16, 16, 3), 99, np.uint8)
    items = [(source, *crop) for source, _ in cases]
    items += [
        (good, (60, 0, 50, 40), (16, 16), "bilinear", None, False, False),  # leaves the image
        (good, (-1, 0, 50, 40), (16, 16), "bilinear", None, False, False),
        (good, None, None, "box", (90, 0, 16, 16), False, False),  # the window leaves the unresized image
    ]
    statuses = fill_items(items, [(Store("hwc"), out)], threads=2)
    for (_, words), status in zip(cases, statuses, strict=False):
        assert words in reason(status) if words else status == 0
    assert [reason(status) for status in statuses[-3:]] == ["the crop box is empty or leaves the image"] * 3
    assert not out[: len(cases) - 1].any() and not out[len(cases) :].any()
    np.testing.assert_array_equal(out[len(cases) - 1], by_pillow(items[len(cases) - 1]))  # type: ignore[arg-type]


def test_names_that_are_not_utf8_are_paths(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9 \xff.jpg"
    with open(path, "wb") as file:
        file.write(jpeg(50, 40))
    item: Item = (os.fsdecode(path), None, (20, 10), "bilinear", None, False, False)
    np.testing.assert_array_equal(filled([item])[0], by_pillow(item))


HUGE = 2**31
BAD_WINDOWS: list[Rectangle] = [
    (-1, 0, 16, 16), (0, -5, 16, 16), (17, 0, 16, 16), (0, 25, 16, 16), (0, 0, 0, 16), (0, 0, 16, 0), (0, 0, -16, 16),
    (2 * HUGE - 1, 0, 16, 16), (2 * HUGE, 0, 16, 16), (2**62, 0, 16, 16), (0, 0, 2 * HUGE - 1, 2), (5, 5, 2 * HUGE - 5, 16),
]  # fmt: skip


@pytest.mark.parametrize("window", BAD_WINDOWS)
def test_windows_that_leave_the_resized_image_are_refused(window: Rectangle) -> None:
    out = np.full((1, 16, 16, 3), 9, np.uint8)
    with pytest.raises(ValueError, match=r"item 0: the window .* leaves the resized image"):
        fill_items([(jpeg(60, 50), None, (32, 40), "bilinear", window, False, False)], [(Store("hwc"), out)])
    with pytest.raises(UsageError, match=r"decode_into: item 0: .*(window|pixels)"):
        headrace.decode_into([jpeg(60, 50)], out, sizes=[(32, 40)], windows=[window])
    assert (out == 9).all()


def test_arguments_that_do_not_fit_are_refused_before_anything_is_written() -> None:
    good = jpeg(60, 50)
    item: Any = (good, None, (8, 8), "bilinear", None, False, False)
    out = np.full(400, 9, np.uint8)
    hwc = Store("hwc")
    read_only = np.zeros(400, np.uint8)
    read_only.flags.writeable = False
    whole: Any = (good, None, None, "bilinear", None, False, False)
    cases: list[tuple[type[Exception], str, Any]] = [
        (ValueError, "does not fit", ([item, item, item], [(hwc, out)])),
        (ValueError, "does not fit", ([item], [(hwc, out)], [(0, 209)])),
        (ValueError, "does not fit", ([item], [(hwc, out)], [(0, 2**63)])),
        (ValueError, "target 1 of 1", ([item], [(hwc, out)], [(1, 0)])),
        (ValueError, "target 0 of 0", ([item], [])),
        (ValueError, "items 0 and 1 have one place", ([item, item], [(hwc, out)], [(0, 0), (0, 191)])),
        (ValueError, "items 0 and 1 have one place", ([item, item], [(hwc, out), (hwc, out[:200])], [(0, 0), (1, 0)])),
        (ValueError, "1 places for 2 items", ([item, item], [(hwc, out)], [(0, 0)])),
        (ValueError, "writable and C-contiguous", ([item], [(hwc, read_only)])),
        (ValueError, "writable and C-contiguous", ([item], [(hwc, out[::2])])),
        (ValueError, "must tell the size", ([whole], [(hwc, out)])),
        (ValueError, "resize to 0×8", ([(good, None, (0, 8), *item[3:])], [(hwc, out)])),
        (ValueError, "resize to", ([(good, None, (8, 2**20 + 1), *item[3:])], [(hwc, out)])),
        (ValueError, "resize to", ([(good, None, (-8, 8), *item[3:])], [(hwc, out)])),
        (ValueError, "no resampling filter", ([(good, None, (8, 8), "cubic", *item[4:])], [(hwc, out)])),
        (TypeError, "item 1 is no", ([item, item[:6]], [(hwc, out)])),
        (TypeError, "item 0: its source", ([(memoryview(good)[::2], *item[1:])], [(hwc, out)])),
        (TypeError, "item 0: its source", ([(None, *item[1:])], [(hwc, out)])),
    ]
    for error, message, arguments in cases:
        with pytest.raises(error, match=message):
            fill_items(*arguments)
    assert (out == 9).all()
    assert fill_items([], [(hwc, out)]) == []


def test_decode_into_writes_windows_of_resized_images() -> None:
    rng = np.random.default_rng(8)
    images, sizes, windows, boxes, flips = [], [], [], [], []
    for seed in range(12):
        width, height = int(rng.integers(20, 300)), int(rng.integers(20, 300))
        images.append(jpeg(width, height, seed, subsampling=["4:2:0", "4:4:4"][seed % 2]))
        size = (int(rng.integers(32, 200)), int(rng.integers(24, 200)))
        sizes.append(size)
        windows.append((int(rng.integers(0, size[0] - 31)), int(rng.integers(0, size[1] - 23)), 32, 24))
        boxes.append(box_in(rng, width, height))
        flips.append(bool(seed % 3))
    out = np.empty((12, 24, 32, 3), np.uint8)
    indexes = [headrace.checkpoint_index(image) if number % 2 else None for number, image in enumerate(images)]
    for name in FILTERS:
        for index in (None, indexes):
            out[:] = 5
            given: Any = {"resample": name, "sizes": sizes, "windows": windows, "boxes": boxes, "flips": flips, "index": index}
            assert not headrace.decode_into(images, out, threads=2, **given).any()
            for number, result in enumerate(out):
                item: Item = (images[number], boxes[number], sizes[number], name, windows[number], flips[number], False)
                np.testing.assert_array_equal(result, by_pillow(item), err_msg=f"{name} {number}")


def test_decode_into_refuses_sizes_and_windows_that_do_not_fit() -> None:
    out = np.full((1, 16, 16, 3), 9, np.uint8)
    cases: list[dict[str, Any]] = [
        {"sizes": [(32, 32)]},  # without a window, the whole resized image must fit
        {"sizes": [(32, 32)], "windows": [(0, 0, 8, 16)]},
        {"windows": [(1, 0, 16, 16)]},
        {"sizes": [(0, 16)], "windows": [(0, 0, 16, 16)]},
        {"sizes": [(2**70, 16)], "windows": [(0, 0, 16, 16)]},
        {"sizes": [(16, 16)] * 2},
        {"windows": [(0, 0, 16)]},
        {"sizes": [16]},
    ]
    for arguments in cases:
        with pytest.raises(UsageError):
            headrace.decode_into([jpeg(60, 50)], out, **arguments)
    assert (out == 9).all()


def test_the_engine_fills_items_ahead() -> None:
    rng = np.random.default_rng(2)
    data = [jpeg(150, 120, seed) for seed in range(8)]
    engine = Engine(2)
    batches = []
    for batch in range(4):
        items: list[Item] = [
            (one, box_in(rng, 150, 120), (24, 20), FILTERS[batch], None, False, bool(batch % 2))
            for one in data
            for _ in range(2)
        ]
        out = np.full((16, 20, 24, 3), 9, np.uint8)
        batches.append((items, out, engine.submit_items(items, [(Store("hwc"), out)])))
    for items, out, job in batches:
        assert job.wait(20) and job.statuses() == [0] * 16
        for item, result in zip(items, out, strict=True):
            np.testing.assert_array_equal(result, by_pillow(item))
    assert engine.counters()["images"] == 64
    with pytest.raises(ValueError, match="does not fit"):
        engine.submit_items(batches[0][0], [(Store("hwc"), batches[0][1][:3])])
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        engine.submit_items(batches[0][0], [(Store("hwc"), batches[0][1])])


def test_cancelled_items_leave_no_thread_at_the_memory() -> None:
    data = jpeg(900, 700)
    items: list[Item] = [(data, None, (64, 64), "lanczos", None, False, False)] * 40
    items = [(bytes(data), *item[1:]) if number % 3 else item for number, item in enumerate(items)]  # type: ignore[misc]
    out = np.zeros((40, 64, 64, 3), np.uint8)
    engine = Engine(2)
    job = engine.submit_items(items, [(Store("hwc"), out)])
    job.cancel()
    after = out.copy()
    assert job.wait(0)
    engine.close()
    np.testing.assert_array_equal(out, after)
    job = None  # type: ignore[assignment]
