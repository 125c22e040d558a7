"""The CUDA decoder, compiled for the host, gives the pixels of the CPU kernel, bit for bit, or leaves the image to it."""

from __future__ import annotations

import ctypes
import io
from pathlib import Path

import headrace
import numpy as np
import pytest
import torch
from cuda_on_host import HostLauncher
from headrace import _native
from headrace.gpu.decoder import CudaJpegDecoder
from headrace.gpu.decoder.arguments import KERNELS, BatchArguments
from headrace.images.restart_markers import restart_markers
from sample_images import jpeg, photograph

SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0", "4:4:0", "gray")


def marked(width: int, height: int, seed: int = 0, subsampling: str = "4:2:0", tile: int = 32, **options: object) -> bytes:
    """A generated JPEG with restart markers."""
    if subsampling == "gray":
        file = io.BytesIO()
        photograph(width, height, seed).convert("L").save(file, "JPEG", **options)
        return restart_markers(file.getvalue(), tile=tile)
    if subsampling == "4:4:0":  # Pillow does not write it: a square 4:2:2 file whose factors are exchanged has as many blocks
        side = max(width, height)
        data = bytearray(jpeg(side, side, seed, subsampling="4:2:2", **options))
        frame = data.index(b"\xff\xc0")
        assert data[frame + 11] == 0x21
        data[frame + 11] = 0x12
        return restart_markers(bytes(data), tile=tile)
    return restart_markers(jpeg(width, height, seed, subsampling=subsampling, **options), tile=tile)


def random_boxes(rng: np.random.Generator, files: list[bytes]) -> np.ndarray:
    rows = []
    for width, height in map(_native.image_size, files):
        w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
        rows.append((int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1)), w, h))
    return np.array(rows)


def decoder(size: tuple[int, int] = (224, 224), *, backwards: bool = False, **options: object) -> CudaJpegDecoder:
    return CudaJpegDecoder("cpu", size, launcher=HostLauncher(backwards=backwards), **options)


def assert_equal(files: list[bytes], own: CudaJpegDecoder, boxes: np.ndarray, flips: np.ndarray, **options: object) -> None:
    """The GPU's kernels decode all files, with the CPU kernel's pixels."""
    expected = np.empty((len(files), own.height, own.width, 3), np.uint8)
    assert not headrace.decode_into(files, expected, boxes=boxes, flips=flips, **options).any()
    batch = own.decode(files, boxes, flips, **options)
    assert batch.statuses().tolist() == [0] * len(files)
    np.testing.assert_array_equal(batch.images.permute(0, 2, 3, 1).numpy(), expected)


def test_the_source_and_the_plan_agree_on_sizes() -> None:
    pieces, records = _native.CudaPlan.layout()
    assert HostLauncher().sizes() == [*pieces, *records, ctypes.sizeof(BatchArguments)]
    assert [kernel.threads for kernel in KERNELS] == [pieces[0], 8 * pieces[1], pieces[2], pieces[3], pieces[3]]


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_equals_the_cpu_kernel_with_random_boxes(subsampling: str) -> None:
    rng = np.random.default_rng(SUBSAMPLINGS.index(subsampling))
    files = []
    for seed in range(16):
        width, height = int(rng.integers(1, 420)), int(rng.integers(1, 320))
        files.append(marked(width, height, seed, subsampling, quality=int(rng.integers(30, 98))))
    flips = rng.integers(0, 2, len(files)).astype(bool)
    assert_equal(files, decoder(), random_boxes(rng, files), flips)


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (8, 8), (9, 17), (17, 9), (33, 31), (227, 149), (1500, 3), (5, 900)])
def test_equals_the_cpu_kernel_at_odd_sizes(subsampling: str, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(size)
    files = [marked(*size, 1, subsampling, tile=tile) for tile in (8, 32, 100)]
    boxes = random_boxes(rng, files)
    boxes[0] = (0, 0, *_native.image_size(files[0]))
    assert_equal(files, decoder((7, 300)), boxes, np.array([False, True, False]))


def test_equals_the_cpu_kernel_where_the_vertical_pass_comes_first_and_where_nothing_is_resized() -> None:
    file = marked(300, 700, 3)
    boxes = np.array([(10, 5, 250, 690), (3, 3, 64, 600), (20, 40, 64, 48), (1, 1, 64, 300), (9, 2, 200, 48)])
    assert_equal([file] * len(boxes), decoder((48, 64)), boxes, np.array([True, False, True, False, True]))


def test_windows_of_a_larger_resize_are_decoded() -> None:
    files = [marked(300, 200, 1), marked(181, 260, 2, "4:4:4")]
    boxes = np.array([(0, 0, 300, 200), (0, 0, 181, 260)])
    options = {"sizes": [(120, 80), (80, 114)], "windows": [(28, 8, 64, 64), (8, 25, 64, 64)]}
    assert_equal(files, decoder((64, 64)), boxes, np.array([True, False]), **options)


def test_the_order_of_blocks_and_threads_changes_nothing() -> None:
    rng = np.random.default_rng(8)
    files = [marked(260, 190, seed, SUBSAMPLINGS[seed % 5]) for seed in range(5)]
    assert_equal(files, decoder(backwards=True), random_boxes(rng, files), np.zeros(5, bool))


def test_a_batch_larger_than_the_scratch_memory_is_decoded_in_groups() -> None:
    rng = np.random.default_rng(9)
    files = [marked(200, 150, seed) for seed in range(9)]
    own = decoder((64, 64), scratch_bytes=600_000, threads=3)
    assert_equal(files, own, random_boxes(rng, files), np.ones(9, bool))
    assert own._launcher.launches > 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32])
