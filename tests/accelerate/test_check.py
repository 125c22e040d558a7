"""`--check` passes if native loading equals the script's own, and fails if pixels or draws differ."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace.accelerate import hook
from headrace.accelerate.check import check
from headrace.accelerate.compile import CompiledLoader, compile_loader
from headrace.accelerate.recognise import recognise
from headrace.accelerate.settings import CHECK
from headrace.accelerate.translate import Unsupported
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

TRAIN = [v1.RandomResizedCrop(48, (0.2, 0.9)), v1.RandomHorizontalFlip(0.3), v1.ToTensor(), v1.Normalize([0.4], [0.2])]


def compiled_for(folder: Path, *operations: Any) -> CompiledLoader:
    return compile_loader(recognise(DataLoader(ImageFolder(str(folder), v1.Compose(list(operations))), 5)), 1)


STACKS: dict[str, tuple[list[Any], tuple[str, ...]]] = {
    "evaluation": ([v1.Resize(60), v1.CenterCrop(48), v1.ToTensor()], ()),
    "training": (TRAIN, ("crop boxes", "RandomHorizontalFlip rate")),
    "v2, bicubic": (
        [v2.RandomResizedCrop(48, interpolation=v2.InterpolationMode.BICUBIC), v2.RandomVerticalFlip(), v2.PILToTensor()],
        ("crop boxes", "RandomVerticalFlip rate"),
    ),
    "colour": (
        [v1.RandomResizedCrop(48), v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.RandomHorizontalFlip(), v1.ToTensor()],
        ("crop boxes", "ColorJitter factors", "RandomHorizontalFlip rate"),
    ),
    "v2, some colour": (
        [v2.Resize((50, 40)), v2.ColorJitter(contrast=(0.5, 3.0), hue=0.5), v2.RandomGrayscale(0.3), v2.PILToTensor()],
        ("ColorJitter factors", "RandomGrayscale rate"),
    ),
    "cut and flipped": (
        [v1.Resize((70, 80)), v1.RandomCrop(48), v1.RandomHorizontalFlip(), v1.ToTensor()],
        ("RandomHorizontalFlip rate",),
    ),
    "turned": (
        [v1.RandomRotation(20), v1.RandomResizedCrop(48), v1.ToTensor()],
        ("RandomRotation parameters", "crop boxes"),
    ),
    "v2, moved": (
        [v2.Resize((60, 50)), v2.RandomAffine(9, (0.1, 0.2), (0.8, 1.3), (1, 2, 3, 4), "bilinear", 99), v2.PILToTensor()],
        ("RandomAffine parameters",),
    ),
    "v1, moved and coloured": (
        [v1.Resize((60, 50)), v1.RandomAffine(9, (0.1, 0.2), shear=7), v1.RandomInvert(), v1.RandomSolarize(80), v1.ToTensor()],
        ("RandomAffine parameters", "RandomInvert rate", "RandomSolarize rate"),
    ),
    "augmented": ([v2.Resize((60, 50)), v2.TrivialAugmentWide(), v2.RandAugment(3), v2.AutoAugment(), v2.PILToTensor()], ()),
    "augmented, v1": ([v1.Resize((60, 50)), v1.RandAugment(3), v1.ToTensor()], ()),
    "SimCLR": (
        [
            v1.RandomResizedCrop(48),
            v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.2, 0.1), v1.ColorJitter(0)], p=0.8),
            v1.RandomGrayscale(0.2),
            v2.RandomApply([v1.RandomSolarize(128, 0.6), v1.RandomApply([v1.RandomHorizontalFlip()])], 0.3),
            v1.ToTensor(),
        ],
        (
            *("crop boxes", "RandomApply rate", "ColorJitter factors", "RandomGrayscale rate", "RandomSolarize rate"),
            "RandomHorizontalFlip rate",
        ),
    ),
    "v2, tensors": (
        [v2.ToImage(), v2.RandomResizedCrop(48), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)],
        ("crop boxes", "RandomHorizontalFlip rate"),
    ),
    "v2, tensors, evaluation": ([v2.PILToTensor(), v2.Resize(60, v2.InterpolationMode.BICUBIC), v2.CenterCrop((48, 70))], ()),
    "v2, tensors, padded": (
        [v2.ToImage(), v2.ToDtype(torch.uint8, scale=True), v2.Resize((30, 20)), v2.RandomCrop(32, 9), v2.RandomVerticalFlip()],
        ("RandomVerticalFlip rate",),
    ),
    "no resize": ([v1.RandomCrop(32, padding=4), v1.ToTensor()], ()),
    "erasing": ([v1.Resize((40, 40)), v1.ToTensor(), v1.RandomErasing(p=1.0)], ()),
}


@pytest.mark.parametrize("name", STACKS)
def test_equal_loading_passes(name: str, folder: Path) -> None:
    operations, draws = STACKS[name]
    state = torch.get_rng_state()
    found = check(compiled_for(folder, *operations), 50)
    assert found.passed, str(found)
    assert found.compared + found.left == 20 and found.compared >= 17
    assert found.draws == draws
    assert torch.equal(state, torch.get_rng_state())


def changed(compiled: CompiledLoader, index: int, **arguments: Any) -> CompiledLoader:
    """`compiled`, with the arguments of one transform changed."""
    other = list(compiled.recognition.transform.geometry)
    other[index] = dataclasses.replace(other[index], arguments={**other[index].arguments, **arguments})
    transform = dataclasses.replace(compiled.recognition.transform, geometry=tuple(other))
    return compile_loader(dataclasses.replace(compiled.recognition, transform=transform), 1)


def test_different_pixels_fail(folder: Path) -> None:
    found = check(changed(compiled_for(folder, v1.Resize((40, 40)), v1.ToTensor()), 0, interpolation="bicubic"), 10)
    assert not found.passed and "images differ, first " in str(found)


@pytest.mark.parametrize(
    ("index", "arguments", "words"),
    [(0, {"scale": (0.3, 0.9)}, "crop boxes"), (0, {"ratio": (0.7, 1.3)}, "crop boxes"), (1, {"p": 0.45}, "Flip rate")],
)
def test_different_distributions_fail(folder: Path, index: int, arguments: dict[str, Any], words: str) -> None:
    found = check(changed(compiled_for(folder, *TRAIN), index, **arguments), 1)
    assert not found.passed and words in str(found)


def test_arguments_that_headrace_refuses_are_unsupported(folder: Path) -> None:
    with pytest.raises(Unsupported, match="bits"):
        compiled_for(folder, v1.Resize((40, 40)), v1.RandomPosterize(0), v1.ToTensor())


def test_different_rates_inside_random_apply_fail(folder: Path) -> None:
    transforms = [v1.Resize((40, 40)), v1.RandomApply([v1.RandomInvert(0.5), v1.RandomInvert(0.9)], 0.5), v1.ToTensor()]
    compiled = compiled_for(folder, *transforms)
    apply = compiled.recognition.transform.geometry[1]
    second = apply.arguments["transforms"][1]
    assert check(changed(compiled, 1, p=0.6), 1).draws_different == ("RandomApply rate",)
    assert check(changed(compiled, 1, transforms=(second, second)), 1).draws_different == ("RandomInvert rate",)


def test_different_angles_fail(folder: Path) -> None:
    compiled = compiled_for(folder, v1.Resize((40, 40)), v1.RandomRotation(20), v1.ToTensor())
    found = check(changed(compiled, 1, degrees=(-26.0, 26.0)), 1)
    assert not found.passed and "RandomRotation parameters" in str(found)


def test_different_colour_factors_fail(folder: Path) -> None:
    compiled = compiled_for(folder, v1.Resize((40, 40)), v1.ColorJitter(0.4, 0.4, 0.4), v1.ToTensor())
    found = check(changed(compiled, 1, saturation=(0.7, 1.3)), 1)
    assert not found.passed and "ColorJitter factors" in str(found)


def test_a_loader_that_fails_the_check_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setitem(os.environ, CHECK, "8")
    lines: list[str] = request.getfixturevalue("taken_over")
    loader = DataLoader(ImageFolder(str(folder), v1.Compose(TRAIN)), 5)
    next(iter(loader))
    assert re.search(r"check: [78] images equal in every value.*crop boxes, .* distributed alike", lines[-1]), lines
    original = hook.compile_loader
    monkeypatch.setattr(hook, "compile_loader", lambda found, threads: changed(original(found, threads), 1, p=0.9))
    next(iter(DataLoader(ImageFolder(str(folder), v1.Compose(TRAIN)), 5)))
    assert "not taken over: check failed: random draws" in lines[-1]
