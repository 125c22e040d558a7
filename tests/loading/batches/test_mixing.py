"""MixUp and CutMix of the loader and of the trainer: draws and bits are those of earlier versions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from headrace.loading.batches.batch_transforms import BatchKey, apply_batch_transforms
from headrace.transforms import CutMix, MixUp

torch = pytest.importorskip("torch")
from headrace.training.learning.mixing import mix  # noqa: E402 (needs torch)

Rectangle = tuple[int, int, int, int]

# Of commit 64d3fc3, for four steps: share, rectangle (top, bottom, left, right), and the share that CutMix leaves.
LOADER: list[tuple[float, Rectangle, float]] = [
    (0.8251129388809204, (10, 28, 7, 21), 0.671875),
    (0.6529866456985474, (0, 14, 0, 10), 0.8177083134651184),
    (9.368844621349126e-05, (0, 26, 2, 24), 0.2552083432674408),
    (0.7136427760124207, (0, 17, 11, 24), 0.7122395634651184),
]
TRAINER: list[tuple[float, Rectangle, float]] = [
    (1.3102194538315157e-05, (9, 20, 11, 20), 0.87109375),
    (0.9600224650687021, (8, 28, 3, 18), 0.609375),
    (0.5117183557731416, (11, 29, 0, 8), 0.8125),
    (0.9933071635213271, (10, 28, 14, 24), 0.765625),
]


@pytest.fixture
def batch() -> tuple[Any, Any]:
    images = torch.rand(8, 3, 32, 24, generator=torch.Generator().manual_seed(1))
    return images, torch.arange(8) % 5


def pasted(images: Any, rectangle: Rectangle) -> Any:
    top, bottom, left, right = rectangle
    expected = images.clone()
    expected[:, :, top:bottom, left:right] = images.roll(1, 0)[:, :, top:bottom, left:right]
    return expected


@pytest.mark.parametrize("step", range(4))
def test_loader_mixes_as_before(batch: tuple[Any, Any], step: int) -> None:
    images, labels = batch
    key = BatchKey(3, 0, step, 0, np.arange(8, dtype=np.uint64))
    drawn, rectangle, own = LOADER[step]

    mixed, soft = apply_batch_transforms([MixUp(alpha=0.4)], images.clone(), labels, key, 5)
    assert float(soft[1, 1]) == pytest.approx(drawn, rel=1e-6)
    share = float(np.random.Generator(np.random.PCG64(hash_of(key))).beta(0.4, 0.4))
    assert torch.equal(mixed, images.roll(1, 0) * (1.0 - share) + images * share)

    mixed, soft = apply_batch_transforms([CutMix()], images.clone(), labels, key, 5)
    assert torch.equal(mixed, pasted(images, rectangle))
    assert float(soft[1, 1]) == pytest.approx(own, rel=1e-6)


def hash_of(key: BatchKey) -> int:
    from headrace.loading.order.arithmetic import hashed

    return hashed(key.seed, key.epoch, key.step, key.rank, key.view, 0)


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_trainer_mixes_as_before(batch: tuple[Any, Any], step: int, dtype: Any) -> None:
    images, labels = batch[0].to(dtype), batch[1]
    drawn, rectangle, own = TRAINER[step]

    torch.manual_seed(step)
    mixed, partners, share = mix(images, labels, mixup=0.2, cutmix=0)
    assert share == pytest.approx(drawn, rel=1e-9)
    assert torch.equal(mixed, torch.lerp(images.roll(1, 0), images, share))
    assert torch.equal(partners, labels.roll(1, 0))

    torch.manual_seed(step)
    before = images.clone()
    mixed, partners, share = mix(images, labels, mixup=0, cutmix=1.0)
    assert torch.equal(mixed, pasted(images, rectangle)) and share == own
    assert torch.equal(images, before), "the caller's batch stays as it is"
