"""An error of an item that a worker would have made: type, text and order are those of torch's workers."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headrace.accelerate.whole import items as item_loader
from headrace.accelerate.whole import recognition
from headrace.accelerate.whole.iterator import NativeIterator
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter
from torchvision import transforms
from torchvision.datasets import ImageFolder

TRANSFORM = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])


class TwoArguments(Exception):
    """An error that cannot be made of a text: torch raises a `RuntimeError` for it."""

    def __init__(self, what: str, where: int) -> None:
        super().__init__(what, where)


def _key(batch: list[Any]) -> Any:
    if batch[0][1] in (1, 6):
        raise KeyError("five")
    return default_collate(batch)


def _two(batch: list[Any]) -> Any:
    if batch[0][1] in (1, 6):
        raise TwoArguments("five", 5)
    return default_collate(batch)


class Own(Dataset[Any]):
    def __init__(self, root: Path) -> None:
        self.paths = sorted(str(path) for path in root.glob("*/*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return TRANSFORM(Image.open(self.paths[index]).convert("RGB")), index


def outcomes(batches: Any) -> list[tuple[Any, ...]]:
    """Return the labels of each batch, or class, arguments less the traceback, and errno of its error."""
    found: list[tuple[Any, ...]] = []
    while True:
        try:
            found.append(tuple(next(batches)[1].tolist()))
        except StopIteration:
            return found
        except Exception as error:
            text = re.sub(r'(?m)^ +File ".*\n(    .*\n)*', "", str(error))
            found.append((type(error), type(error.args[0]), text, getattr(error, "errno", None), repr(error.__context__)))


@pytest.mark.matrix(keep=6)
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("collate", [None, _key, _two])
@pytest.mark.parametrize("kind", ["folder", "items"])
def test_errors_of_a_loader_that_is_taken_over(
    folder: Path,
    taken_over: list[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    collate: Callable[..., Any] | None,
    workers: int,
    persistent: bool,
) -> None:
    for module in (recognition, item_loader):  # two bad files of twenty would leave the loader to the script's workers
        monkeypatch.setattr(module, "require_quiet_files", lambda paths: None)
    bad = sorted(folder.glob("*/*.jpg"))
    bad[5].write_bytes(b"no image at all")
    bad[9].write_bytes(b"")
    data = ImageFolder(str(folder), TRANSFORM) if kind == "folder" else Own(folder)
    loader = DataLoader(data, 3, num_workers=workers, collate_fn=collate, persistent_workers=persistent)
    own = _MultiProcessingDataLoaderIter if workers else _SingleProcessDataLoaderIter
    theirs = outcomes(own(loader))
    iterator = iter(loader)
    assert isinstance(iterator, NativeIterator), taken_over
    assert outcomes(iterator) == theirs
    if persistent:
        assert outcomes(iter(loader)) == theirs
    assert sum(isinstance(one[0], type) for one in theirs) >= 2


def test_only_the_scripts_frames_are_in_the_traceback(folder: Path, taken_over: list[str]) -> None:
    sorted(folder.glob("*/*.jpg"))[0].write_bytes(b"no image at all")
    for workers in (0, 1):
        iterator = iter(DataLoader(ImageFolder(str(folder), TRANSFORM), 3, num_workers=workers))
        assert isinstance(iterator, NativeIterator)
        with pytest.raises(OSError) as raised:
            next(iterator)
        printed = "".join(traceback.format_exception(raised.value))
        assert "/accelerate/" not in printed.replace(__file__, "") and "in pil_loader" in printed
        assert "During handling" not in printed
