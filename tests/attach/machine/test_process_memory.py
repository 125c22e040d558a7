"""The memory of each process: what a reading may cost, and what is told of a process that grew since."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace.attach.machine import process_memory
from headrace.attach.machine.process_memory import MOST_KEPT, ProcessMemories


def held(memories: ProcessMemories) -> dict[int, tuple[int, bool]]:
    return {one["pid"]: (one["memory_bytes"], one["is_proportional"]) for one in memories.as_json(9.0)}


def proc(folder: Path, *pids: int) -> Path:
    for pid in pids:
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "smaps_rollup").write_text("Rss: 9 kB\nPss: 1 kB\n")
    return folder


def test_a_process_that_grew_since_its_reading_has_its_resident_size(tmp_path: Path) -> None:
    memories = ProcessMemories(proc(tmp_path, 1, 2))
    memories.note(0.0, {1: "a", 2: "b"}, {1: 2000, 2: 2000}, 0.2)
    assert held(memories) == {1: (1024, True), 2: (1024, True)}
    memories.note(0.5, {1: "a", 2: "b"}, {1: 30_000, 2: 2100}, 0.2)
    assert held(memories) == {1: (30_000, False), 2: (1024, True)}


def test_a_slow_reading_stops_after_the_largest_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memories = ProcessMemories(proc(tmp_path, 1, 2))
    clock = iter((0.0, 0.0, 2.0, 2.0))
    monkeypatch.setattr(process_memory.time, "monotonic", lambda: next(clock, 9.0))
    memories.note(0.0, {1: "a", 2: "b"}, {1: 2000, 2: 9000}, 0.2)
    assert held(memories) == {1: (2000, False), 2: (1024, True)}


def test_more_processes_than_are_remembered_are_no_error(tmp_path: Path) -> None:
    pids = range(1, MOST_KEPT + 5)
    memories = ProcessMemories(proc(tmp_path, *pids))
    memories.note(0.0, dict.fromkeys(pids, "a"), dict.fromkeys(pids, 2000), 0.2)
    assert all(is_proportional for _, is_proportional in held(memories).values())
