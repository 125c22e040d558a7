"""Transforms that the script has changed without replacing a function of a library: native code would make other images."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from deferred_helpers import OwnImages
from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.transforms.translate import translate
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

Both = Callable[[Callable[[], Any]], tuple[Any, list[str]]]
AUGMENTATIONS = ("AutoAugment", "RandAugment", "TrivialAugmentWide")
CERTAIN = (("Invert", 1.0, None), ("Invert", 0.0, None))


def in_a_pipeline(step: Any) -> Any:
    return v1.Compose([v1.CenterCrop(8), step, v1.ToTensor()])


@pytest.mark.parametrize("version", [v1, v2])
@pytest.mark.parametrize("workers", [0, 1])
def test_policies_of_the_script_are_applied(version: Any, workers: int, both: Both, folder: Path) -> None:
    """One of 25 is another one, which a comparison of a few images need not meet."""

    def script() -> Any:
        augment = version.AutoAugment()
        name = "policies" if version is v1 else "_policies"
        setattr(augment, name, [CERTAIN if number % 5 == 0 else one for number, one in enumerate(getattr(augment, name))])
        return [*DataLoader(ImageFolder(str(folder), in_a_pipeline(augment)), 4, shuffle=True, num_workers=workers)]

    both(script)


@pytest.mark.parametrize("version", [v1, v2])
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_magnitudes_of_an_object_are_seen(version: Any, name: str) -> None:
    augment = getattr(version, name)()
    translate(in_a_pipeline(augment))
    if version is v1:
        augment._augmentation_space = lambda *numbers: type(augment)._augmentation_space(augment, *numbers)
    else:
        augment._AUGMENTATION_SPACE = dict(augment._AUGMENTATION_SPACE)
    with pytest.raises(Unsupported, match="replaced"):
        translate(in_a_pipeline(augment))


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("change", ["magnitude", "sign", "fewer", "order"])
def test_magnitudes_of_a_class_are_seen(name: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = getattr(v2, name)
    rows = dict(kind._AUGMENTATION_SPACE)
    if change == "magnitude":
        rows["Solarize"] = (lambda bins, height, width: torch.full((bins,), 0.5), False)
    elif change == "sign":
        rows["Rotate"] = (rows["Rotate"][0], not rows["Rotate"][1])
    elif change == "fewer":
        del rows["Equalize"]
    else:
        rows = {one: rows[one] for one in reversed(rows)}
    translate(in_a_pipeline(kind()))
    monkeypatch.setattr(kind, "_AUGMENTATION_SPACE", rows)
    with pytest.raises(Unsupported, match="magnitudes of the script"):
        translate(in_a_pipeline(kind()))


class Chosen:
    """Hands over to one of two transforms, which a property chooses anew for each image."""

    def __init__(self, *steps: Any) -> None:
        self.steps = steps

    @property
    def current(self) -> Any:
        return random.choice(self.steps)

    def __call__(self, image: Any) -> Any:
        return self.current(image)


class Looked(Chosen):
    """The same without a property."""

    def __getattr__(self, name: str) -> Any:
        if name != "chosen":
            raise AttributeError(name)
        return random.choice(self.steps)

    def __call__(self, image: Any) -> Any:
        return self.chosen(image)


class Turned(torch.nn.Module):
    """Turns each fifth image before the `forward` of its subclass gets it."""

    count = 0

    def __call__(self, image: Any) -> Any:
        self.count += 1
        return super().__call__(image.rotate(90) if self.count % 5 == 0 else image)


class Inner(Turned):
    def __init__(self, *steps: Any) -> None:
        super().__init__()
        self.step = steps[0]

    def forward(self, image: Any) -> Any:
        return self.step(image)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [Chosen, Looked, Inner])
def test_a_wrapper_that_does_more_than_hand_over(kind: Any, workers: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        steps = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()]), v1.Compose([v1.CenterCrop(8), v1.ToTensor()])
        return [*DataLoader(ImageFolder(str(folder), kind(*steps)), 4, num_workers=workers)]

    both(script)


@pytest.mark.matrix(keep=3)
@pytest.mark.parametrize("kind", [ImageFolder, OwnImages])
@pytest.mark.parametrize("container", [lambda steps: v2.Compose(steps), lambda steps: torch.nn.Sequential(*steps)])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_hook_of_a_list_of_transforms_sees_each_image(
    workers: int, container: Any, kind: Any, both: Both, folder: Path
) -> None:
    """The compared images tell nothing of a hook that begins with the fifth one, or that only keeps what it saw."""

    def script() -> Any:
        seen: list[int] = []
        steps = container([v2.RandomResizedCrop(8), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
        steps.register_forward_hook(lambda module, given, made: seen.append(1) or (made * 2 if len(seen) > 4 else None))
        return [*DataLoader(kind(folder, steps), 4, num_workers=workers)], len(seen)

    assert not any("the same batches, bit for bit" in line for line in both(script)[1])
