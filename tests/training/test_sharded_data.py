"""Hosts that hold parts of the training data agree on its classes."""

from __future__ import annotations

import pytest
from headrace.errors import SourceError
from headrace.training.sharded_data import common_classes


@pytest.mark.parametrize(
    ("lists", "common"),
    [
        ([("cat", "dog"), ("cat", "dog")], ("cat", "dog")),
        ([("0", "1"), ("0", "1", "2")], ("0", "1", "2")),  # a part without images of the last class
        ([("0", "1"), ("cat", "dog", "emu")], ("cat", "dog", "emu")),  # the manifest is on one host
        ([("cat", "dog"), ("cat", "dog", "emu")], ("cat", "dog", "emu")),
    ],
)
def test_the_classes_of_all_parts_are_found(lists: list[tuple[str, ...]], common: tuple[str, ...]) -> None:
    assert common_classes(lists, where="data") == common
    assert common_classes(lists[::-1], where="data") == common


@pytest.mark.parametrize(
    "lists",
    [
        [("cat", "dog"), ("dog", "emu")],  # folders of images: label 0 would be another class on each host
        [("cat", "emu"), ("cat", "dog", "emu")],
        [("cat", "dog"), ("0", "1", "2")],
    ],
)
def test_labels_that_mean_different_classes_are_refused(lists: list[tuple[str, ...]]) -> None:
    with pytest.raises(SourceError, match="different classes") as error:
        common_classes(lists, where="data")
    assert "headrace pack" in (error.value.hint or "")
