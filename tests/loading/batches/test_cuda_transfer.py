"""Batches on the GPU: the same values as on the CPU, ready for the consumer's stream. Needs CUDA."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import headrace
import numpy as np
import pytest
from headrace.errors import UsageError
from headrace.loading.batches import cuda_transfer
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


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_table_of_values_is_made_on_the_host_so_that_no_stream_reads_it_too_early(
    monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    from torch.overrides import TorchFunctionMode

    sources = []

    class Recorded(TorchFunctionMode):
        def __torch_function__(self, function: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
            if function is torch.Tensor.to:
                sources.append(args[0].device.type)
            return function(*args, **(kwargs or {}))  # type: ignore[operator]

    monkeypatch.setattr(cuda_transfer, "cuda_device", lambda name: torch.device("meta"))
    with Recorded():
        made = cuda_transfer.Transfer("cuda", np.zeros((3, 256), np.float32), dtype)
    assert made._encoded is not None and made._encoded.dtype == getattr(torch, dtype)
    assert set(sources) == {"cpu"}, "a cast on the device is queued on a stream that the copy stream does not wait for"


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a CUDA device")
def test_error_without_a_gpu_names_the_next_step(image_folder: MakeFolder) -> None:
    with pytest.raises(UsageError, match="no CUDA device") as caught:
        headrace.Loader(image_folder(), 4, imagenet_train(32), device="cuda")
    assert "doctor" in str(caught.value.hint)
    with pytest.raises(UsageError, match="not offered"):
        headrace.Loader(image_folder(name="second"), 4, imagenet_train(32), device="meta")
