"""Loaders × datasets × transforms × collate functions: with lazy images and deferred items nothing differs from plain loading.

Values, targets, types, strides and the states of all generators are compared. `make test` runs some of the combinations, `slow`
all others and ten times as many.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deferred_helpers import always_lazy, described, generator_states, seeded
from equality_matrix import Case, cases, loader_of
from headrace.accelerate.deferred.loader import with_deferred_items
from headrace.accelerate.lazy import affine_transform
from headrace.accelerate.whole.recognition import Recognition
from PIL import Image
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

SEED = 15


@pytest.fixture(autouse=True)
def small_images_are_transformed_natively(monkeypatch: pytest.MonkeyPatch) -> None:
    """The images of the matrix are small, and left to Pillow otherwise."""
    monkeypatch.setattr(affine_transform, "FEWEST_PIXELS", 1)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make three classes of six small images: colour, gray, CMYK and progressive JPEGs, EXIF rotations, and a PNG."""
    rng = random.Random(SEED)
    root = tmp_path_factory.mktemp("matrix") / "images"
    for number in range(18):
        width, height = rng.choice([(48, 36), (33, 52), (64, 64), (26, 27)])
        values = np.random.default_rng(number).integers(0, 256, (height // 5 + 1, width // 5 + 1, 3), dtype=np.uint8)
        image = Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)
        exif = Image.Exif()
        exif[0x0112] = number % 8 + 1
        folder = root / f"class {number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        image = image.convert({4: "L", 9: "CMYK"}.get(number, "RGB"))
        kind = "PNG" if number == 13 else "JPEG"
        options: dict[str, Any] = {} if kind == "PNG" else {"quality": 92, "subsampling": number % 3}
        image.save(folder / f"{number:02d}.jpg", kind, exif=exif, progressive=number == 7, **options)
    return root


def own_iterator(loader: Any) -> Any:
    return (_MultiProcessingDataLoaderIter if loader.num_workers else _SingleProcessDataLoaderIter)(loader)


def in_part(loader: Any) -> Any:
    """Return the iterator that `headrace run` makes for a loader that is taken over in part."""
    changed = with_deferred_items(Recognition(always_lazy(loader)))
    return changed.prepare(own_iterator(changed.loader))


def found(case: Case, images: Path, iterator: Callable[[Any], Any]) -> Any:
    paths = sorted(str(path) for path in images.rglob("*.jpg"))
    loader = loader_of(case, images, paths)
    seeded(case.seed)
    batches = iterator(loader)
    first = described(list(batches))
    if case.loader == "persistent":
        batches._reset(loader)
        first = [first, described(list(batches))]
    own_generator = loader.generator.get_state().tolist() if loader.generator is not None else None
    return first, generator_states(), own_generator


def name(case: Case) -> str:
    return f"{case.loader}-{case.dataset}-{case.transform}-{case.collate}"


@pytest.mark.matrix(keep=30)
@pytest.mark.parametrize("case", cases(160, SEED), ids=name)
def test_nothing_differs(case: Case, images: Path) -> None:
    assert found(case, images, in_part) == found(case, images, own_iterator)


@pytest.mark.slow
@pytest.mark.skipif("HEADRACE_TEST_LONG" not in os.environ, reason="takes six minutes: set HEADRACE_TEST_LONG")
@pytest.mark.parametrize("block", range(10))
def test_nothing_differs_in_many_more_combinations(block: int, images: Path) -> None:
    for case in cases(160, SEED + 1 + block):
        assert found(case, images, in_part) == found(case, images, own_iterator), case


def test_the_matrix_has_descriptions_in_it(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.accelerate.deferred import filling as deferred_filling

    counted: list[int] = []
    own = deferred_filling.fill_items
    monkeypatch.setattr(deferred_filling, "fill_items", lambda items, *rest: counted.append(len(items)) or own(items, *rest))
    found(Case("main", "pair", "imagenet", "default", 0), images, in_part)
    assert sum(counted) >= 12 and max(counted) > 1
