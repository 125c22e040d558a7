"""metrics.jsonl goes on after whole lines, whatever stands in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from headrace.errors import UsageError
from headrace.training.logs.metrics import LONGEST_LINE, Metrics
from traced_memory import at_most


@pytest.mark.parametrize(
    ("before", "kept"), [(b"", b""), (b"{}\n", b"{}\n"), (b"{}\n{", b"{}\n"), (b"{", b""), (b"\n" * 9 + b"x", b"\n" * 9)]
)
def test_the_rest_of_a_killed_processs_line_is_removed(before: bytes, kept: bytes, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(before)
    Metrics(path)
    assert path.read_bytes() == kept


def test_a_file_of_any_size_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"{}\n")
    os.truncate(path, 1 << 40)
    with at_most(2 * LONGEST_LINE), pytest.raises(UsageError, match="its last line is longer than"):
        Metrics(path)
    with open(path, "ab") as file:
        file.write(b"\n{")
    with at_most(2 * LONGEST_LINE):
        Metrics(path)
    assert path.stat().st_size == (1 << 40) + 1
