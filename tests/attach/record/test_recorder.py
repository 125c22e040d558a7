"""The recorder writes whole lines, one file for each process, and fewer rows in long runs; the step clock adds device times."""

from __future__ import annotations

import errno
import io
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest
from headrace.attach.record import recorder as recorder_module
from headrace.attach.record.device_clock import StepClock
from headrace.attach.record.log import log_line
from headrace.attach.record.recorder import Recorder


def lines(folder: Path) -> list[dict[str, Any]]:
    """All recorded lines but the first one of each file, which names the process."""
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()[1:]]


def test_rows_are_written_as_one_table_per_flush(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.row("steps", 0, [0, 1.0])
    recorder.row("steps", 0, [0, 2.0])
    recorder.event("gc", 1.0, 0.5)
    assert lines(tmp_path) == []
    recorder.flush()
    written = lines(tmp_path)
    assert [line["kind"] for line in written] == ["event", "steps"]
    assert written[1]["rows"] == [[0, 1.0], [0, 2.0]]


def test_a_forked_child_writes_its_own_file(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.event("parent", 0.0, 0.0)
    recorder.flush()
    child = os.fork()
    if child == 0:
        recorder.event("child", 0.0, 0.0)
        recorder.flush()
        os._exit(0)
    os.waitpid(child, 0)
    assert {(line["name"], line["pid"]) for line in lines(tmp_path)} == {("parent", os.getpid()), ("child", child)}
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


def test_rows_that_no_step_flushes_are_flushed_by_the_thread_beside(tmp_path: Path) -> None:
    """A job that stands still calls no hook. Its last steps were lost when it was killed."""
    recorder = Recorder(tmp_path)
    recorder.row("steps", 0, [0, 1.0])
    recorder.flush_when_idle(recorder._flushed_s + 0.5)
    assert lines(tmp_path) == []
    recorder.flush_when_idle(recorder._flushed_s + 1.5)
    assert [line["rows"] for line in lines(tmp_path)] == [[[0, 1.0]]]


def test_a_file_begins_with_the_process_that_writes_it_and_its_machine(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for _ in range(2):
        recorder.event("gc", 0.0, 0.0)
        recorder.flush()
    (file,) = tmp_path.glob("*.jsonl")
    written = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["kind"] for line in written] == ["recording", "event", "event"]
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    assert written[0] == {"kind": "recording", "pid": os.getpid(), "hostname": platform.node(), "start_ticks": start}


@pytest.mark.parametrize("short", [False, True])
def test_a_full_disk_ends_the_recording_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], short: bool
) -> None:
    recorder = Recorder(tmp_path)
    recorder.event("before", 0.0, 0.0)
    recorder.flush()
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if short:
            return write(descriptor, data[:7])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(recorder_module.os, "write", full)
    for _ in range(3):
        recorder.event("lost", 0.0, 0.0)
        recorder.row("steps", 0, [0, 1.0])
        recorder.flush()
    monkeypatch.undo()
    recorder.event("after", 0.0, 0.0)
    recorder.flush()
    (file,) = tmp_path.glob("*.jsonl")
    assert json.loads(file.read_text().splitlines()[1])["name"] == "before" and "after" not in file.read_text()
    assert capfd.readouterr().err.count("nothing more of this job is recorded") == 1


def test_a_script_that_closes_all_files_gets_none_of_the_lines(tmp_path: Path) -> None:
    """As daemons do: all descriptors are closed, and the script's next file gets the number of the session's."""
    recorder = Recorder(tmp_path)
    recorder.event("before", 0.0, 0.0)
    recorder.flush()
    number = recorder._file
    assert number is not None
    os.close(number)
    other = os.open(tmp_path / "own.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(other, number)
    recorder.event("after", 0.0, 0.0)
    recorder.flush()
    recorder.move(tmp_path)
    os.write(number, b"mine")
    assert (tmp_path / "own.log").read_bytes() == b"mine"
    assert {line["name"] for line in lines(tmp_path)} == {"before", "after"}
    for descriptor in {other, number}:
        os.close(descriptor)


def test_lines_for_a_closed_or_missing_stderr_go_nowhere(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        monkeypatch.setattr(sys, "stderr", stream)
        log_line("headrace: words")
    monkeypatch.undo()
    assert capfd.readouterr() == ("", "")


def test_after_many_rows_one_in_sixteen_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MOST_ROWS", 10)
    recorder = Recorder(tmp_path)
    for number in range(42):
        recorder.row("steps", 0, [number])
    recorder.flush()
    assert [row[0] for row in lines(tmp_path)[0]["rows"]] == [*range(10), 15, 31]


class FakeClock:
    """Events are times on a device that lags behind by whatever the test says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reached = 0.0
        self.in_use = True
        self.released: list[float] = []

    def usable(self) -> bool:
        return self.in_use

    def record(self) -> float:
        return self.now

    def passed(self, event: float) -> bool:
        return event <= self.reached

    def elapsed_s(self, first: float, second: float) -> float:
        return second - first

    def release(self, events: list[float]) -> None:
        self.released += events


def test_device_times_are_filled_when_the_device_has_passed() -> None:
    clock, emitted = FakeClock(), []
    steps = StepClock(clock, (0, 1, 2), lambda loader, row: emitted.append(row))
    steps.before_next()
    clock.now = 1.0
    assert steps.after_next() == 1  # the device had nothing queued before
    clock.now = 1.5
    begin = steps.begin_copy()
    clock.now = 1.7
    steps.end_copy(begin)
    clock.now = 4.0
    steps.close_step(0, [None, None, None])
    steps.before_next()
    assert emitted == []  # the device has not come so far
    clock.reached = 4.0
    steps.after_next()
    steps.close_step(0, ["second", None, None])
    clock.now = 6.0
    steps.before_next()
    assert emitted[0] == [1.0, 3.0, pytest.approx(0.2)]
    steps.drain()
    assert emitted[1][0] == "second"  # unresolved at the end: handed on without device times
    assert emitted[1][1] is None


def test_rows_are_emitted_at_once_while_no_device_is_in_use() -> None:
    clock, emitted = FakeClock(), []
    clock.in_use = False
    steps = StepClock(clock, (0, 1, 2), lambda loader, row: emitted.append(row))
    steps.before_next()
    assert steps.after_next() is None
    steps.close_step(3, ["row", None, None])
    assert emitted == [["row", None, None]]
