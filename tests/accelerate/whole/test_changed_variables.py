"""Variables of functions and of enumerations that the loop changes: workers have those with which they were started."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deferred_helpers import OwnImages
from torch.utils.data import DataLoader
from torchvision import transforms

Both = Callable[[Callable[[], Any]], tuple[Any, list[str]]]
STEPS = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])


def scaled(number: int) -> int:
    return number


partly = functools.partial(scaled)


class Kind(enum.Enum):
    LARGE = [1, 2]  # noqa: RUF012


class Fixed(enum.Enum):
    LARGE = 1


class OfAFunction(OwnImages):
    def target(self, index: int) -> Any:
        return scaled(index) * scaled.by  # type: ignore[attr-defined]


class OfAMethod(OwnImages):
    def own(self) -> int:
        return 1

    def target(self, index: int) -> Any:
        return index * self.own.by  # type: ignore[attr-defined]


class OfAPartial(OwnImages):
    def target(self, index: int) -> Any:
        return partly(index) * partly.by  # type: ignore[attr-defined]


class OfAnEnumeration(OwnImages):
    def target(self, index: int) -> Any:
        return index * Kind.LARGE.value[0]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [OfAFunction, OfAMethod, OfAPartial, OfAnEnumeration])
def test_variables_of_functions_and_enumerations(kind: Any, workers: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        holders: list[Any] = [scaled, OfAMethod.own, partly]
        for one in holders:
            one.by = 1
        Kind.LARGE.value[0] = 1
        found = []
        options = {"prefetch_factor": 1} if workers else {}
        for batch in DataLoader(kind(folder, STEPS), 2, num_workers=workers, **options):
            found.append(batch)
            for one in holders:
                one.by += 1
            Kind.LARGE.value[0] += 1
        return found

    both(script)


class OfFixedOnes(OwnImages):
    def target(self, index: int) -> Any:
        return index * Fixed.LARGE.value


def test_values_that_stay_are_understood(both: Both, folder: Path) -> None:
    lines = both(lambda: [*DataLoader(OfFixedOnes(folder, STEPS), 2, num_workers=1)])[1]
    assert any("the same batches, bit for bit" in line for line in lines)
