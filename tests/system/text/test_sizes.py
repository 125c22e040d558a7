"""Texts for counts and numbers."""

from __future__ import annotations

import pytest
from headrace.system.text.sizes import count_text, number_text


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "shard", "1 shard"),
        (2000, "shard", "2,000 shards"),
        (2, "batch", "2 batches"),
        (1, "class", "1 class"),
        (2, "class", "2 classes"),
        (1, "epoch", "1 epoch"),
        (3, "epoch", "3 epochs"),
        (0, "epoch", "0 epochs"),
    ],
)
def test_a_count_agrees_with_its_noun(number: int, noun: str, text: str) -> None:
    assert count_text(number, noun) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (11250.0, 4, "11,250"),
        (999.7, 3, "1,000"),
        (1234.0, 2, "1,234"),
        (99.4, 2, "99"),
        (0.25, 3, "0.25"),
        (-20480.0, 3, "-20,480"),
        (0.0, 3, "0"),
    ],
)
def test_a_large_number_is_written_out(value: float, digits: int, text: str) -> None:
    assert number_text(value, digits=digits) == text
