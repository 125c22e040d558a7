"""What a loader is, is found once for each iterator, whichever way takes the loader over."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from deferred_helpers import OwnImages
from headrace.accelerate import hook
from headrace.accelerate.runtime.unsupported import Refusal
from headrace.accelerate.script_code import own_transforms
from headrace.accelerate.settings import CHECK
from headrace.accelerate.whole import recognition
from headrace.accelerate.whole.folders import RecognisedLoader
from headrace.accelerate.whole.items import RecognisedItems
from headrace.accelerate.whole.recognition import Recognition
from PIL import ImageFilter
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

END = [v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)]
KNOWN = v1.Compose([v1.RandomResizedCrop(24), *END])


class Sharpened:
    """A transform of the script's own that headrace understands."""

    def __call__(self, image: Any) -> Any:
        return image.filter(ImageFilter.GaussianBlur(1.5))


class Measured:
    """One that headrace does not understand: it looks at the image."""

    def __call__(self, image: Any) -> Any:
        return image.crop((0, 0, image.width, image.height))


STAGES = ("collate_kind", "first_transform", "locate", "recognise_items", "require_seeding_only", "require_unwatched_iterators")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls of each stage, and the transforms of the script's own that are traced."""
    found: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        own = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *rest, **named: found.update([name]) or own(*rest, **named))

    for name in STAGES:
        count(recognition, name)
    count(own_transforms, "trace")
    return found


@pytest.mark.parametrize("checked", ["0", "6"])
def test_each_stage_runs_once_for_an_iterator(
    checked: str, folder: Path, counted: Counter[str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The loader is refused as a whole, and each of the ways in part asks for its datasets and their transforms."""
    monkeypatch.setenv(CHECK, checked)
    taken_over = request.getfixturevalue("taken_over")
    monkeypatch.setattr(hook, "PARTIAL_WAYS", (refused_in_the_end, *hook.PARTIAL_WAYS))
    loader = DataLoader(ImageFolder(str(folder), v1.Compose([v1.RandomResizedCrop(24), Measured(), *END])), 5)
    for passes in (1, 2):
        iter(loader)
        assert counted == dict.fromkeys([*STAGES, "trace"], passes)
    assert "taken over in part: " in taken_over[0]


def refused_in_the_end(found: Recognition, images: int) -> Any:
    """Take a loader over by native decode, but refuse it afterwards."""
    hook.with_native_decode(found, images)
    raise recognition.Unsupported("nothing is taken over by this way")


def test_the_scripts_own_transform_is_traced_once_for_its_items(folder: Path, counted: Counter[str]) -> None:
    items = Recognition(DataLoader(OwnImages(folder, v1.Compose([v1.CenterCrop(24), Sharpened(), *END])), 5)).items
    assert isinstance(items, RecognisedItems) and counted["trace"] == 1


def test_items_are_planned_only_where_the_rules_for_folders_do_not_hold(folder: Path, counted: Counter[str]) -> None:
    found = Recognition(DataLoader(ImageFolder(str(folder), KNOWN), 5))
    assert isinstance(found.first_that_fits(lambda recognised: recognised), RecognisedLoader)
    assert not counted["recognise_items"]
    found = Recognition(DataLoader(OwnImages(folder, KNOWN), 5))
    assert isinstance(found.first_that_fits(lambda recognised: recognised), RecognisedItems)


def test_items_are_planned_where_use_refuses_the_folders(folder: Path) -> None:
    def use(recognised: Any) -> Any:
        if isinstance(recognised, RecognisedLoader):
            raise recognition.Unsupported("they came out different")
        return recognised

    found = Recognition(DataLoader(ImageFolder(str(folder), KNOWN), 5))
    assert isinstance(found.first_that_fits(use), RecognisedItems)


def test_a_refusal_of_both_says_both_where_code_is_not_known(folder: Path) -> None:
    found = Recognition(DataLoader(OwnImages(folder, v1.Compose([Measured(), *END])), 5))
    both = found.first_that_fits(lambda recognised: recognised)
    assert isinstance(both, Refusal) and isinstance(found.folders, Refusal) and isinstance(found.items, Refusal)
    assert found.folders.kind == "code"
    assert both.text == f"{found.folders}, and {found.items}" and both.remedy == found.folders.remedy
    other = Recognition(DataLoader(ImageFolder(str(folder), v1.Compose([v1.RandomHorizontalFlip(), *END])), 5))
    assert other.first_that_fits(lambda recognised: recognised) == other.folders


class Collates(OwnImages):
    """Its loader holds a method of it."""

    def collate(self, items: list[Any]) -> Any:
        return torch.stack([image for image, _ in items]), [target for _, target in items]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_is_gone_when_the_script_drops_it(workers: int, folder: Path, taken_over: list[str]) -> None:
    dataset = Collates(folder, KNOWN)
    loader = DataLoader(dataset, 5, num_workers=workers, collate_fn=dataset.collate)
    list(loader)
    assert "the same batches, bit for bit" in taken_over[-1]
    left = weakref.ref(dataset)
    del dataset, loader
    gc.collect()
    assert left() is None
