"""A packed dataset through the loader with decode="gpu": the CUDA decoder's kernels, on the host, give the CPU's batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_gpu
import headrace
import pytest
import torch
from cuda_on_host import HostLauncher
from headrace.gpu.decoder import CudaJpegDecoder
from headrace.loading.feeding import gpu_decode
from headrace.transforms import CenterCrop, Compose, RandomHorizontalFlip, Resize, imagenet_train

TRANSFORMS = {
    "train": imagenet_train(48),
    "evaluate": Compose([Resize(64), CenterCrop(48), RandomHorizontalFlip()]),
}


def epoch(path: Path, transform: Any, **options: Any) -> list[Any]:
    with headrace.Loader(path, 8, transform, seed=3, threads=2, drop_last=False, **options) as loader:
        return [[part.clone() for part in batch] for batch in loader]


@pytest.mark.parametrize("decode", ["gpu", "split"])
@pytest.mark.parametrize("name", sorted(TRANSFORMS))
def test_batches_of_a_packed_dataset_are_those_of_the_cpu(
    image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, decode: str
) -> None:
    headrace.pack(image_folder(classes=4, per_class=11), tmp_path / "packed")
    expected = epoch(tmp_path / "packed", TRANSFORMS[name])
    launcher = HostLauncher()

    def make(device: str, size: tuple[int, int]) -> CudaJpegDecoder:
        return CudaJpegDecoder("cpu", size, launcher=launcher)

    fake_gpu.install(monkeypatch)
    monkeypatch.setattr(gpu_decode, "CudaJpegDecoder", make)
    found = epoch(tmp_path / "packed", TRANSFORMS[name], device="cuda", decode=decode)
    assert launcher.launches > 0, "the kernels ran"
    assert len(found) == len(expected) == 6
    for own, other in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(own, other, strict=True))
