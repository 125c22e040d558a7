"""`headrace.open` and `open_stored`: how they present themselves, and the arguments that they check."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import headrace
import pytest
from headrace.datasets.open import open_stored
from headrace.errors import SourceError, UsageError


def test_the_public_function_shows_itself_as_open() -> None:
    assert headrace.open.__name__ == headrace.open.__qualname__ == "open"
    assert repr(headrace.open).startswith("<function open at ")
    words = inspect.getdoc(headrace.open) or ""
    for name in inspect.signature(headrace.open).parameters:
        assert f"{name}: " in words, name


def test_another_number_of_records_than_stated_is_an_error(image_folder: Callable[..., Path]) -> None:
    folder = image_folder(classes=2, per_class=3)
    assert len(headrace.open(folder, records=6)) == 6
    with pytest.raises(SourceError, match="has 6 records, not 7"):
        headrace.open(folder, records=7)


def test_a_root_without_a_list_is_refused(image_folder: Callable[..., Path]) -> None:
    folder = image_folder()
    for opener in (headrace.open, open_stored):
        with pytest.raises(UsageError, match="is not a list"):
            opener(folder, root=folder)
