"""Code of items that uses a tensor where torch asks no subclass gets no deferred tensors: those would end the worker."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deferred_helpers import OwnImages
from headrace.accelerate.script.tensor_bypasses import bypasses_subclasses
from torch.utils.data import DataLoader, default_collate
from torch.utils.data._utils.collate import collate, default_collate_fn_map
from torchvision import transforms, tv_tensors
from torchvision.transforms import v2

STEPS = transforms.Compose([transforms.Resize((24, 24)), transforms.ToTensor()])


class SetsData(OwnImages):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        other = torch.zeros(1)
        other.data = image
        return other, label


class AsDlpack(OwnImages):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(image)), label  # type: ignore[attr-defined]


class AsParameter(OwnImages):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return torch.nn.Parameter(image, requires_grad=False).data, label


class Renamed(OwnImages):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        image.__class__ = torch.nn.Parameter
        return image.data, label


def halves(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return torch.stack(batch).half()


def listed(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return list(batch)


def collate_with_halves(batch: Any) -> Any:
    return collate(batch, collate_fn_map={**default_collate_fn_map, torch.Tensor: halves, tv_tensors.Image: listed})


TV_STEPS = v2.Compose([v2.Resize((24, 24)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("steps", [STEPS, TV_STEPS])
def test_functions_that_collate_by_type_are_the_scripts(workers: int, steps: Any, both: Any, folder: Path) -> None:
    def script() -> Any:
        loader = DataLoader(OwnImages(folder, steps), 5, num_workers=workers, collate_fn=collate_with_halves)
        return [[*batch] for batch in loader]

    both(script)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_function_for_images_in_torchs_own_map(
    workers: int, both: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(default_collate_fn_map, tv_tensors.Image, halves)
    both(lambda: [[*batch] for batch in DataLoader(OwnImages(folder, TV_STEPS), 5, num_workers=workers)])


class Scales(torch.nn.Module):
    def forward(self, image: Any) -> Any:
        return image * 2


def compiled_in_place() -> Any:
    made = Scales()
    made.compile(backend="eager")
    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["function", "module", "call", "library's function"])
def test_what_torch_has_compiled_gets_ordinary_tensors(kind: str, both: Any, folder: Path) -> None:
    made: Any = {
        "function": lambda: torch.compile(lambda image: image * 2, backend="eager"),
        "module": lambda: torch.compile(Scales(), backend="eager"),
        "call": compiled_in_place,
        "library's function": lambda: torch.compile(transforms.functional.hflip, backend="eager"),
    }[kind]()
    dataset = OwnImages(folder, transforms.Compose([*STEPS.transforms, made]))
    assert bypasses_subclasses(SimpleNamespace(dataset=dataset, collate_fn=default_collate))
    both(lambda: [[*batch] for batch in DataLoader(dataset, 5, num_workers=1)])


BYPASSES = [SetsData, AsDlpack, AsParameter, Renamed]


@pytest.mark.parametrize("kind", BYPASSES)
def test_the_items_are_those_of_plain_loading(kind: Any, both: Any, folder: Path) -> None:
    both(lambda: [[*batch] for batch in DataLoader(kind(folder, STEPS), 5, num_workers=1)])


@pytest.mark.parametrize("kind", BYPASSES)
def test_such_code_is_found(kind: Any, folder: Path) -> None:
    assert bypasses_subclasses(SimpleNamespace(dataset=kind(folder, STEPS), collate_fn=default_collate))


def test_such_code_is_found_in_a_module_with_the_name_of_a_library(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script's own `datasets.py` hides the library of Hugging Face."""
    path = tmp_path / "datasets.py"
    path.write_text("def read(image):\n    other = image.clone()\n    other.data = image\n    return other\n")
    spec = importlib.util.spec_from_file_location("datasets", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "datasets", module)
    spec.loader.exec_module(module)
    dataset = OwnImages(folder, transforms.Compose([*STEPS.transforms, module.read]))
    assert bypasses_subclasses(SimpleNamespace(dataset=dataset, collate_fn=default_collate))


def test_attributes_of_the_dataset_itself_are_its_own(folder: Path) -> None:
    class KeepsData(OwnImages):
        def __init__(self, root: Path) -> None:
            super().__init__(root, STEPS)
            self.data = list(self.paths)

    assert not bypasses_subclasses(SimpleNamespace(dataset=KeepsData(folder), collate_fn=default_collate))
