"""Saved loader states hold the hash of their pipeline, and users pickle transforms: neither changes between versions."""

from __future__ import annotations

import base64
import pickle
from typing import Any

import pytest
from headrace import transforms as t
from headrace.transforms.compile import compile_pipeline

FINE_TUNING = t.Compose(
    [
        t.RandomResizedCrop(176, interpolation=["bilinear", "bicubic"]),
        t.RandomHorizontalFlip(),
        t.TrivialAugmentWide(),
        t.Normalize(t.IMAGENET_MEAN, t.IMAGENET_STD),
        t.RandomErasing(p=0.1),
        t.RandomChoice([t.MixUp(alpha=0.2, num_classes=10), t.CutMix(num_classes=10)]),
    ]
)
HEAVY = t.Compose(
    [
        t.Resize(256),
        t.RandomApply([t.ColorJitter(0.4, 0.4, 0.2, 0.1), t.GaussianBlur(9)], p=0.8),
        t.Repeat(t.RandomRotation(10), 4),
        t.RandomAffine(5, translate=(0.1, 0.1), shear=5),
        t.RandomCrop(224, padding=4),
    ]
)
EVERY_KIND_OF_VALUE = t.Compose(
    [
        t.Resize(300, max_size=400),
        t.RandomVerticalFlip(1),
        t.ColorJitter(hue=(-0.2, 0.1)),
        t.RandomAdjustSharpness(2),
        t.RandomSolarize(128, p=1),
        t.RandomPosterize(4),
        t.Dilation(5),
        t.AutoAugment("cifar10", interpolation="bilinear", fill=9),
        t.CenterCrop(224),
        t.RandomRotation(10, center=(1, 2)),
    ]
)

# As computed by commit 64d3fc3, the last one by a3d4b59: their states must load today.
HASHES: list[tuple[str, t.Transform, dict[str, Any], str]] = [
    ("imagenet_train", t.imagenet_train(224), {}, "8bbcd65e7ebaf073"),
    ("imagenet_eval", t.imagenet_eval(224, normalize=True), {"dtype": "float32"}, "2f5455a2b2e8ec17"),
    ("fine_tuning", FINE_TUNING, {"dtype": "bfloat16"}, "afad8c8476a7b6d9"),
    ("heavy", HEAVY, {"fuse": "off", "dct_scale": "auto"}, "1d780d7a005e0438"),
    ("every kind of value", EVERY_KIND_OF_VALUE, {}, "860b64e12bcd7e87"),
]

# pickle.dumps(FINE_TUNING, 4) by the same commit, whose transforms were all in the module headrace.transforms.
PICKLED = (
    "gASVEQIAAAAAAACME2hlYWRyYWNlLnRyYW5zZm9ybXOUjAdDb21wb3NllJOUKYGUXZQoaACMEVJhbmRvbVJlc2l6ZWRDcm9wlJOUKYGUXZQoS7"
    "BLsIaURz+0euFHrhR7Rz/wAAAAAAAAhpRHP+gAAAAAAABHP/VVVVVVVVWGlIwIYmlsaW5lYXKUjAdiaWN1YmljlIaUiGViaACMFFJhbmRvbUhv"
    "cml6b250YWxGbGlwlJOUKYGUXZRHP+AAAAAAAABhYmgAjBJUcml2aWFsQXVnbWVudFdpZGWUk5QpgZRdlChLH4wHbmVhcmVzdJRLAEsASwCHlE"
    "sCZWJoAIwJTm9ybWFsaXpllJOUKYGUXZQoRz/fCj1wo9cKRz/dLxqfvnbJRz/Z++dsi0OWh5RHP81P3ztkWh1HP8ysCDEm6XlHP8zMzMzMzM2H"
    "lIllYmgAjA1SYW5kb21FcmFzaW5nlJOUKYGUXZQoRz+5mZmZmZmaRz+UeuFHrhR7Rz/VHrhR64UfhpRHP9MzMzMzMzNHQApmZmZmZmaGlEcAAA"
    "AAAAAAAIWUiWViaACMDFJhbmRvbUNob2ljZZSTlCmBlF2UKGgAjAVNaXhVcJSTlCmBlF2UKEc/yZmZmZmZmksKZWJoAIwGQ3V0TWl4lJOUKYGU"
    "XZQoRz/wAAAAAAAASwplYoaURz/gAAAAAAAARz/gAAAAAAAAhpRlYnSUYWIu"
)


@pytest.mark.parametrize(("name", "transform", "options", "expected"), HASHES, ids=[row[0] for row in HASHES])
def test_hash_of_a_pipeline_stays_the_same(name: str, transform: t.Transform, options: dict[str, Any], expected: str) -> None:
    assert compile_pipeline(transform, **options).hash == expected


def test_transforms_pickled_by_an_earlier_version_load() -> None:
    assert pickle.loads(base64.b64decode(PICKLED)) == FINE_TUNING


def test_dir_lists_the_public_names_only() -> None:
    assert dir(t) == sorted(t.__all__)
    assert all(hasattr(t, name) for name in t.__all__)