def test_a_table_of_values_normalises(dtype: torch.dtype) -> None:
    values = ((torch.arange(256) / 255 - 0.45) / torch.tensor([[0.21], [0.22], [0.23]])).to(dtype)
    files = [marked(90, 70), b"no image", jpeg(90, 70, 5)]  # the third has no markers, but it is small
    expected = np.empty((3, 32, 32, 3), np.uint8)
    headrace.decode_into(files, expected)
    batch = decoder((32, 32), values=values).decode(files)
    assert batch.images.shape == (3, 3, 32, 32) and batch.images.is_contiguous(memory_format=torch.channels_last)
    assert batch.complete().tolist() == [0, 2, 0]
    pixels = torch.from_numpy(expected).int()
    wanted = torch.stack([values[channel][pixels[..., channel]] for channel in range(3)], dim=1)
    wanted[1] = 0
    assert torch.equal(batch.images, wanted)


def test_what_the_gpu_does_not_decode_is_decoded_by_the_cpu() -> None:
    plain = jpeg(400, 300, 1)
    cmyk, progressive, png = io.BytesIO(), jpeg(200, 150, 2, progressive=True), io.BytesIO()
    photograph(100, 80).convert("CMYK").save(cmyk, "JPEG")
    photograph(100, 80).save(png, "PNG")
    files = [marked(200, 150), plain, cmyk.getvalue(), progressive, png.getvalue(), marked(99, 98)[:-40], b"", marked(50, 40)]
    boxes = [(0, 0, 40, 40)] * 7 + [(0, 0, 51, 40)]
    batch = decoder((32, 32)).decode(files, boxes, [True] * 8)
    assert batch.refused.tolist() == [0, 2, 1, 1, 1, 3, 1, 4]
    expected = np.empty((8, 32, 32, 3), np.uint8)
    statuses = headrace.decode_into(files, expected, boxes=boxes, flips=[True] * 8)
    assert batch.complete(threads=2).tolist() == statuses.tolist() == [0, 0, 0, 0, 0, 3, 1, 10]
    np.testing.assert_array_equal(batch.images.permute(0, 2, 3, 1).numpy(), expected)


def damaged_copies(count: int, seed: int) -> list[bytes]:
    """Files whose entropy-coded data was changed in a few places; headers are sound."""
    rng = np.random.default_rng(seed)
    copies = []
    for number in range(count):
        data = bytearray(marked(130, 110, number % 7, SUBSAMPLINGS[number % 5]))
        scan = data.index(b"\xff\xda") + 14
        for place in rng.integers(scan, len(data) - 2, int(rng.integers(1, 9))):
            data[place] = int(rng.integers(0, 256))
        copies.append(bytes(data))
    return copies


def test_damaged_files_give_the_cpu_kernels_pixels_and_statuses() -> None:
    files = damaged_copies(300, 4)
    expected = np.empty((len(files), 48, 48, 3), np.uint8)
    statuses = headrace.decode_into(files, expected, threads=2)
    batch = decoder((48, 48)).decode(files)
    outcomes = batch.statuses()
    assert {0, 3, 6} <= set(outcomes.tolist()) <= {0, 2, 3, 6}, "some decode, some are damaged in structure, some in data"
    assert batch.complete(threads=2).tolist() == statuses.tolist()
    np.testing.assert_array_equal(batch.images.permute(0, 2, 3, 1).numpy(), expected)


def test_wild_coefficients_are_transformed_as_on_the_cpu() -> None:
    """Quantisation tables of large values make products that leave 16 bits."""
    files = []
    for seed in range(12):
        data = bytearray(marked(64, 48, seed, SUBSAMPLINGS[seed % 5], quality=95))
        table = data.index(b"\xff\xdb") + 5
        data[table : table + 64] = np.random.default_rng(seed).integers(1, 256, 64, dtype=np.uint8).tobytes()
        files.append(bytes(data))
    rng = np.random.default_rng(5)
    assert_equal(files, decoder((48, 64)), random_boxes(rng, files), np.zeros(12, bool))


def test_sample_images_with_restart_markers_equal_the_cpu_kernel(sample_images: list[Path]) -> None:
    files = [restart_markers(path.read_bytes()) for path in sample_images[:96]]
    rng = np.random.default_rng(11)
    batch = decoder().decode(files, random_boxes(rng, files))
    assert np.isin(batch.refused, (0, 1)).all() and (batch.refused == 0).mean() > 0.9
    decoded = [file for file, refused in zip(files, batch.refused, strict=True) if refused == 0]
    assert_equal(decoded, decoder(), random_boxes(rng, decoded), rng.integers(0, 2, len(decoded)).astype(bool))


def test_an_empty_batch_is_no_error() -> None:
    batch = decoder().decode([])
    assert batch.images.shape == (0, 3, 224, 224) and batch.complete().shape == (0,)
