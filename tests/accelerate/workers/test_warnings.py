"""Pillow's warnings are given under `headrace run` as often as without it, with their text, category and place, or raised."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from accelerate_helpers import own_batches
from headrace.accelerate import hook
from headrace.accelerate.deferred import loader as deferred_loader
from headrace.accelerate.lazy import native_decode
from headrace.accelerate.whole.iterator import NativeIterator
from headrace.accelerate.workers.unheard_warnings import unheard_warnings
from headrace.accelerate.workers.warnings import WorkerWarnings
from noisy_files import ON_OPENING, ON_TURNING, large_png, write_noisy_files
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

WHOLE = v1.Compose([v1.Resize((32, 32)), v1.ToTensor()])
IN_PART = v1.Compose([v1.Resize((32, 32)), v1.RandomPerspective(), v1.ToTensor()])
NOISY = [*ON_OPENING, *ON_TURNING]
ACTIONS = ("always", "default", "error")

Given = tuple[list[tuple[str, type, str, int]], str | None]
"""The warnings, by text, category, file and line, and the type and text of an error."""


class Turned(Dataset[Any]):
    """A dataset of the script's own, which turns its images."""

    def __init__(self, root: Path, transform: Any) -> None:
        self.paths = sorted(str(path) for path in root.rglob("*.*"))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.transform(ImageOps.exif_transpose(Image.open(self.paths[index])).convert("RGB")), index


def given(walk: Callable[[Any], Any], loader: Any, action: Any) -> Given:
    error = None
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter(action)
        try:
            for _ in walk(loader):
                pass
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
    return [(str(one.message), one.category, one.filename, one.lineno) for one in found], error


def assert_same_warnings(loader: Any, action: Any) -> Given:
    theirs = given(own_batches, loader, action)
    assert given(iter, loader, action) == theirs
    return theirs


@pytest.mark.parametrize("name", NOISY)
def test_a_noisy_file_warns_or_raises_as_ever(name: str, folder: Path, taken_over: list[str]) -> None:
    write_noisy_files(str(folder / "class_1"), [name])
    data: Any = ImageFolder(str(folder), WHOLE) if name in ON_OPENING else Turned(folder, WHOLE)
    for action in ACTIONS:
        found, error = assert_same_warnings(DataLoader(data, 4), action)
        assert found or (error and action == "error")
    assert "taken over: decode" in taken_over[0], taken_over


