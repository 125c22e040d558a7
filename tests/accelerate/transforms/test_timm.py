"""Loaders of timm's create_loader are taken over, or decode natively, with the same batches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate_helpers import own_batches
from headrace.accelerate.transforms.translate import translate
from headrace.accelerate.whole.iterator import NativeIterator
from seeded import require_equal_passes

pytest.importorskip("timm")

from timm.data import create_dataset, create_loader

# timm leaves the image files that it opens to the collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]


def loader(folder: Path, *, training: bool, workers: int = 1, prefetcher: bool = True, **options: Any) -> Any:
    data = create_dataset("", root=str(folder), split="train", is_training=training)
    return create_loader(
        data,
        (3, 48, 48),
        7,
        is_training=training,
        num_workers=workers,
        device=torch.device("cpu"),
        use_prefetcher=prefetcher,
        persistent_workers=False,
        **options,
    )


def inner(made: Any) -> Any:
    """The DataLoader under timm's PrefetchLoader."""
    return getattr(made, "loader", made)


def assert_equal(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert type(mine) is type(other)
        for a, b in zip(mine, other, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride() and torch.equal(a, b)


@pytest.mark.parametrize("prefetcher", [True, False])
def test_evaluation_equals_timm(folder: Path, taken_over: list[str], prefetcher: bool) -> None:
    made = inner(loader(folder, training=False, prefetcher=prefetcher, interpolation="bicubic", crop_pct=0.875))
    iterator = iter(made)
    assert isinstance(iterator, NativeIterator), taken_over
    assert_equal(list(iterator), own_batches(made))


def test_training_without_colour_is_taken_over(folder: Path, taken_over: list[str]) -> None:
    made = loader(folder, training=True, color_jitter=None, interpolation="bicubic", re_prob=0.3)
    batches = list(made)
    assert [tuple(images.shape) for images, _ in batches] == [(7, 3, 48, 48)] * 2
    assert all(images.dtype == torch.float32 and labels.dtype == torch.int64 for images, labels in batches)
    assert (
        "taken over: decode, RandomResizedCrop, RandomHorizontalFlip" in taken_over[-1]
        and "in 1 native thread" in taken_over[-1]
    )


def test_timms_own_erasing_is_left_to_the_script(folder: Path, taken_over: list[str]) -> None:
    made = loader(folder, training=True, color_jitter=None, interpolation="bicubic", re_prob=0.3, prefetcher=False)
    assert len(list(made)) == 2
    assert "in part" in taken_over[-1] and "RandomErasing of timm" in taken_over[-1]


@pytest.mark.parametrize("interpolation", ["bicubic", "random"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_training_is_equal_in_every_value(folder: Path, interpolation: str, workers: int) -> None:
    made = inner(loader(folder, training=True, interpolation=interpolation, workers=workers))
    require_equal_passes(made)
    expected = "bicubic" if interpolation == "bicubic" else ("bilinear", "bicubic")
    assert translate(made.dataset.transform).geometry[0].arguments["interpolation"] == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_training_with_rand_augment_is_decoded_natively(folder: Path, taken_over: list[str], workers: int) -> None:
    made = inner(loader(folder, training=True, interpolation="random", workers=workers, auto_augment="rand-m9-mstd0.5"))
    both = []
    for walk in (own_batches, list):
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        both.append(walk(made))
    assert_equal(*both)
    assert "in part: the decode, crop and resize of JPEGs that Pillow opens" in taken_over[-1]
