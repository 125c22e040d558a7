"""Transforms of torchvision that are translated, and those that are refused with a reason."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.transforms.pointwise import ValueTable, tabulate
from headrace.accelerate.transforms.translate import translate
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Preset:
    """As torchvision's training reference wraps its stacks."""

    def __init__(self, *operations: Any) -> None:
        self.transforms = v1.Compose(list(operations))

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


class ModulePreset(torch.nn.Module):
    """The same as an nn.Module."""

    def __init__(self, *operations: Any) -> None:
        super().__init__()
        self.stack = v1.Compose(list(operations))

    def forward(self, image: Any) -> Any:
        """With a docstring, which changes the constants and not the code."""
        return self.stack(image)


class Twice(Preset):
    """A wrapper that does more than hand over."""

    def __call__(self, img: Any) -> Any:
        return [self.transforms(img), self.transforms(img)]


def with_v2_to_tensor() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return v2.Compose([v2.RandomResizedCrop(64), v2.ToTensor(), v2.Normalize(MEAN, STD)])


def hooked() -> Any:
    crop = v1.CenterCrop(32)
    crop.register_forward_hook(lambda module, inputs, output: output)
    return v1.Compose([crop, v1.ToTensor()])


def resized_to(size: Any) -> Any:
    """Return a crop whose size the script has set by hand: the shorter side of the cut rectangle."""
    crop = v1.RandomResizedCrop(32)
    crop.size = size
    return v1.Compose([crop, v1.ToTensor()])


