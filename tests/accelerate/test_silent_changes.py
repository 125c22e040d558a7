"""What scripts do that changed a training silently under `headrace run`: each beside the same script without it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from deferred_helpers import WORKER_ENDED, OwnImages, described, wait_for_dead_workers
from headrace.accelerate.script import replaced_functions
from headrace.accelerate.script.library_code import is_of_library
from headrace.accelerate.workers.errors import Interrupted
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Sampler, Subset
from torch.utils.data._utils.collate import collate_int_fn, collate_tensor_fn, default_collate_fn_map
from torchvision import transforms
from torchvision.datasets import ImageFolder

Both = Callable[[Callable[[], Any]], tuple[Any, list[str]]]
CROP = [transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip()]
FLOATS = [transforms.ToTensor()]
WHOLE, PART = "the same batches, bit for bit", "taken over in part"


def every(loader: Any, epochs: int = 2) -> list[Any]:
    return [[*batch] for _ in range(epochs) for batch in loader]


def has(lines: list[str], words: str) -> bool:
    return any(words in line for line in lines)


class Numbers:
    """As a configuration's list: it has its own `__iter__`."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def __iter__(self) -> Iterator[float]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> float:
        return self.values[index]


def test_a_take_over_that_is_given_up_draws_no_seed(both: Both, folder: Path) -> None:
    steps = [*CROP, *FLOATS, transforms.Normalize(Numbers(0.4, 0.5, 0.6), Numbers(0.2, 0.2, 0.2))]
    loader = DataLoader(ImageFolder(str(folder), transforms.Compose(steps)), 5, shuffle=True, num_workers=2)
    both(lambda: every(loader))


class Once(Sampler[int]):
    """A sampler that fails when it is asked for the first time."""

    def __init__(self) -> None:
        self.asked = 0

    def __iter__(self) -> Iterator[int]:
        self.asked += 1
        if self.asked == 1:
            raise ValueError("not yet")
        return iter(range(6))

    def __len__(self) -> int:
        return 6


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_sampler_is_the_scripts(workers: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        dataset = ImageFolder(str(folder), transforms.Compose([*CROP, *FLOATS]))
        return every(DataLoader(dataset, 5, sampler=Once(), num_workers=workers))

    assert both(script)[0] == (ValueError, "not yet")


@pytest.mark.slow
def test_the_warning_of_too_many_workers_is_given_in_each_pass(both: Both, folder: Path) -> None:
    def script() -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = DataLoader(ImageFolder(str(folder), transforms.Compose([*CROP, *FLOATS])), 5, num_workers=40)
            for _ in range(2):
                next(iter(loader))
        return [str(one.message) for one in caught if "worker processes" in str(one.message)]

    if len(os.sched_getaffinity(0)) >= 40:
        pytest.skip("there are as many cores")
    assert len(both(script)[0]) == 1 + 3  # described as a list: its type and three warnings


def test_a_default_type_that_changes_within_a_pass(both: Both, folder: Path) -> None:
    def script() -> Any:
        loader = DataLoader(ImageFolder(str(folder), transforms.Compose([transforms.Resize((9, 9)), *FLOATS])), 3)
        try:
            found = []
            for number, batch in enumerate(loader):
                found.append(batch)
                if number == 1:
                    torch.set_default_dtype(torch.float64)
            return found
        finally:
            torch.set_default_dtype(torch.float32)

    both(script)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [ImageFolder, OwnImages])
