"""`--check` and the comparison before each take-over: they pass if native batches are plain's, else fail."""

from __future__ import annotations

import dataclasses
import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headrace.accelerate import check, hook
from headrace.accelerate.check import BatchesDiffer, require_equal_batches
from headrace.accelerate.runtime.unsupported import Unsupported, required
from headrace.accelerate.settings import CHECK
from headrace.accelerate.whole.compile import CompiledLoader, compile_loader
from headrace.accelerate.whole.recognition import Recognition
from seeded import taken_over_whole, torchs_own
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

TRAIN = [v1.RandomResizedCrop(48, (0.2, 0.9)), v1.RandomHorizontalFlip(0.3), v1.ToTensor(), v1.Normalize([0.4], [0.2])]


def loader_over(folder: Path, *operations: Any, **arguments: Any) -> Any:
    return DataLoader(ImageFolder(str(folder), v1.Compose(list(operations))), 5, **arguments)


def compiled_loader(loader: Any) -> CompiledLoader:
    return compile_loader(required(Recognition(loader).folders), 1)


def changed(compiled: CompiledLoader, index: int, draw: Any = None, **arguments: Any) -> CompiledLoader:
    """Return `compiled` with the arguments of one transform changed, or the way in which its numbers are drawn."""
    other = list(compiled.recognition.transform.geometry)
    before = other[index]
    other[index] = dataclasses.replace(before, arguments={**before.arguments, **arguments}, draw=draw or before.draw)
    transform = dataclasses.replace(compiled.recognition.transform, geometry=tuple(other))
    return compile_loader(dataclasses.replace(compiled.recognition, transform=transform), 1)


def native(compiled: CompiledLoader) -> Any:
    return lambda loader: hook._iterator(loader, compiled)


@pytest.mark.parametrize("workers", [0, 2])
def test_equal_loading_passes(folder: Path, workers: int) -> None:
    loader = loader_over(folder, *TRAIN, shuffle=True, num_workers=workers)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[2]
    found = check.check(loader, range(20), 16, taken_over_whole(loader), torchs_own)
    assert found == "16 items in 4 batches, over 2 epochs: equal bit for bit, draws and targets included"
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[2])


CHANGES: dict[str, tuple[int, dict[str, Any]]] = {
    "another range of areas": (0, {"scale": (0.3, 0.9)}),
    "another filter": (0, {"interpolation": "bicubic"}),
    "another probability": (1, {"draw": ("decision", (0.0, 0.0, 0.45))}),
    "the other way round": (1, {"draw": ("decision", (0.0, 3.0, 0.3))}),
    "a draw less": (1, {"draw": ("fixed", ())}),
    "another generator": (1, {"draw": ("decision", (1.0, 0.0, 0.3))}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_pixels_and_draws_fail(folder: Path, name: str) -> None:
    index, arguments = CHANGES[name]
    loader = loader_over(folder, *TRAIN)
    other = changed(compiled_loader(loader), index, **arguments)
    with pytest.raises(BatchesDiffer, match=r"^batch"):
        check.check(loader, range(20), 20, native(other), torchs_own)


def test_another_draw_that_changes_no_pixel_fails(folder: Path) -> None:
    """The generators afterwards differ: the script's next numbers would."""
    loader = loader_over(folder, v1.Resize((40, 40)), v1.RandomHorizontalFlip(0.0), v1.ToTensor())
    other = changed(compiled_loader(loader), 1, draw=("decision", (1.0, 0.0, 0.0)))
    with pytest.raises(BatchesDiffer, match="the generators afterwards"):
        check.check(loader, range(20), 8, native(other), torchs_own)


def test_other_targets_fail(folder: Path) -> None:
    loader = loader_over(folder, v1.Resize((40, 40)), v1.ToTensor())
    compiled = compiled_loader(loader)
    compiled.samples[0][:] = [(path, label + 1) for path, label in compiled.samples[0]]

    class Targets(hook.NativeIterator):
        def _samples_of(self, folder: Any) -> Any:
            return self._samples[id(folder.dataset)]

    with pytest.raises(BatchesDiffer, match="batch 0"):
        check.check(loader, range(20), 8, lambda one: Targets(one, compiled, print), torchs_own)


def test_a_few_items_are_compared_before_each_take_over(folder: Path) -> None:
    loader = loader_over(folder, v1.Resize((40, 40)), v1.ToTensor())
    compiled = compiled_loader(loader)
    other = changed(compiled, 0, interpolation="bicubic")
    with pytest.raises(Unsupported, match=r"came out different \(batch 0\)"):
        require_equal_batches(loader, range(20), [1], native(other), torchs_own)
    require_equal_batches(loader, range(20), [loader], native(compiled), torchs_own)
    require_equal_batches(loader, range(20), [loader], native(other), torchs_own)  # compared before


def test_arguments_that_headrace_refuses_are_unsupported(folder: Path) -> None:
    with pytest.raises(Unsupported, match="bits"):
        compiled_loader(loader_over(folder, v1.Resize((40, 40)), v1.RandomPosterize(0), v1.ToTensor()))


def test_a_loader_that_fails_the_check_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setitem(os.environ, CHECK, "8")
    lines: list[str] = request.getfixturevalue("taken_over")
    next(iter(loader_over(folder, *TRAIN)))
    assert re.search(r"check: 8 items in 4 batches, over 2 epochs: equal bit for bit", lines[-1]), lines
    original = hook.compile_loader
    monkeypatch.setattr(hook, "compile_loader", lambda found, threads: changed(original(found, threads), 0, scale=(0.3, 0.9)))
    monkeypatch.setattr(hook, "require_equal_batches", lambda *arguments: None)
    next(iter(loader_over(folder, *TRAIN)))
    assert "not taken over: check failed: batch" in lines[-1]