SUPPORTED = {
    "pytorch examples, train": (
        v1.Compose([v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
        ["RandomResizedCrop", "RandomHorizontalFlip"],
    ),
    "pytorch examples, val": (
        v1.Compose([v1.Resize(256), v1.CenterCrop(224), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
        ["Resize", "CenterCrop"],
    ),
    "torchvision reference, train": (
        Preset(
            v1.RandomResizedCrop(176, interpolation=InterpolationMode.BILINEAR, antialias=True),
            v1.RandomHorizontalFlip(0.5),
            v1.PILToTensor(),
            v1.ConvertImageDtype(torch.float),
            v1.Normalize(mean=MEAN, std=STD),
            v1.RandomErasing(p=0.1),
        ),
        ["RandomResizedCrop", "RandomHorizontalFlip"],
    ),
    "torchvision reference, v2": (
        v2.Compose(
            [
                v2.RandomResizedCrop(176, interpolation=InterpolationMode.BICUBIC, antialias=True),
                v2.RandomHorizontalFlip(0.5),
                v2.PILToTensor(),
                v2.ToDtype(torch.float, scale=True),
                v2.Normalize(mean=MEAN, std=STD),
                v2.ToPureTensor(),
            ]
        ),
        ["RandomResizedCrop", "RandomHorizontalFlip"],
    ),
    "weights' own": (torchvision.transforms._presets.ImageClassification(crop_size=224), ["Resize", "CenterCrop"]),
    "timm, no augmentation": (
        v1.Compose([v1.Resize((64, 64), InterpolationMode.BICUBIC), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
        ["Resize"],
    ),
    "flip after the conversion": (
        v1.Compose([v1.Resize((32, 32)), v1.ToTensor(), v1.RandomHorizontalFlip(), v1.Normalize(MEAN, STD)]),
        ["Resize", "RandomHorizontalFlip"],
    ),
    "nested": (
        v1.Compose(
            [v1.Compose([v1.Resize(40), v1.RandomCrop(32)]), torch.nn.Sequential(v1.RandomVerticalFlip()), v1.ToTensor()]
        ),
        ["Resize", "RandomCrop", "RandomVerticalFlip"],
    ),
    "CIFAR": (
        v1.Compose([v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), v1.ToTensor()]),
        ["RandomCrop", "RandomHorizontalFlip"],
    ),
    "colour": (
        v1.Compose([v1.RandomResizedCrop(32), v1.ColorJitter(0.4, 0.3, (0.5, 1.2)), v1.RandomGrayscale(), v1.ToTensor()]),
        ["RandomResizedCrop", "ColorJitter", "RandomGrayscale"],
    ),
    "turned": (
        v1.Compose([v1.RandomRotation(5), v1.RandomAffine(3, (0.1, 0.1), shear=2), v1.RandomResizedCrop(32), v1.ToTensor()]),
        ["RandomRotation", "RandomAffine", "RandomResizedCrop"],
    ),
    "augmented": (
        v2.Compose(
            [
                v2.RandomResizedCrop(32),
                v2.TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR),
                v2.RandAugment(fill=[1, 2, 3]),
                v2.AutoAugment(),
                v2.PILToTensor(),
            ]
        ),
        ["RandomResizedCrop", "TrivialAugmentWide", "RandAugment", "AutoAugment"],
    ),
    "augmented, v1": (
        v1.Compose([v1.CenterCrop(32), v1.RandAugment(), v1.TrivialAugmentWide(), v1.AutoAugment(), v1.ToTensor()]),
        ["CenterCrop", "RandAugment", "TrivialAugmentWide", "AutoAugment"],
    ),
    "more colour": (
        v1.Compose(
            [
                v1.Pad(2),
                v1.CenterCrop(32),
                v1.RandomInvert(),
                v1.RandomPosterize(4),
                v1.RandomSolarize(99),
                v1.RandomAutocontrast(),
                v1.RandomEqualize(0.1),
                v1.RandomAdjustSharpness(2),
                v1.Grayscale(3),
                v1.ToTensor(),
            ]
        ),
        [
            "Pad",
            "CenterCrop",
            "RandomInvert",
            "RandomPosterize",
            "RandomSolarize",
            "RandomAutocontrast",
            "RandomEqualize",
            "RandomAdjustSharpness",
            "Grayscale",
        ],
    ),
    "no colour jitter": (
        v1.Compose([v1.CenterCrop(32), v1.ColorJitter(0, 0, 0), v1.ToTensor()]),
        ["CenterCrop", "ColorJitter"],  # it draws an order
    ),
    "a module that hands over": (ModulePreset(v1.CenterCrop((30, 40)), v1.ToTensor()), ["CenterCrop"]),
    "deprecated v2.ToTensor": (with_v2_to_tensor(), ["RandomResizedCrop"]),
    "uint8": (v1.Compose([v1.CenterCrop(8), v1.PILToTensor()]), ["CenterCrop"]),
    "SimCLR": (
        v1.Compose(
            [
                v1.RandomResizedCrop(32),
                v1.RandomApply([v1.ColorJitter(0.8, 0.8, 0.8, 0.2), v1.ColorJitter(0, 0, 0)], p=0.8),
                v1.RandomGrayscale(p=0.2),
                v2.RandomApply(torch.nn.ModuleList([torch.nn.Sequential(v1.RandomSolarize(128), v2.RandomInvert())])),
                v1.ToTensor(),
            ]
        ),
        ["RandomResizedCrop", "RandomApply", "RandomGrayscale", "RandomApply"],
    ),
    "torchvision's page on v2": (
        v2.Compose(
            [
                v2.ToImage(),
                v2.ToDtype(torch.uint8, scale=True),
                v2.RandomResizedCrop(size=(32, 32), antialias=True),
                v2.RandomHorizontalFlip(p=0.5),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(mean=MEAN, std=STD),
            ]
        ),
        ["RandomResizedCrop", "RandomHorizontalFlip"],
    ),
    "v2 on tensors, evaluation": (
        v2.Compose([v2.PILToTensor(), v2.Resize(40, InterpolationMode.BICUBIC), v2.CenterCrop(32), v2.ToDtype(torch.float)]),
        ["Resize", "CenterCrop"],
    ),
}

UNSUPPORTED = {
    "unknown class": (v1.Compose([v1.GaussianBlur(3), v1.ToTensor()]), "GaussianBlur"),
    "colour on a tensor": (v1.Compose([v1.CenterCrop(8), v1.ToTensor(), v1.ColorJitter(0.4)]), "ColorJitter on a tensor"),
    "lambda": (v1.Compose([v1.CenterCrop(8), v1.ToTensor(), v1.Lambda(lambda image: image)]), "<lambda>"),
    "two views": (Twice(v1.CenterCrop(8), v1.ToTensor()), "Twice"),
    "float resize": (v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Resize((8, 8))]), "tensor"),
    "v1 tensor resize": (v1.Compose([v1.PILToTensor(), v1.Resize((8, 8))]), "tensor"),
    "aliased resize": (v2.Compose([v2.ToImage(), v2.Resize((8, 8), antialias=False)]), "antialiasing"),
    "nearest tensor resize": (v2.Compose([v2.ToImage(), v2.Resize((8, 8), InterpolationMode.NEAREST)]), "nearest"),
    "blur at random": (v1.Compose([v1.RandomApply([v1.GaussianBlur(3)]), v1.ToTensor()]), "GaussianBlur"),
    "tensors at random": (v1.Compose([v1.RandomApply([v1.ToTensor()])]), "ToTensor"),
    "no tensor": (v1.CenterCrop(8), "no tensor"),
    "none": (None, "no transform"),
    "padding": (v1.Compose([v1.RandomCrop(32, padding=4, fill=1), v1.ToTensor()]), "not black"),
    "reflected padding": (
        v1.Compose([v1.RandomCrop(32, padding=4, padding_mode="reflect"), v1.ToTensor()]),
        "not black",
    ),
    "max_size": (v1.Compose([v1.Resize(32, max_size=64), v1.ToTensor()]), "max_size"),
    "nearest": (v1.Compose([v1.Resize((8, 8), InterpolationMode.NEAREST), v1.ToTensor()]), "nearest"),
    "hook": (hooked(), "hooks"),
    "size by hand, a number": (resized_to(24), "size 24"),
    "size by hand, one number": (resized_to([24]), r"size \[24\]"),
    "bicubic rotation": (v1.Compose([v1.RandomRotation(5, InterpolationMode.BICUBIC), v1.ToTensor()]), "bicubic"),
    "one channel": (v1.Compose([v1.Grayscale(), v1.ToTensor()]), "one channel"),
    "reflected border": (v1.Compose([v1.Pad(3, padding_mode="reflect"), v1.ToTensor()]), "reflect"),
    "function": (v1.Compose([v1.CenterCrop(8), lambda image: image.rotate(3), v1.ToTensor()]), "<lambda>"),
}


def test_v1_and_v2_of_automatic_augmentation_are_distinguished() -> None:
    for generation, number in ((v1, 1), (v2, 2)):
        stack = [generation.RandAugment(), generation.TrivialAugmentWide(), generation.AutoAugment(), generation.PILToTensor()]
        assert [step.arguments["version"] for step in translate(generation.Compose(stack)).geometry] == [number] * 3


@pytest.mark.parametrize("name", SUPPORTED)
def test_transforms_split_into_three_parts(name: str) -> None:
    transform, names = SUPPORTED[name]
    parts = translate(transform)
    assert [step.name for step in parts.geometry] == names
    assert parts.pointwise


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_transforms_are_refused_with_a_reason(name: str) -> None:
    transform, words = UNSUPPORTED[name]
    with pytest.raises(Unsupported, match=words):
        translate(transform)


def test_arguments_come_from_the_scripts_objects() -> None:
    crop, flip = translate(
        v1.Compose(
            [
                v1.RandomResizedCrop((96, 128), scale=(0.35, 0.9), ratio=(0.5, 2.0), interpolation=InterpolationMode.BICUBIC),
                v1.RandomHorizontalFlip(0.25),
                v1.ToTensor(),
            ]
        )
    ).geometry
    assert dict(crop.arguments) == {
        "size": (96, 128),
        "scale": (0.35, 0.9),
        "ratio": (0.5, 2.0),
        "interpolation": "bicubic",
    }
    assert dict(flip.arguments) == {"p": 0.25}


def test_resizes_of_tensors_have_torchs_weights() -> None:
    for mode in (InterpolationMode.BILINEAR, InterpolationMode.BICUBIC):
        crop = translate(v2.Compose([v2.ToImage(), v2.RandomResizedCrop(9, interpolation=mode)])).geometry[0]
        assert crop.arguments["interpolation"] == f"{mode.value}-int16"


def test_random_apply_holds_its_transforms() -> None:
    inner = [v1.Compose([v1.RandomInvert(1.0)]), v1.RandomApply([v1.Grayscale(3)], 0.25)]
    (apply,) = translate(v1.Compose([v1.RandomApply(inner, p=0.75), v1.PILToTensor()])).geometry
    nested = "RandomApply(transforms=(Grayscale(num_output_channels=3),), p=0.25)"
    assert str(apply) == f"RandomApply(transforms=(RandomInvert(p=1.0), {nested}), p=0.75)"


@pytest.mark.parametrize("module", [v1, v2])
def test_random_erasing_has_a_value_for_each_channel(module: Any) -> None:
    steps = [module.CenterCrop(8), module.PILToTensor(), module.RandomErasing(p=0.5), module.RandomErasing(value=(1, 2, 3))]
    first, second = translate(module.Compose(steps)).erasings
    assert first.value == (0.0, 0.0, 0.0) and first.decision == (0.0, 0.0, 0.5)
    assert second.value == (1.0, 2.0, 3.0) and second.scale == (float(np.float32(0.02)), float(np.float32(0.33)))
    with pytest.raises(Unsupported, match="random values"):
        translate(module.Compose([module.CenterCrop(8), module.PILToTensor(), module.RandomErasing(value="random")]))


def look_up(table: ValueTable, pixels: torch.Tensor) -> torch.Tensor:
    """[N, 3, H, W] of the table's values for uint8 pixels [N, H, W, 3]."""
    return torch.stack([table.values[channel][pixels[..., channel].long()] for channel in range(3)], dim=1)


@pytest.mark.parametrize("name", SUPPORTED)
def test_value_table_is_bit_identical(name: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 7, 5, 3), dtype=np.uint8)
    operations = translate(SUPPORTED[name][0]).pointwise
    images: list[Any] = [Image.fromarray(image) for image in pixels]
    for operation in operations:
        images = [operation(image) for image in images]
    result = look_up(tabulate(operations), torch.from_numpy(pixels))
    assert result.is_contiguous() and result.dtype == images[0].dtype
    assert torch.equal(result, torch.stack([image.as_subclass(torch.Tensor) for image in images]))
