"""What scripts do around their batches and objects that `headrace run` once saw otherwise: each plain and under the hook."""

from __future__ import annotations

import os
import random
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deferred_helpers import OwnImages
from PIL import Image, ImageOps
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional

Both = Callable[[Callable[[], Any]], tuple[Any, list[str]]]
CROP = transforms.RandomResizedCrop(24)
STEPS = [CROP, transforms.RandomHorizontalFlip(), transforms.ToTensor()]
WHOLE = "the same batches, bit for bit"


def is_whole(lines: list[str]) -> bool:
    return any(WHOLE in line for line in lines)


class Own(OwnImages):
    def __init__(self, root: Path) -> None:
        super().__init__(root, transforms.Compose(STEPS))


def as_tuples(batch: Any) -> Any:
    return tuple(zip(*batch, strict=True))


@dataclass
class Boxes:
    boxes: Any
    names: list[str]


class Detection(Own):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.targets = [Boxes(np.full((2, 4), 8.0), ["one"]) for _ in self.paths]

    def target(self, index: int) -> Any:
        return self.targets[index]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loop_that_changes_targets_does_not_change_the_dataset(workers: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        loader, found = DataLoader(Detection(folder), 5, num_workers=workers, collate_fn=as_tuples), []
        for _ in range(2):
            for _, targets in loader:
                for one in targets:
                    one.boxes /= 4
                    one.names.append("more")
                    found.append((float(one.boxes.sum()), len(one.names)))
        return found

    both(script)


class Named(Own):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.classes = {f"class {number}" for number in range(17)} - {"class 3", "class 9"}

    def target(self, index: int) -> Any:
        return list(self.classes)[index % len(self.classes)]


class Same(Own):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.hard = [1, 2]
        self.rows = [self.hard if number % 2 else [number] for number in range(len(self.paths))]

    def target(self, index: int) -> Any:
        return int(self.rows[index] is self.hard)


class Repeated(Own):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.rows = [[], [2]] * len(self.paths)

    def target(self, index: int) -> Any:
        return int(self.rows[index] is self.rows[index % 2])


class Transposed(Own):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.values = np.random.RandomState(1).rand(40, 700).astype(np.float32).T

    def target(self, index: int) -> Any:
        return float(self.values[index:].sum())


class Reversed(Transposed):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.values = self.values[::-1, ::2]


class Columns(Transposed):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.values = torch.from_numpy(np.ascontiguousarray(self.values))[:, ::3]


class Marked(Own):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.values = torch.arange(5)
        self.values.shift = 7  # type: ignore[attr-defined]

    def target(self, index: int) -> Any:
        return index + getattr(self.values, "shift", 0)


@pytest.mark.parametrize("kind", [Named, Same, Repeated, Transposed, Reversed, Columns, Marked])
def test_objects_of_the_dataset_are_as_in_a_worker(kind: Any, both: Both, folder: Path) -> None:
    both(lambda: [[*batch] for batch in DataLoader(kind(folder), 5, num_workers=1)])


class Options:
    level = 0.25
    table = list(range(3000))  # noqa: RUF012


options = types.ModuleType("options_of_a_script")
options.level = 0.25  # type: ignore[attr-defined]
STEEP = np.full(4000, 0.25)


class ByClass:
    def __call__(self, image: Any) -> Any:
        return ImageOps.invert(image) if Options.level > 0.5 else image


class ByModule:
    def __call__(self, image: Any) -> Any:
        return ImageOps.invert(image) if options.level > 0.5 else image


class ByTable:
    def __call__(self, image: Any) -> Any:
        return ImageOps.invert(image) if STEEP[3500] > 0.5 else image


class ByList:
    def __call__(self, image: Any) -> Any:
        return ImageOps.invert(image) if Options.table[2000] == 1 else image


@pytest.mark.parametrize("kind", [ByClass, ByModule, ByTable, ByList])
def test_a_curriculum_that_the_loop_changes(kind: Any, both: Both, folder: Path) -> None:
    def script() -> Any:
        Options.level, options.level, STEEP[3500], Options.table[2000] = 0.25, 0.25, 0.25, 2000  # type: ignore[attr-defined]
        found = []
        for images, _ in DataLoader(ImageFolder(str(folder), transforms.Compose([CROP, kind(), transforms.ToTensor()])), 3):
            found.append(images)
            if len(found) == 2:
                Options.level, options.level, STEEP[3500], Options.table[2000] = 1.0, 1.0, 1.0, 1  # type: ignore[attr-defined]
        return found

    both(script)


class Settings(Own):
    def target(self, index: int) -> Any:
        return str(np.array([index / 23])), torch.tensor([index / 4]), np.float32(index) * np.float32(1e38)


@pytest.mark.filterwarnings("ignore:overflow")
def test_settings_of_the_loop_do_not_reach_its_workers(both: Both, folder: Path) -> None:
    def script() -> Any:
        loader = DataLoader(Settings(folder), 5, num_workers=1, persistent_workers=True)
        found = [[*batch] for batch in loader]
        try:
            np.set_printoptions(precision=2)
            torch.set_default_dtype(torch.float64)
            with np.errstate(over="raise"):
                found += [[*batch] for batch in loader]
        finally:
            np.set_printoptions(precision=8)
            torch.set_default_dtype(torch.float32)
        return found

    both(script)


def test_a_device_of_the_loop_is_not_that_of_its_workers(both: Both, folder: Path) -> None:
    def script() -> Any:
        batches = iter(DataLoader(ImageFolder(str(folder), transforms.Compose(STEPS)), 5, num_workers=1))
        found = []
        for _ in range(3):
            with torch.device("meta"):
                found.append(next(batches))
        return [(one, labels, labels.device.type) for one, labels in found]

    both(script)


class Kept(Own):
    """Its items keep what they make of a tensor. They are taken over in part."""

    def __getitem__(self, index: int) -> Any:
        image = functional.to_tensor(Image.open(self.paths[index]).convert("RGB").resize((20, 20)))
        other = image.to(torch.float32, False, True)
        other.zero_()
        return image, random.random()


class Divided(Own):
    def __getitem__(self, index: int) -> Any:
        image = functional.pil_to_tensor(Image.open(self.paths[index]).convert("RGB").resize((20, 20)))
        return image / 255.0, random.random()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_copy_of_a_deferred_tensor_is_one(workers: int, both: Both, folder: Path) -> None:
    both(lambda: [[*batch] for batch in DataLoader(Kept(folder), 3, num_workers=workers)])


def test_a_default_type_that_changes_between_passes(both: Both, folder: Path) -> None:
    def script() -> Any:
        loader, found = DataLoader(Divided(folder), 3), []
        try:
            for number in range(4):
                if number == 3:
                    torch.set_default_dtype(torch.float64)
                found += [[*batch] for batch in loader]
        finally:
            torch.set_default_dtype(torch.float32)
        return found

    both(script)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_is_no_view(workers: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        images, _ = next(iter(DataLoader(ImageFolder(str(folder), transforms.Compose(STEPS)), 4, num_workers=workers)))
        weight = torch.ones(1, requires_grad=True)
        images.detach_()
        images.mul_(weight)
        return images._base is None, type(images.grad_fn).__name__, images.detach()

    _, lines = both(script)
    assert is_whole(lines)


@pytest.mark.parametrize("workers", [0, 1])
def test_images_of_a_list_are_tensors_of_their_own(workers: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        images, _ = next(iter(DataLoader(Own(folder), 4, num_workers=workers, collate_fn=as_tuples)))
        weight = torch.ones(1, requires_grad=True)
        loss = (images[0] * weight).sum()
        images[1].zero_()
        loss.backward()
        return [(one, one._base is None, one.untyped_storage().nbytes()) for one in images], weight.grad

    _, lines = both(script)
    assert is_whole(lines)


class Endless:
    """A batch sampler that is its own iterator, and begins anew behind its end."""

    def __init__(self, length: int) -> None:
        self.length, self.at = length, 0

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        if self.at == self.length:
            self.at = 0
            raise StopIteration
        self.at += 1
        return [self.at - 1]


def test_a_sampler_that_begins_anew_behind_its_end(both: Both, folder: Path) -> None:
    def script() -> Any:
        data, found = ImageFolder(str(folder), transforms.Compose(STEPS)), []
        for batch in DataLoader(data, batch_sampler=Endless(7), num_workers=1):  # type: ignore[arg-type]
            found.append([*batch])
            if len(found) > 40:
                break
        return found

    both(script)


class Subset(Dataset[Any]):
    """A dataset of a script that bears the name of torch's."""

    root = property(lambda self: 1 / 0)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return index


class Rooted(Subset):
    root = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.root = np.zeros((3, 2))


@pytest.mark.parametrize("kind", [Subset, Rooted])
def test_any_dataset_can_be_named(kind: Any, both: Both) -> None:
    both(lambda: [batch.tolist() for batch in DataLoader(kind(), 2)])


def test_a_folder_of_the_script_with_the_name_of_a_package_is_no_package(
    both: Both, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "__init__.py").write_text("LEVEL = 1\n\n\ndef target(index):\n    return index + LEVEL\n")
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    import datasets

    class Labelled(Own):
        def target(self, index: int) -> Any:
            return datasets.target(index)

    def script() -> Any:
        datasets.LEVEL = 1
        found = []
        for batch in DataLoader(Labelled(folder), 2, num_workers=1, prefetch_factor=1):
            datasets.LEVEL += 100
            found.append(batch[1])
        return found

    both(script)
    monkeypatch.delitem(sys.modules, "datasets")


def test_a_reader_of_the_script_before_pillows_is_asked(both: Both, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def accept(prefix: bytes) -> bool:
        asked.append(os.getpid())
        return False

    Image.init()
    monkeypatch.setattr(Image, "ID", ["OWN", *Image.ID])
    monkeypatch.setitem(Image.OPEN, "OWN", (lambda file, name: None, accept))

    def script() -> Any:
        asked.clear()
        for _ in DataLoader(ImageFolder(str(folder), transforms.Compose(STEPS)), 5):
            pass
        return len(asked)

    both(script)


def test_a_method_of_pillows_jpegs_that_is_replaced(both: Both, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL.JpegImagePlugin import JpegImageFile

    def convert(self: Any, *arguments: Any, **named: Any) -> Any:
        return ImageOps.invert(Image.Image.convert(self, "RGB"))

    monkeypatch.setattr(JpegImageFile, "convert", convert, raising=False)

    class Drawing(Own):
        def target(self, index: int) -> Any:
            return random.random()

    both(lambda: [[*batch] for batch in DataLoader(Drawing(folder), 5)])


class DoubledStacks(TorchFunctionMode):
    """As a script's own mode: it sees each call of torch, and changes one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is torch.stack else found


class DoubledQuotients(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 2 if "aten.div" in str(func) else found


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("mode", [DoubledStacks, DoubledQuotients])
def test_a_mode_of_torch_that_is_there_when_a_pass_begins(mode: Any, workers: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        with mode():
            folders = ImageFolder(str(folder), transforms.Compose(STEPS))
            return [[*batch] for data in (folders, Own(folder)) for batch in DataLoader(data, 5, num_workers=workers)]

    assert all("under a mode of torch" in line for line in both(script)[1])


@pytest.mark.matrix(keep=4)
@pytest.mark.parametrize("route", ["folder", "items", "lazy"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("mode", [DoubledStacks, DoubledQuotients])
def test_a_mode_of_torch_that_begins_within_a_pass(mode: Any, workers: int, route: str, both: Both, folder: Path) -> None:
    class Drawing(Own):
        def target(self, index: int) -> Any:
            return random.random()

    def script() -> Any:
        steps = transforms.Compose(STEPS)
        own = Own(folder) if route == "items" else Drawing(folder)
        data: Any = ImageFolder(str(folder), steps) if route == "folder" else own
        batches = iter(DataLoader(data, 4, num_workers=workers))
        found = [[*next(batches)], [*next(batches)]]
        with mode():
            found += [[*next(batches)], [*next(batches)]]
        return [*found, [*next(batches)]]

    both(script)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_options_for_texts_of_tensors(workers: int, both: Both, folder: Path) -> None:
    class Described(Own):
        def __init__(self, root: Path) -> None:
            super().__init__(root)
            self.values = torch.rand(len(self.paths))

        def target(self, index: int) -> Any:
            return f"{self.values[index : index + 2]}"

    def script() -> Any:
        found = []
        try:
            for number, batch in enumerate(DataLoader(Described(folder), 2, num_workers=workers)):
                found.append([*batch])
                torch.set_printoptions(precision=1 + number % 3)
        finally:
            torch.set_printoptions(profile="default")
        return found

    both(script)


class Rows(Own):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.rows = np.arange(4.0 * len(self.paths)).reshape(-1, 4)
        self.rows.flags.writeable = False

    def target(self, index: int) -> Any:
        return self.rows[index]


def with_rows(batch: Any) -> Any:
    return torch.stack([one[0] for one in batch]), [one[1] for one in batch]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_array_of_a_batch_is_as_it_arrives(workers: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        loader = DataLoader(Rows(folder), 5, num_workers=workers, collate_fn=with_rows)
        return [(images, rows, [one.flags.writeable for one in rows]) for images, rows in loader]

    assert is_whole(both(script)[1])


@pytest.mark.parametrize("kind", [RandomSampler, BatchSampler])
def test_a_sampler_of_torchs_that_is_replaced_is_not_asked_ahead(
    kind: Any, both: Both, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [0]

    def indices(self: Any) -> Iterator[Any]:
        for _ in range(12):
            yield chosen[0] if kind is RandomSampler else [chosen[0]]

    def script() -> Any:
        chosen[0] = 0
        found = []
        for batch in DataLoader(ImageFolder(str(folder), transforms.Compose(STEPS)), 2, shuffle=True):
            found.append([*batch])
            chosen[0] += 1
        return found

    monkeypatch.setattr(kind, "__iter__", indices)
    assert is_whole(both(script)[1])


def test_a_mean_in_tensors_that_drifts(both: Both, folder: Path) -> None:
    class Drifting(Own):
        def __getitem__(self, index: int) -> Any:
            image = functional.to_tensor(functional.resize(Image.open(self.paths[index]).convert("RGB"), [24, 24]))
            mean = [*(torch.rand(3) * 1e-5 + 0.5)]
            return functional.normalize(image, mean, [0.5, 0.5, 0.5]), index

    both(lambda: [[*batch] for batch in DataLoader(Drifting(folder), 5)])
