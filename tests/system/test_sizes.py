"""Texts for counts."""

from __future__ import annotations

import pytest
from headrace.system.sizes import count_text


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "shard", "1 shard"),
        (2000, "shard", "2,000 shards"),
        (2, "batch", "2 batches"),
        (1, "epoch", "1 epoch"),
        (3, "epoch", "3 epochs"),
        (0, "epoch", "0 epochs"),
    ],
)
def test_a_count_agrees_with_its_noun(number: int, noun: str, text: str) -> None:
    assert count_text(number, noun) == text
