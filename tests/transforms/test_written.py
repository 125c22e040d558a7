"""`explain()` prints transforms as one would write them, and what it prints makes an equal transform."""

from __future__ import annotations

import headrace.transforms as t
import pytest
from headrace.transforms.base import Transform
from headrace.transforms.written import written

CASES: list[tuple[Transform, str]] = [
    (t.RandomResizedCrop(224), "RandomResizedCrop(224, scale=(0.08, 1.0))"),
    (t.RandomResizedCrop((96, 128), ratio=(1, 1)), "RandomResizedCrop((96, 128), scale=(0.08, 1.0), ratio=(1.0, 1.0))"),
    (t.RandomResizedCrop(8, interpolation="bicubic"), 'RandomResizedCrop(8, scale=(0.08, 1.0), interpolation="bicubic")'),
    (t.Resize(256), "Resize(256)"),
    (t.Resize((224, 224)), "Resize((224, 224))"),
    (t.CenterCrop([224]), "CenterCrop(224)"),
    (t.RandomCrop(32, padding=4), "RandomCrop(32, padding=4)"),
    (t.RandomCrop(32, padding=(4, 2)), "RandomCrop(32, padding=(4, 2))"),
    (t.Pad(4, fill=(124, 116, 104)), "Pad(4, fill=(124, 116, 104))"),
    (t.RandomHorizontalFlip(), "RandomHorizontalFlip()"),
    (t.RandomRotation(10), "RandomRotation(10.0)"),
    (t.ColorJitter(0.4, 0.4, hue=0.1), "ColorJitter(brightness=0.4, contrast=0.4, hue=0.1)"),
    (t.RandomApply([t.ColorJitter(0.8)], p=0.8), "RandomApply([ColorJitter(brightness=0.8)], p=0.8)"),
    (
        t.Repeat(t.Compose([t.RandomRotation(5), t.RandomInvert()]), 4),
        "Repeat(Compose([RandomRotation(5.0), RandomInvert()]), 4)",
    ),
    (t.RandAugment(magnitude=7), "RandAugment(magnitude=7)"),
    (t.MixUp(alpha=0.2), "MixUp(alpha=0.2)"),
    (t.RandomErasing(p=0.25), "RandomErasing(p=0.25)"),
]


@pytest.mark.parametrize(("step", "text"), CASES, ids=[text for _, text in CASES])
def test_a_transform_is_written_as_python_that_makes_an_equal_one(step: Transform, text: str) -> None:
    assert written(step) == text
    assert eval(text, vars(t)) == step


def test_every_public_transform_has_a_short_form() -> None:
    made = [t.Dilation(3), t.Erosion(3), t.GaussianBlur(3), t.Grayscale(3), t.RandomAdjustSharpness(2), t.RandomAutocontrast()]
    made += [t.RandomEqualize(), t.RandomGrayscale(), t.RandomPosterize(4), t.RandomSolarize(128), t.RandomVerticalFlip()]
    made += [
        t.AutoAugment(),
        t.TrivialAugmentWide(),
        t.PillowBlur((0.1, 2.0)),
        t.PillowBlur(1),
        t.RandomAffine(10, translate=(0.1, 0.1)),
        t.CutMix(),
    ]
    made += [t.Normalize(t.IMAGENET_MEAN, t.IMAGENET_STD), t.ToDtype("float32", scale=True)]
    for step in made:
        assert eval(written(step), vars(t)) == step, written(step)
