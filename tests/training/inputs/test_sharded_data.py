"""Hosts that hold parts of the data agree on its classes, and say what unequal parts leave out."""

from __future__ import annotations

import pytest
from headrace.errors import SourceError
from headrace.training.inputs.sharded_data import common_classes, left_out_note


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


def test_the_images_that_unequal_parts_leave_out_are_counted() -> None:
    parts = [("a", 100), ("a", 100), ("b", 60), ("b", 60)]  # two hosts with two ranks each
    note = left_out_note(parts, batch_size=10)  # 3 steps of 40
    assert note is not None and "60 to 100 images" in note and "the 3 steps of the smallest" in note
    assert "leaves out 40 of 160 images (25.0 %)" in note


@pytest.mark.parametrize("parts", [[("a", 65), ("b", 65)], [("a", 64), ("b", 67)], [("a", 70)]])
def test_an_incomplete_batch_alone_is_no_remark(parts: list[tuple[str, int]]) -> None:
    assert left_out_note(parts, batch_size=10) is None
