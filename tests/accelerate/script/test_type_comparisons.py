"""Scripts that look at `type(tensor)` or `type(image)` are found by the text of their own modules, and by the code of items."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from deferred_helpers import OwnImages
from headrace.accelerate.script import library_code, type_comparisons
from headrace.accelerate.script import text as script_text
from headrace.accelerate.script.type_comparisons import compares_tensor_types, types_looked_at
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms

FOUND = [
    "def f(x):\n    return type(x) is torch.Tensor\n",
    "if type(batch[0]) == torch.Tensor: pass\n",
    "ok = type(x[0]) in (list, torch.Tensor)\n",
    "ok = type(x) is not tv_tensors.Image\n",
]
NOT_FOUND = ["ok = isinstance(x, torch.Tensor)\n", "ok = type(x) is list\n", "kind = type(x)\n", "y = torch.Tensor(type(x))\n"]


@pytest.mark.parametrize("text", [*FOUND, *NOT_FOUND])
def test_comparisons_are_found(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type_comparisons, "module_with", script_text.module_with)
    for name, empty in (("_known", set(sys.modules)), ("_own", {}), ("_without", {})):
        monkeypatch.setattr(script_text, name, empty)
    (tmp_path / "own_script_part.py").write_text(
        "x = batch = torch = tv_tensors = None\ndef g():\n    " + text.replace("\n", "\n    ")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        importlib.import_module("own_script_part")
        assert compares_tensor_types() == ("own_script_part" if text in FOUND else None)
    finally:
        sys.modules.pop("own_script_part", None)


def test_installed_packages_and_headrace_are_not_searched() -> None:
    import torch

    assert all(library_code.is_installed(str(path)) for path in (torch.__file__, script_text.__file__, json.__file__))


STEPS = transforms.Compose([transforms.Resize((24, 24)), transforms.ToTensor()])
STACKS: dict[Any, Any] = {torch.Tensor: torch.stack}


def by_kind(batch: Any) -> Any:
    kind = type(batch[0][0])
    stack = STACKS.get(kind, list)
    return stack([one for one, _ in batch])


def all_of_one_kind(batch: Any) -> Any:
    return [one for one, _ in batch], all(type(one) is type(batch[0][0]) for one, _ in batch)


def as_instances(batch: Any) -> Any:
    first, *others = [one.clone() if number % 2 else one for number, (one, _) in enumerate(batch)]
    return [first, *(one for one in others if isinstance(one, type(first)))]


class ByKind(OwnImages):
    def __getitem__(self, index: int) -> Any:
        opened = Image.open(self.paths[index])
        names: dict[Any, int] = {Image.Image: 1, PIL.JpegImagePlugin.JpegImageFile: 2}
        image = opened.convert("RGB")
        return self.transform(image), (names.get(type(opened), 0), names.get(type(image), 0))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", [by_kind, all_of_one_kind, as_instances])
def test_a_collate_function_sees_the_class_of_plain_loading(workers: int, collate: Any, both: Any, folder: Path) -> None:
    both(lambda: list(DataLoader(OwnImages(folder, STEPS), 4, num_workers=workers, collate_fn=collate)))


@pytest.mark.parametrize("workers", [0, 1])
def test_items_see_the_class_of_an_image(workers: int, both: Any, folder: Path) -> None:
    both(lambda: [[*batch] for batch in DataLoader(ByKind(folder, STEPS), 4, num_workers=workers)])


def with_names_of_classes(batch: Any) -> Any:
    kind = type(batch)
    if not batch or type(batch[0]) in (list, dict) or type(batch[0]) is np.ndarray or type(batch[0]) is type(None):
        raise TypeError("no tuples", type(batch[0]))
    print(f"{type(batch)}", kind.__name__, "%s" % type(batch[0]))  # noqa: UP031
    return kind(batch)


def with_tensors(batch: Any) -> Any:
    return [one for one in batch if type(one) is not torch.Tensor]


def with_images(batch: Any) -> Any:
    return [one for one in batch if type(one) == PIL.Image.Image]  # noqa: E721


@pytest.mark.parametrize(
    ("collate", "found"),
    [
        (with_names_of_classes, set()),
        (with_tensors, {"tensor"}),
        (with_images, {"image"}),
        (by_kind, {"tensor", "image"}),
        (all_of_one_kind, {"tensor", "image"}),
        (as_instances, {"tensor", "image"}),
    ],
)
def test_looks_at_types_are_told_apart(collate: Any, found: set[str]) -> None:
    assert types_looked_at(SimpleNamespace(dataset=[], collate_fn=collate)) == found


def test_types_in_a_module_of_arrays_are_no_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "arrays_only.py").write_text("def kind(x):\n    found = type(x)\n    return x, found\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(globals(), "arrays_only", importlib.import_module("arrays_only"))
    loader = SimpleNamespace(dataset=[], collate_fn=lambda batch: [arrays_only.kind(one) for one in batch])  # type: ignore[name-defined] # noqa: F821
    try:
        assert types_looked_at(loader) == {"tensor", "image"}
        monkeypatch.setattr(type_comparisons, "_OF_ARRAYS", ("arrays_only", "not_imported"))
        assert types_looked_at(loader) == {"tensor"}
    finally:
        sys.modules.pop("arrays_only", None)


def test_a_module_of_the_script_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_script_helpers.py").write_text("TABLE = {}\ndef pick(x):\n    return TABLE[type(x)]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(globals(), "own_helpers", importlib.import_module("own_script_helpers"))
    try:
        collate = lambda batch: [own_helpers.pick(one) for one in batch]  # type: ignore[name-defined] # noqa: E731, F821
        assert types_looked_at(SimpleNamespace(dataset=[], collate_fn=collate)) == {"tensor", "image"}
    finally:
        sys.modules.pop("own_script_helpers", None)


class Named:
    """A helper of a dataset, which compares itself with others of its class."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) or type(other) is self.__class__

    __hash__ = None  # type: ignore[assignment]


def test_a_comparison_with_the_own_class_is_none_with_a_tensors() -> None:
    class WithNames(OwnImages):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index), Named() == Named()

    loader = SimpleNamespace(dataset=WithNames, collate_fn=Named)
    assert types_looked_at(loader) == frozenset()
