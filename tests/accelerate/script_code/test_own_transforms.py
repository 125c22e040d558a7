"""Transform classes of a script's own, as recipes of self-supervised learning have them: traced, or refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.script_code import own_transforms
from headrace.accelerate.transforms import pillow_blur
from headrace.accelerate.transforms.pillow_blur import blurs_alike
from headrace.accelerate.transforms.translate import translate
from PIL import Image, ImageFilter, ImageOps
from seeded import require_equal_passes
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder


class MocoBlur:
    """As MoCo v2, SimSiam and MoCo v3 have it."""

    def __init__(self, sigma: Any = (0.1, 2.0)) -> None:
        self.sigma = sigma

    def __call__(self, x: Any) -> Any:
        sigma = random.uniform(self.sigma[0], self.sigma[1])
        x = x.filter(ImageFilter.GaussianBlur(radius=sigma))
        return x  # noqa: RET504


class DinoBlur:
    """As DINO has it."""

    def __init__(self, p: float = 0.5, radius_min: float = 0.1, radius_max: float = 2.0) -> None:
        self.prob = p
        self.radius_min = radius_min
        self.radius_max = radius_max

    def __call__(self, img: Any) -> Any:
        do_it = random.random() <= self.prob
        if not do_it:
            return img
        return img.filter(ImageFilter.GaussianBlur(radius=random.uniform(self.radius_min, self.radius_max)))


class BarlowBlur:
    """As Barlow Twins and VICReg have it."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, img: Any) -> Any:
        if random.random() < self.p:
            sigma = random.random() * 1.9 + 0.1
            return img.filter(ImageFilter.GaussianBlur(sigma))
        else:  # noqa: RET505
            return img


class Solarization:
    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, img: Any) -> Any:
        if random.random() < self.p:
            return ImageOps.solarize(img)
        else:  # noqa: RET505
            return img


class Solarize:
    def __init__(self, threshold: int = 128) -> None:
        self.threshold = threshold

    def __call__(self, sample: Any) -> Any:
        return ImageOps.solarize(sample, self.threshold)


class MaybeGray:
    """A class that hands over to transforms."""

    def __init__(self) -> None:
        self.prob, self.transf = 0.2, v1.Grayscale(3)

    def __call__(self, img: Any) -> Any:
        if self.prob > np.random.rand():
            return self.transf(img)
        return img


class OfImages:
    """It asks for the type of what it gets."""

    def __call__(self, image: Any) -> Any:
        if isinstance(image, torch.Tensor) or not isinstance(image, Image.Image) or image.mode == "L":
            return image
        return ImageOps.invert(image)


class Jitter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = v1.Compose([v1.ColorJitter(0.4), Solarization(0.5)])

    def forward(self, image: Any) -> Any:
        return self.steps(image) if torch.rand(1).item() < 0.8 else image


def mirrored(image: Any) -> Any:
    return ImageOps.mirror(image.transpose(Image.Transpose.FLIP_TOP_BOTTOM))


def blur(low: float, high: float) -> str:
    return f"PillowBlur(radius=({low}, {high}))"


def applied(step: str, p: float) -> str:
    return f"RandomApply(transforms=({step},), p={p})"


TRACED = {
    "MoCo": (MocoBlur(), [blur(0.1, 2.0)]),
    "DINO": (DinoBlur(), [applied(blur(0.1, 2.0), 0.5)]),
    "DINO, always": (DinoBlur(1.0), [applied(blur(0.1, 2.0), 1.0)]),
    "Barlow Twins": (BarlowBlur(0.25), [applied(blur(0.1, 2.0), 0.25)]),
    "solarization": (Solarization(0.2), [applied("RandomSolarize(threshold=128.0, p=1.0)", 0.2)]),
    "solarize": (Solarize(100), ["RandomSolarize(threshold=100.0, p=1.0)"]),
    "hands over": (MaybeGray(), [applied("Grayscale(num_output_channels=3)", 0.2)]),
    "asks": (OfImages(), ["RandomInvert(p=1.0)"]),
    "function": (mirrored, ["RandomVerticalFlip(p=1.0)", "RandomHorizontalFlip(p=1.0)"]),
    "to RGB": (v1.Lambda(lambda image: image.convert("RGB")), []),
}


def traced(operation: Any) -> list[str]:
    return [str(step) for step in translate(v1.Compose([operation, v1.ToTensor()]), own_transforms.trace).geometry]


@pytest.mark.parametrize("name", TRACED)
def test_classes_of_the_scripts_own_are_traced(name: str) -> None:
    operation, steps = TRACED[name]
    states = random.getstate(), np.random.get_state()[2], torch.get_rng_state().tolist()
    assert traced(operation) == steps
    assert states == (random.getstate(), np.random.get_state()[2], torch.get_rng_state().tolist())


def test_a_module_with_an_own_transform_in_it_is_traced() -> None:
    (step,) = traced(Jitter())
    assert step.startswith("RandomApply(transforms=(ColorJitter(") and step.endswith("p=0.8)")
    assert applied("RandomSolarize(threshold=128.0, p=1.0)", 0.5) in step