def test_a_limit_of_pixels_that_is_lowered_within_a_pass(
    kind: Any, workers: int, both: Both, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script() -> Any:
        found = []
        with monkeypatch.context() as patched:
            for batch in DataLoader(kind(folder, transforms.Compose([*CROP, *FLOATS])), 5, num_workers=workers):
                found.append([*batch])
                patched.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        return found

    both(script)


@pytest.mark.parametrize("workers", [0, 1])
def test_inference_mode_that_begins_within_a_pass(workers: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        loader = DataLoader(ImageFolder(str(folder), transforms.Compose([*CROP, *FLOATS])), 3, num_workers=workers)
        batches = iter(loader)
        found = [next(batches)[0].is_inference()]
        with torch.inference_mode():
            found.append(next(batches)[0].is_inference())
        return [*found, next(batches)[0].is_inference()]

    assert both(script)[0][1:] == [False, True, False]


def test_a_subset_whose_tensor_of_indices_changes(both: Both, folder: Path) -> None:
    def script() -> Any:
        indices = torch.arange(18)
        loader = DataLoader(Subset(ImageFolder(str(folder), transforms.Compose([*CROP, *FLOATS])), indices), 3, num_workers=1)
        found = []
        for batch in loader:
            found.append(batch)
            indices[:] = 0
        return found

    both(script)


def test_a_subset_whose_indices_are_in_shared_memory(both: Both, folder: Path) -> None:
    def script() -> Any:
        indices = torch.arange(6).share_memory_()  # its workers read what the loop writes
        data = Subset(ImageFolder(str(folder), transforms.Compose([*CROP, *FLOATS])), indices)
        loader = DataLoader(data, 3, num_workers=1, persistent_workers=True)
        found = every(loader, 1)
        indices[:] = 7
        return found + every(loader, 1)

    assert not has(both(script)[1], WHOLE)


@pytest.mark.parametrize("route", ["folder", "items"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_current_folder_that_changes(workers: int, route: str, both: Both, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / folder.name
    for file in folder.rglob("*.jpg"):
        target = other / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (7, 99, 200)).save(target)
    before = Path.cwd()

    def script() -> Any:
        os.chdir(folder.parent)
        try:
            steps = transforms.Compose([transforms.Resize((20, 20)), *FLOATS])
            dataset = ImageFolder(folder.name, steps) if route == "folder" else OwnImages(Path(folder.name), steps)
            loader = DataLoader(dataset, 4, num_workers=workers)
            found = []
            for number, batch in enumerate(loader):
                found.append(batch)
                if number == 1:
                    os.chdir(tmp_path / "elsewhere")
            return [*found, *loader]
        finally:
            os.chdir(before)

    both(script)


class Seen(OwnImages):
    """Its targets are counted in a list that a keyword-only argument hands on."""

    def __init__(self, root: Path, transform: Any) -> None:
        super().__init__(root, transform)
        self.seen: list[int] = []

    def note(self, index: int, *, seen: Any = None) -> int:
        if seen is None:
            seen = []
        seen.append(index)
        return len(seen)

    def target(self, index: int) -> Any:
        return self.note(index, seen=self.seen)


class Counter:
    """An object whose operators and truth are code of the script."""

    def __init__(self) -> None:
        self.count = 0

    def __sub__(self, other: int) -> int:
        self.count += 1
        return self.count - other

    def __len__(self) -> int:
        self.count += 1
        return self.count


class Subtracts(OwnImages):
    counter: Any = None

    def target(self, index: int) -> Any:
        return self.counter - index


class Decides(OwnImages):
    counter: Any = None

    def target(self, index: int) -> Any:
        return (index if self.counter else -1), self.counter.count


class Row(NamedTuple("Row", [("number", int)])):
    @property
    def drawn(self) -> float:
        return float(torch.rand(1)) if self.number % 3 == 0 else 0.0


class Rows(OwnImages):
    rows: Any = ()

    def target(self, index: int) -> Any:
        return self.rows[index].drawn


class Exits(OwnImages):
    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except OSError:
            sys.exit(3)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [Seen, Subtracts, Decides, Rows])
def test_code_of_the_script_runs_where_and_as_often_as_in_plain(kind: Any, workers: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        dataset = kind(folder, transforms.Compose([*CROP, *FLOATS]))
        dataset.counter, dataset.rows = Counter(), [Row(number) for number in range(len(dataset))]
        return [*every(DataLoader(dataset, 5, num_workers=workers)), getattr(dataset, "seen", None), dataset.counter.count]

    both(script)


class Streams(OwnImages):
    """The dataset holds iterators, and the target of each item takes values from them."""

    def __init__(self, root: Path, transform: Any) -> None:
        super().__init__(root, transform)
        self.pairs = [(number + more for more in range(2)) for number in range(len(self.paths))]
        self.zipped = [zip(range(3), range(3), strict=True) for _ in self.paths]
        self.endless = (number for number in range(1 << 20))


class Listed(Streams):
    def target(self, index: int) -> Any:
        return len(list(self.pairs[index])), sum(a + b for a, b in self.zipped[index])


class Unpacked(Streams):
    def target(self, index: int) -> Any:
        first, second = self.pairs[index]
        return first + second


class Named(Streams):
    def pair(self, index: int) -> Any:
        return self.pairs[index]

    def target(self, index: int) -> Any:
        found = 0
        for number in self.pair(index):
            found += number
        return found


class Contains(Streams):
    def target(self, index: int) -> Any:
        return int(index in self.endless)


class Summed(OwnImages):
    """Its targets take values from iterators of its own, and nothing else."""

    def target(self, index: int) -> Any:
        made = zip([index, 1], [2, 3], strict=True)
        squares = (a * a for a in range(index))
        return sum(a * b for a, b in made) + sum(squares)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [Listed, Unpacked, Named, Contains, Summed])
def test_iterators_that_the_dataset_holds_are_not_used_up(kind: Any, workers: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        dataset = kind(folder, transforms.Compose([*CROP, *FLOATS]))
        return every(DataLoader(dataset, 5, num_workers=workers), epochs=1)

    _, lines = both(script)
    assert has(lines, WHOLE) == (kind is Summed)


def test_an_item_that_exits_ends_its_worker_only(both: Both, folder: Path) -> None:
    (folder / "class_1" / "image_001.jpg").write_bytes(b"")

    def script() -> Any:
        with pytest.raises(WORKER_ENDED):
            try:
                every(DataLoader(Exits(folder, transforms.Compose([*CROP, *FLOATS])), 5, num_workers=1), 1)
            finally:
                wait_for_dead_workers()
        return True

    assert both(script)[0] is True


def turned(original: Any) -> Any:
    @functools.wraps(original)
    def replacement(*arguments: Any, **named: Any) -> Any:
        return original(*arguments, **named) * 0 + 7

    return replacement


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


PATCHES: dict[str, tuple[Any, str]] = {
    "a function of a transform": (transforms.functional, "to_tensor"),
    "a method of a transform": (transforms.ToTensor, "__call__"),
    "a list of transforms": (transforms.Compose, "__call__"),
    "the collate function": (torch.utils.data._utils.collate, "default_collate"),
    "NumPy's conversion": (np, "asarray"),
}


@pytest.mark.parametrize("patch", PATCHES)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_function_that_is_replaced_between_epochs(patch: str, workers: int, both: Both, folder: Path) -> None:
    owner, name = PATCHES[patch]

    def script() -> Any:
        loader = DataLoader(ImageFolder(str(folder), transforms.Compose([*CROP, *FLOATS])), 5, num_workers=workers)
        first = every(loader, 1)
        value = (lambda *arguments, **named: before(*arguments, **named)) if owner is np else turned(getattr(owner, name))
        before = getattr(owner, name)
        if patch == "the collate function":
            value = functools.wraps(before)(lambda items: [value.__wrapped__(items), "mine"])  # type: ignore[attr-defined]
        with replaced(owner, name, value):
            return [first, [[described(batch)] for batch in loader]]

    _, lines = both(script)
    assert has(lines, WHOLE) and has(lines, PART) == (owner is not np)  # lazy images are made by NumPy, too
    assert has(lines, f"{name} is replaced")


class Solarized:
    """Its probability is a variable of the class, its threshold one of the module."""

    p = 0.0

    def __call__(self, image: Any) -> Any:
        if torch.rand(1) < self.p:
            return ImageOps.solarize(image, THRESHOLD)
        return image


THRESHOLD = 128


@pytest.mark.parametrize("workers", [0, 1])
def test_a_variable_of_a_transforms_class_or_module_that_changes(
    workers: int, both: Both, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script() -> Any:
        monkeypatch.setattr(Solarized, "p", 0.5)
        monkeypatch.setattr(sys.modules[__name__], "THRESHOLD", 128)
        steps = transforms.Compose([*CROP, Solarized(), *FLOATS])
        loader = DataLoader(ImageFolder(str(folder), steps), 3, num_workers=workers)
        found = []
        for number, batch in enumerate(loader):
            found.append(batch)
            if number == 1:
                monkeypatch.setattr(Solarized, "p", 1.0)
            if number == 3:
                monkeypatch.setattr(sys.modules[__name__], "THRESHOLD", 9)
        return [*found, *loader]

    both(script)


class Shared:
    """Its strength is in memory that processes share."""

    def __init__(self) -> None:
        self.p = torch.zeros(1).share_memory_()

    def __call__(self, image: Any) -> Any:
        return ImageOps.invert(image) if torch.rand(1) < self.p.item() else image


@pytest.mark.parametrize("persistent", [False, True])
def test_a_strength_in_shared_memory(persistent: bool, both: Both, folder: Path) -> None:
    def script() -> Any:
        own = Shared()
        steps = transforms.Compose([*CROP, own, *FLOATS])
        dataset = ImageFolder(str(folder), steps)
        loader = DataLoader(dataset, 4, num_workers=1, persistent_workers=persistent)
        found = []
        for _ in range(3):
            found += list(loader)
            own.p += 0.5
        return found

    both(script)


def test_a_warning_that_the_script_shows_itself_is_shown_in_the_worker(both: Both, folder: Path) -> None:
    file = folder / "class_0" / "image_002.jpg"
    Image.new("P", (30, 30)).save(file, "PNG", transparency=bytes(range(8)))
    shown: list[str] = []

    def script() -> Any:
        shown.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *rest: shown.append(str(message))
            found = list(DataLoader(ImageFolder(str(folder), transforms.Compose([*CROP, *FLOATS])), 5, num_workers=1))
        return [*found, [one for one in shown if "Palette" in one]]

    both(script)


class Tick(Exception):
    """Raised by a handler of a signal."""


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_of_a_signal_handler_is_the_scripts(workers: int, folder: Path, taken_over: list[str]) -> None:
    loader = DataLoader(ImageFolder(str(folder), transforms.Compose([*CROP, *FLOATS])), 5, num_workers=workers)
    batches = iter(loader)
    next(batches)
    waits = batches._jobs[0].job if workers else None

    class Waits:
        """A job during whose wait a signal arrives."""

        def wait(self, timeout: float | None) -> bool:
            raise Tick

        def __getattr__(self, name: str) -> Any:
            return getattr(waits, name)

    if not workers:
        batches._not_filled = lambda job: (_ for _ in ()).throw(Interrupted(Tick()))
        with pytest.raises(Tick):
            next(batches)
        return
    batches._jobs[0].job = Waits()
    with pytest.raises(Tick):
        next(batches)
    batches._jobs[0].job = waits
    assert len(list(batches)) == 3  # no batch is lost, as where torch waits for a worker
    assert not any("stopped" in line for line in taken_over)


@pytest.fixture
def collate_functions() -> Iterator[dict[Any, Any]]:
    before = default_collate_fn_map.copy()
    yield default_collate_fn_map
    default_collate_fn_map.clear()
    default_collate_fn_map.update(before)


def doubled(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """As a script's own function for tensors, which three compared items need not tell from torch's."""
    found = collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return found * 2 if len(batch) > 3 else found


@pytest.mark.parametrize("begins", [0, 2])
@pytest.mark.parametrize("route", ["folder", "items"])
@pytest.mark.parametrize("workers", [0, 1])
def test_what_default_collate_does_with_a_type(
    workers: int, route: str, begins: int, both: Both, folder: Path, collate_functions: dict[Any, Any]
) -> None:
    def script() -> Any:
        collate_functions[torch.Tensor] = doubled if begins == 0 else collate_tensor_fn
        collate_functions[int] = collate_int_fn
        steps = transforms.Compose([*CROP, *FLOATS])
        data: Any = ImageFolder(str(folder), steps) if route == "folder" else OwnImages(folder, steps)
        found = []
        for number, batch in enumerate(DataLoader(data, 4, num_workers=workers), 1):
            found.append([*batch])
            if number == begins:
                collate_functions[torch.Tensor] = doubled
                collate_functions[int] = lambda batch, *, collate_fn_map=None: torch.zeros(len(batch))
        return found

    both(script)


def test_a_function_in_a_decorator_of_torch_takes_the_place_of_torchvisions(
    both: Both, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [0]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def flipped(image: Any) -> Any:
        calls[0] += 1
        return ImageOps.flip(image) if calls[0] > 3 else ImageOps.mirror(image)

    def script() -> Any:
        calls[0] = 0
        return every(DataLoader(ImageFolder(str(folder), transforms.Compose([*CROP, *FLOATS])), 5))

    monkeypatch.setattr(transforms.functional, "hflip", flipped)
    monkeypatch.setattr(replaced_functions, "_known", {})  # as in a process that looks at its first loader
    assert not has(both(script)[1], WHOLE)


def test_a_module_of_the_script_may_have_the_name_of_one_of_pythons(
    both: Both, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its function is no library's, wherever it stands: it mirrors three images, and turns all others upside down."""
    own = tmp_path / "own" / "tabnanny.py"
    own.parent.mkdir()
    own.write_text(
        "from PIL import ImageOps\n"
        "calls = [0]\n"
        "def flipped(image):\n"
        "    calls[0] += 1\n"
        "    return ImageOps.flip(image) if calls[0] > 3 else ImageOps.mirror(image)\n"
    )
    monkeypatch.syspath_prepend(str(own.parent))
    monkeypatch.delitem(sys.modules, "tabnanny", raising=False)
    module: Any = importlib.import_module("tabnanny")
    monkeypatch.setitem(sys.modules, "tabnanny", module)

    def script() -> Any:
        module.calls[0] = 0
        return every(DataLoader(ImageFolder(str(folder), transforms.Compose([*CROP, *FLOATS])), 5))

    monkeypatch.setattr(transforms.functional, "hflip", module.flipped)
    monkeypatch.setattr(replaced_functions, "_known", {})
    assert not has(both(script)[1], WHOLE)
    assert not is_of_library("tabnanny") and is_of_library("cmd")
