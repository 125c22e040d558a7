"""Files of counters below /proc and /sys: whole, as text, or None."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace.system.hardware import counter_files
from headrace.system.hardware.counter_files import read_counters


@pytest.mark.parametrize("content", [b"", b"1 2 3\n", b"x" * 200_000])
def test_a_file_is_read_to_its_end(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "stat").write_bytes(content)
    assert read_counters(tmp_path / "stat") == read_counters(str(tmp_path / "stat")) == content.decode()


def test_a_read_that_returns_a_part_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter_files, "CHUNK_BYTES", 3)
    (tmp_path / "stat").write_bytes(b"cpu 1 2\nintr 7\n")
    assert read_counters(tmp_path / "stat") == "cpu 1 2\nintr 7\n"


def test_a_name_that_is_no_utf8_stays_readable(tmp_path: Path) -> None:
    (tmp_path / "stat").write_bytes(b"7 (caf\xe9) S 1\n")
    assert read_counters(tmp_path / "stat") == "7 (caf\ufffd) S 1\n"


def test_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert read_counters(tmp_path / "absent") is None
    assert read_counters(tmp_path) is None