class Counting(Solarize):
    """It changes itself: the script may look at the number of calls."""

    calls = 0

    def __call__(self, sample: Any) -> Any:
        self.calls += 1
        return ImageOps.solarize(sample, self.threshold)


class Dependent:
    """The radius depends on the decision."""

    def __call__(self, image: Any) -> Any:
        drawn = random.random()
        return image.filter(ImageFilter.GaussianBlur(drawn)) if drawn < 0.5 else image


class TwoWays:
    """One of two operations."""

    def __call__(self, image: Any) -> Any:
        return ImageOps.mirror(image) if random.random() < 0.5 else ImageOps.flip(image)


class Never(DinoBlur):
    """It draws a number, and applies nothing."""

    def __init__(self) -> None:
        super().__init__(0.0)


class DrawsFirst:
    """It draws the radius before the decision."""

    def __call__(self, image: Any) -> Any:
        radius = random.uniform(0.1, 2.0)
        return image.filter(ImageFilter.GaussianBlur(radius)) if random.random() < 0.5 else image


class DrawsForNothing:
    def __call__(self, image: Any) -> Any:
        random.random()
        return ImageOps.mirror(image)


class MakesAFilterForNothing:
    def __call__(self, image: Any) -> Any:
        ImageFilter.GaussianBlur(random.uniform(0.1, 2.0))
        return ImageOps.mirror(image)


class DrawsAcross:
    """A transform draws between the number and its use."""

    def __init__(self) -> None:
        self.flip = v1.RandomHorizontalFlip()

    def __call__(self, image: Any) -> Any:
        radius = random.uniform(0.1, 2.0)
        return self.flip(image).filter(ImageFilter.GaussianBlur(radius))


class TensorRadius:
    """torch computes the radius, in single precision."""

    def __call__(self, image: Any) -> Any:
        return image.filter(ImageFilter.GaussianBlur(torch.rand(1) * 2))


class ThreeWays:
    def __call__(self, image: Any) -> Any:
        if random.random() < 0.5:
            image = ImageOps.mirror(image)
        return ImageOps.flip(image) if random.random() < 0.5 else image


class Sized:
    """The result depends on the image."""

    def __call__(self, image: Any) -> Any:
        return ImageOps.mirror(image) if image.width > 20 else image


class WithDefault:
    """It reads an attribute that a stand-in may lack."""

    def __call__(self, image: Any) -> Any:
        return ImageOps.mirror(image) if getattr(image, "format", 1) is None else image


class OwnGenerator:
    def __init__(self) -> None:
        self.random = random.Random(3)

    def __call__(self, image: Any) -> Any:
        return ImageOps.mirror(image) if self.random.random() < 0.5 else image


class Whole:
    """Steps of a whole number."""

    def __call__(self, image: Any) -> Any:
        return ImageOps.posterize(image, int(random.uniform(1, 8)))


REFUSED = (
    *(Counting, Dependent, TwoWays, ThreeWays, Sized, WithDefault, OwnGenerator, Whole),
    *(Never, DrawsFirst, DrawsForNothing, MakesAFilterForNothing, DrawsAcross, TensorRadius),
)


@pytest.mark.parametrize("kind", REFUSED)
def test_classes_that_do_more_are_refused(kind: type) -> None:
    operation = kind()
    with pytest.raises(Unsupported, match=f"transform {kind.__name__} has no exact native equivalent"):
        traced(operation)
    assert not vars(operation).get("calls")


def test_a_radius_out_of_range_is_left_to_pillow() -> None:
    with pytest.raises(Unsupported, match="MocoBlur"):
        traced(MocoBlur((-1.0, 2.0)))


def test_blur_equals_pillows_on_this_machine() -> None:
    assert blurs_alike(0.1, 2.0) and blurs_alike(0.0, 1.0) and blurs_alike(3.0, 30.0)


def test_another_arithmetic_of_pillow_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = pillow_blur.pillow_blur
    monkeypatch.setattr(pillow_blur, "pillow_blur", lambda pixels, width, radius: own(pixels, width, radius * 1.0001))
    assert not pillow_blur.blurs_alike.__wrapped__(0.1, 2.0)
    monkeypatch.setattr(own_transforms, "blurs_alike", lambda least, most: False)
    with pytest.raises(Unsupported, match="MocoBlur"):
        traced(MocoBlur())


def recipe() -> Any:
    return v1.Compose(
        [
            v1.RandomResizedCrop(48, scale=(0.2, 1.0)),
            v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            v1.RandomGrayscale(p=0.2),
            v1.RandomApply([MocoBlur()], p=0.5),
            DinoBlur(0.3),
            Solarization(0.2),
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
            v1.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]),
        ]
    )


def test_a_recipe_is_equal_in_every_value(folder: Path) -> None:
    require_equal_passes(DataLoader(ImageFolder(str(folder), recipe()), 5))


class Crops:
    """Two crops of an image, as MoCo's TwoCropsTransform."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> Any:
        return [self.transform(image), self.transform(image)]


def test_two_crops_are_taken_over_whole(folder: Path) -> None:
    require_equal_passes(DataLoader(ImageFolder(str(folder), Crops(recipe())), 5), items=True)
