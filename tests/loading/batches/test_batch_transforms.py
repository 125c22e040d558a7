"""RandomErasing, MixUp, CutMix: torchvision v2's arithmetic and distributions, repeatable draws, refused arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from headrace.errors import StateError, UsageError
from headrace.loading.batches.batch_transforms import BatchKey
from headrace.loading.batches.batch_transforms import apply_batch_transforms as apply
from headrace.transforms import Compose, CutMix, MixUp, Normalize, RandomChoice, RandomErasing, RandomResizedCrop

torch = pytest.importorskip("torch")
v2 = pytest.importorskip("torchvision.transforms.v2")

MakeFolder = Callable[..., Path]


def loader(root: Path, *steps: Any, **options: Any) -> headrace.Loader:
    defaults: dict[str, Any] = {"batch_size": 4, "seed": 7, "threads": 2, "dtype": "float32"}
    return headrace.Loader(root, transform=Compose([RandomResizedCrop(24), *steps]), **(defaults | options))


def key(step: int = 0, count: int = 8, epoch: int = 0) -> BatchKey:
    return BatchKey(3, epoch, step, 0, np.arange(count, dtype=np.uint64) + np.uint64(count * step))


def batch(count: int = 8, side: int = 32) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 3, side, side, generator=generator), torch.arange(count) % 5


def test_mixup_equals_torchvision_for_the_same_share() -> None:
    images, labels = batch()
    mixed, soft = apply([MixUp(alpha=0.4, num_classes=5)], images.clone(), labels, key(), 99)
    share = float(soft[1, 1])
    theirs = v2.MixUp(num_classes=5)
    params = {"labels": labels, "batch_size": 8, "lam": share}
    assert torch.allclose(mixed, theirs.transform(images, params), atol=1e-6)
    assert torch.allclose(soft, theirs._mixup_label(labels, lam=share))
    assert soft.dtype == torch.float32 and soft.shape == (8, 5)


def test_cutmix_exchanges_one_rectangle_and_weighs_labels_by_area() -> None:
    images, labels = batch()
    for step in range(20):
        mixed, soft = apply([CutMix(num_classes=5)], images.clone(), labels, key(step), 5)
        changed = (mixed != images).any(dim=1)
        assert (changed == changed[0]).all(), "the same rectangle in every image"
        rows, columns = changed[0].any(1).nonzero(), changed[0].any(0).nonzero()
        area = 0.0
        if len(rows):
            top, bottom, left, right = int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1
            area = (bottom - top) * (right - left) / 32**2
            assert torch.equal(mixed[:, :, top:bottom, left:right], images.roll(1, 0)[:, :, top:bottom, left:right])
        assert torch.allclose(soft.sum(1), torch.ones(8)) and math.isclose(float(soft[1, 1]), 1 - area, abs_tol=1e-6)


def test_shares_follow_the_beta_distribution() -> None:
    images, labels = batch(2, 1)
    for alpha in (0.2, 1.0):
        shares = [float(apply([MixUp(alpha=alpha)], images, labels, key(step, 2), 5)[1][1, 1]) for step in range(3000)]
        # Beta(a, a): mean 1/2, variance 1 / (4 (2a + 1)); five standard errors of the mean.
        deviation = math.sqrt(1 / (4 * (2 * alpha + 1)))
        assert abs(np.mean(shares) - 0.5) < 5 * deviation / math.sqrt(3000)
        assert abs(np.std(shares) - deviation) < 0.03


def test_erasing_is_distributed_as_torchvisions() -> None:
    torch.manual_seed(0)
    image = torch.ones(3, 40, 60)
    theirs = [_erased(v2.RandomErasing(p=0.6)(image)) for _ in range(3000)]
    ours = []
    for step in range(30):
        images, _ = apply([RandomErasing(p=0.6)], torch.ones(100, 3, 40, 60), torch.zeros(100), key(step, 100), 1)
        ours += [_erased(one) for one in images]
    for feature in range(5):
        ours_sorted, theirs_sorted = (np.sort([row[feature] for row in rows]) for rows in (ours, theirs))
        values = np.concatenate([ours_sorted, theirs_sorted])
        distance = np.abs(np.searchsorted(ours_sorted, values, "right") - np.searchsorted(theirs_sorted, values, "right")).max()
        # Two-sample Kolmogorov-Smirnov, false alarm 1e-6.
        assert distance / 3000 < math.sqrt(math.log(2 / 1e-6) / 2) * math.sqrt(2 / 3000), feature


def _erased(image: Any) -> tuple[float, ...]:
    """Return 1 and (top, left, height, width) of the zero rectangle, or zeros without one."""
    gone = image[0] == 0
    if not gone.any():
        return (0.0, 0.0, 0.0, 0.0, 0.0)
    rows, columns = gone.any(1).nonzero(), gone.any(0).nonzero()
    top, left = int(rows[0]), int(columns[0])
    return (1.0, top, left, int(rows[-1]) + 1 - top, int(columns[-1]) + 1 - left)


@pytest.mark.parametrize("value", [7.0, (1, 2, 3), "random"])
def test_erasing_writes_its_value(value: Any) -> None:
    images, _ = apply([RandomErasing(p=1, value=value)], torch.zeros(16, 3, 32, 32), torch.zeros(16), key(0, 16), 1)
    erased = [one[:, (one != 0).all(0)] for one in images]
    if value == "random":
        values = torch.cat([one.flatten() for one in erased])
        assert abs(float(values.mean())) < 0.1 and abs(float(values.std()) - 1) < 0.1
    else:
        expected = torch.tensor(value if isinstance(value, tuple) else [value] * 3, dtype=torch.float32)
        assert all(torch.equal(one, expected[:, None].expand_as(one)) and one.numel() for one in erased)


def test_a_loader_repeats_its_draws_and_resumes(image_folder: MakeFolder) -> None:
    root = image_folder(classes=3, per_class=8)
    steps = [Normalize([0.5], [0.5]), RandomErasing(p=0.9, value="random"), RandomChoice([MixUp(alpha=0.3), CutMix()])]
    whole = list(loader(root, *steps))
    assert all(labels.shape == (4, 3) and labels.dtype == torch.float32 for _, labels in whole)
    again = loader(root, *steps, threads=1)
    iterator = iter(again)
    for _ in range(3):
        next(iterator)
    state = again.state_dict()
    resumed = loader(root, *steps)
    resumed.load_state_dict(state)
    for (images, labels), (other, soft) in zip(whole[3:], resumed, strict=True):
        assert torch.equal(images, other) and torch.equal(labels, soft)
    assert len({tuple(labels[0].tolist()) for _, labels in whole}) > 3, "each batch has its own share"
    assert not torch.equal(whole[0][0], next(iter(resumed))[0]), "each epoch has its own"
    with pytest.raises(StateError, match="transform"):
        loader(root, *steps[:2]).load_state_dict(state)
    assert "RandomErasing" in again.explain()
    assert whole[0][0].is_contiguous(memory_format=torch.channels_last)


def test_cutmix_and_erasing_take_uint8(image_folder: MakeFolder) -> None:
    images, labels = next(iter(loader(image_folder(), RandomErasing(p=1, value=9), CutMix(num_classes=4), dtype="uint8")))
    assert images.dtype == torch.uint8 and labels.shape == (4, 4)
    assert (images == 9).all(dim=1).any()


def test_refuses_arguments_that_cannot_work(image_folder: MakeFolder) -> None:
    root = image_folder()
    for steps, options, words in [
        ([MixUp()], {"dtype": "uint8"}, "MixUp makes floats"),
        ([RandomErasing(value="random")], {"dtype": "uint8"}, "RandomErasing makes floats"),
        ([CutMix()], {"output": "numpy"}, "CutMix works on torch tensors only"),
        ([MixUp(), Normalize([0.5], [0.5])], {}, "Normalize after MixUp"),
    ]:
        with pytest.raises(UsageError, match=words):
            loader(root, *steps, **options)
    with pytest.raises(UsageError, match="label of 2 among 2 classes"):
        list(loader(root, MixUp(num_classes=2)))
    for make, words in [
        (lambda: MixUp(alpha=0), "alpha"),
        (lambda: CutMix(num_classes=0), "num_classes"),
        (lambda: RandomErasing(p=2), "p must be"),
        (lambda: RandomErasing(scale=(0.5, 1.5)), "share of the image"),
        (lambda: RandomErasing(value=(1, 2)), "value must be"),
        (lambda: RandomChoice([MixUp()], p=[0.5, 0.5]), "weight"),
    ]:
        with pytest.raises(UsageError, match=words):
            make()
