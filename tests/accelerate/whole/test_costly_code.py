"""The main process plans the items of all workers: it does so only where that takes less time than they would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deferred_helpers import OwnImages
from headrace.accelerate import check
from headrace.accelerate.whole import items
from torch.utils.data import DataLoader
from torchvision import transforms

STEPS = transforms.Compose([transforms.Resize((24, 24)), transforms.ToTensor()])
WHOLE, TOO_LONG = "the same batches, bit for bit", "takes longer in one process than native decoding saves"


class Counts(OwnImages):
    """The target takes as many additions as its class says."""

    additions = 0

    def target(self, index: int) -> Any:
        total = index
        for number in range(self.additions):
            total = total + number % 3
        return total


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("additions", [1, 50_000])
def test_code_that_takes_longer_to_plan_than_to_run_stays_where_it_is(
    additions: int, workers: int, folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "MOST_ITEM_S", 1.0)  # whatever the machine is, not this limit decides
    monkeypatch.setattr(Counts, "additions", additions)
    next(iter(DataLoader(Counts(folder, STEPS), 4, num_workers=workers)))
    assert any(TOO_LONG in line for line in taken_over) == (additions > 1)
    assert any(WHOLE in line for line in taken_over) == (additions == 1)


def test_the_time_of_each_worker_counts(folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "MOST_ITEM_S", 1.0)
    monkeypatch.setattr(check, "_item_s", lambda small: 1.0)  # an item of a large image
    monkeypatch.setattr(Counts, "additions", 50_000)
    next(iter(DataLoader(Counts(folder, STEPS), 4, num_workers=1)))
    assert any(WHOLE in line for line in taken_over)