def test_one_noisy_file_costs_only_its_own_item(folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = write_noisy_files(str(folder / "class_1"), ["cut.jpg"])
    data = ImageFolder(str(folder), WHOLE)
    opened: list[str] = []
    iterator = iter(DataLoader(data, 7))
    assert isinstance(iterator, NativeIterator)
    open_ = Image.open
    monkeypatch.setattr(Image, "open", lambda file, *rest: opened.append(getattr(file, "name", "")) or open_(file, *rest))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert sum(len(images) for images, _ in iterator) == 21
    assert opened == [path]


@pytest.mark.slow
def test_a_large_image_gives_pillows_warning(folder: Path, taken_over: list[str]) -> None:
    (folder / "class_2" / "large.png").write_bytes(large_png(9500, 9500))
    loader = DataLoader(ImageFolder(str(folder), WHOLE), 10)
    found, _ = assert_same_warnings(loader, "always")
    assert [category for _, category, _, _ in found] == [Image.DecompressionBombWarning]
    _, error = assert_same_warnings(loader, "error")
    assert error is not None and error.startswith("DecompressionBombWarning")
    assert "taken over: decode" in taken_over[0]


@pytest.mark.parametrize("way", [native_decode.with_native_decode, deferred_loader.with_deferred_items])
@pytest.mark.parametrize("own", [False, True])
def test_loaders_taken_over_in_part_warn_as_ever(
    way: Any, own: bool, folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "PARTIAL_WAYS", (way,))
    write_noisy_files(str(folder / "class_0"), NOISY)
    data: Any = Turned(folder, IN_PART) if own else ImageFolder(str(folder), IN_PART)
    for action in ACTIONS:
        assert_same_warnings(DataLoader(data, 4), action)


def test_a_folder_of_noisy_files_is_not_taken_over_as_a_whole(folder: Path, taken_over: list[str]) -> None:
    write_noisy_files(str(folder / "class_0"), [*ON_OPENING])
    assert_same_warnings(DataLoader(ImageFolder(str(folder), WHOLE), 4), "always")
    assert "in part" in taken_over[0] and "Pillow warns of" in taken_over[0]


class Logarithms(Dataset[Any]):
    """A dataset whose items' own code warns, of every second one."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(str(path) for path in root.rglob("*.*"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        import numpy

        return WHOLE(Image.open(self.paths[index]).convert("RGB")), float(numpy.log(numpy.float64(index % 2)))


@pytest.mark.parametrize("action", ["always", "default", "error"])
def test_warnings_of_the_code_of_items_are_given_once(action: Any, folder: Path, taken_over: list[str]) -> None:
    found, error = assert_same_warnings(DataLoader(Logarithms(folder), 4), action)
    assert error if action == "error" else found


def print_warning(message: Any) -> None:
    """Show a warning on stderr, also in a forked worker: what pytest records there is lost."""
    line = warnings.formatwarning(message.message, message.category, message.filename, message.lineno, "")
    os.write(2, line.splitlines()[0].encode() + b"\n")


@pytest.mark.parametrize(("action", "persistent"), [("default", False), ("default", True), ("once", False), ("always", False)])
def test_warnings_of_workers_are_as_many_as_theirs(
    action: Any, persistent: bool, folder: Path, taken_over: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    write_noisy_files(str(folder / "class_0"), ["cut.jpg"])
    for number in range(45):  # so that only one of the files that are looked at is noisy
        Image.new("RGB", (40, 30), (number, 9, 9)).save(folder / "class_1" / f"more_{number:02}.jpg")
    for name in ("class_2/zz.jpg", "class_3/zz.jpg"):
        (folder / name).write_bytes(ON_OPENING["cut.jpg"]())
    found = []
    for walk in (_MultiProcessingDataLoaderIter, iter):
        loader = DataLoader(ImageFolder(str(folder), WHOLE), 8, num_workers=2, persistent_workers=persistent)
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            warnings._showwarnmsg_impl = print_warning  # type: ignore[attr-defined]
            if persistent:
                iterator: Any = walk(loader)
                list(iterator)
                iterator._reset(loader)
                list(iterator)
            else:
                list(walk(loader))
                list(walk(loader))
        del loader
        found.append(sorted(line for line in capfd.readouterr().err.splitlines() if "Warning" in line))
    assert found[0] == found[1] and len(found[0]) > 1
    assert "taken over: decode" in taken_over[0]


def test_warnings_that_workers_would_keep_are_not_recorded(folder: Path, taken_over: list[str]) -> None:
    write_noisy_files(str(folder / "class_0"), ["cut.jpg"])
    loader = DataLoader(ImageFolder(str(folder), WHOLE), 8, num_workers=2)
    assert assert_same_warnings(loader, "always") == ([], None)
    assert "taken over: decode" in taken_over[0]


def test_unheard_warnings_are_those_of_one_thread_and_leave_no_trace() -> None:
    def warn(text: str) -> None:
        warnings.warn(text, stacklevel=1)

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default")
        warn("first")
        with unheard_warnings() as unheard:
            warn("second")
            other = threading.Thread(target=warn, args=("of another thread",))
            other.start()
            other.join()
        warn("first")
        warn("second")
    assert unheard.given == 1
    assert [str(one.message) for one in heard] == ["first", "of another thread", "second"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with unheard_warnings():
            warn("raised otherwise")


@pytest.fixture
def noted() -> Iterator[None]:
    """Begin without noted warnings of this module."""
    globals().pop("__warningregistry__", None)
    yield
    globals().pop("__warningregistry__", None)


def test_each_worker_shows_a_warning_once(noted: None, tmp_path: Path) -> None:
    file = tmp_path / "heard"  # what the script shows itself is shown in a child, as by a worker

    def hear(message: Warning | str, *_: Any) -> None:
        with file.open("a") as heard:
            heard.write(f"{message}\n")

    def warn(text: str) -> None:
        warnings.warn(text, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = hear
        warn("before")
        workers = WorkerWarnings(forked=True)
        for worker in (0, 1, 0, 1):
            with workers.of(worker):
                warn("before")
                warn(f"of worker {worker}")
                warn("of all")
        warn("of all")
        with WorkerWarnings(forked=False).of(0):
            warn("before")
    heard = file.read_text().splitlines()
    assert heard == ["before", "of worker 0", "of all", "of worker 1", "of all", "of all", "before"]


def test_warnings_that_go_to_a_log_stay_there(folder: Path, taken_over: list[str], caplog: pytest.LogCaptureFixture) -> None:
    write_noisy_files(str(folder / "class_1"), ["palette.png"])
    logging.captureWarnings(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(False)
            logging.captureWarnings(True)
            for walk in (own_batches, list):
                list(walk(DataLoader(ImageFolder(str(folder), WHOLE), 4)))
    finally:
        logging.captureWarnings(False)
    texts = [record.getMessage() for record in caplog.records if record.name == "py.warnings"]
    assert len(texts) == 2 and texts[0] == texts[1]
