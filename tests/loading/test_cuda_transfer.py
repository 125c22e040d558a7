"""Batches on the GPU: the same values as on the CPU, ready for the consumer's stream. Needs CUDA."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import headrace
import pytest
from headrace.errors import UsageError
from headrace.transforms import imagenet_train

torch = pytest.importorskip("torch")
MakeFolder = Callable[..., Path]


def both(root: Path, dtype: str, normalize: bool) -> list[tuple[object, object]]:
    """Return all batches of one epoch on the CPU and on the GPU, in pairs."""
    loaders = [
        headrace.Loader(root, 4, imagenet_train(64, normalize=normalize), seed=1, threads=2, device=device, dtype=dtype)
        for device in ("cpu", "cuda")
    ]
    return list(zip(*loaders, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("dtype", "normalize"), [("uint8", False), ("float32", True), ("bfloat16", True), ("float16", False)])
def test_gpu_batches_equal_cpu_batches(image_folder: MakeFolder, dtype: str, normalize: bool) -> None:
    pairs = both(image_folder(classes=4, per_class=8), dtype, normalize)
    assert len(pairs) == 8
    for (on_cpu, labels), (on_gpu, gpu_labels) in pairs:
        assert on_gpu.is_cuda
        assert on_gpu.dtype == on_cpu.dtype
        assert on_gpu.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(gpu_labels.cpu(), labels)
        if dtype == "uint8":
            assert torch.equal(on_gpu.cpu(), on_cpu)
        else:
            tolerance = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 1.6e-2}[dtype]
            torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_busy_consumer_never_sees_a_batch_change(image_folder: MakeFolder) -> None:
    loader = headrace.Loader(image_folder(classes=4, per_class=16), 8, imagenet_train(64), seed=2, device="cuda", prefetch=2)
    weight = torch.randn(4096, 4096, device="cuda")
    sums = []
    for images, _ in loader:
        for _ in range(20):
            weight = weight @ weight / 100
        sums.append((images.float() * 1.0).sum(dim=(1, 2, 3)))  # queued long after the copy, on the consumer's stream
    expected = [
        images.float().sum(dim=(1, 2, 3))
        for images, _ in headrace.Loader(loader.dataset, 8, imagenet_train(64), seed=2, device="cpu")
    ]
    for got, want in zip(sums, expected, strict=True):
        torch.testing.assert_close(got.cpu(), want)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a CUDA device")
def test_error_without_a_gpu_names_the_next_step(image_folder: MakeFolder) -> None:
    with pytest.raises(UsageError, match="no CUDA device") as caught:
        headrace.Loader(image_folder(), 4, imagenet_train(32), device="cuda")
    assert "doctor" in str(caught.value.hint)
    with pytest.raises(UsageError, match="not offered"):
        headrace.Loader(image_folder(name="second"), 4, imagenet_train(32), device="meta")
