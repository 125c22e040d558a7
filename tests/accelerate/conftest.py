"""An image folder with the hard cases in it, and a DataLoader that is, or is not, taken over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headrace.accelerate import hook
from PIL import Image
from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter


@pytest.fixture
def taken_over(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Installs the hook for one test; yields the lines that it says."""
    lines: list[str] = []
    original, init = DataLoader._get_iterator, _BaseDataLoaderIter.__init__
    monkeypatch.setattr(hook, "log_line", lines.append)
    monkeypatch.setattr(hook, "_printed", set())
    hook.install()
    yield lines
    DataLoader._get_iterator, _BaseDataLoaderIter.__init__ = original, init


@pytest.fixture
def folder(image_folder: Callable[..., Path]) -> Path:
    """Four classes of five images each: colour, grey, CMYK and progressive JPEGs, and one PNG that is named .jpg."""
    root = image_folder(classes=4, per_class=5)
    Image.open(root / "class_0" / "image_001.jpg").convert("L").save(root / "class_0" / "image_001.jpg", "JPEG")
    Image.open(root / "class_1" / "image_002.jpg").convert("CMYK").save(root / "class_1" / "image_002.jpg", "JPEG")
    Image.open(root / "class_2" / "image_003.jpg").save(root / "class_2" / "image_003.jpg", "JPEG", progressive=True)
    Image.open(root / "class_3" / "image_004.jpg").save(root / "class_3" / "image_004.jpg", "PNG")
    return root
