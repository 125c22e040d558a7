"""The notice of a standstill: what is told of a session while its command still runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headrace.attach.standstill import FILE
from headrace.profiling import standstill_notice
from headrace.profiling.standstill_notice import StandstillNotice
from headrace.session.model import Session


def sample(time_s: float) -> dict[str, Any]:
    """A line of the sampler: the training thread stands in a script's `save` since second 10, after 40 steps of 0.2 s."""
    process = {"pid": 5, "phase": "runs", "since_s": 10.0, "begun_s": 2.0, "longest_s": 0.5, "batches": 40, "steps": 40}
    stack = {"frames": [["save", "/work/train.py", 7]], "lock": None}
    counters = {"cpu_s": 3.0, "bytes": 100, "switches": 5, "reads": 2, "state": "S", "waits_in": "anon_pipe_write"}
    processes = [{**process, **counters, "worker": -1, **stack}]
    return {"kind": "standstill", "time_s": time_s, "since_s": 10.0, "scale": 1.0, "processes": processes, "others": []}


def write(folder: Path, name: str, *lines: dict[str, Any]) -> None:
    with open(folder / name, "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def session(tmp_path: Path) -> Path:
    write(
        tmp_path,
        "launch.jsonl",
        {"kind": "session", "version": 1, "command": ["python"], "cwd": "/elsewhere", "monotonic_s": 0.0},
    )
    return tmp_path


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 20
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.01)
    assert condition()


def test_a_standstill_is_told_then_that_it_is_a_hang_then_that_it_is_over(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standstill_notice, "POLL_S", 0.02)
    told: list[str] = []
    with StandstillNotice(session, told.append):
        write(session, FILE, sample(32.0))
        until(lambda: len(told) == 1)
        write(session, FILE, sample(34.0), sample(36.0))
        until(lambda: len(told) == 2)
        write(session, FILE, sample(38.0))
        write(session, FILE, {"kind": "standstill_over", "since_s": 10.0, "time_s": 40.0})
        until(lambda: len(told) == 3)
    where = "the training thread waits for room in a pipe at /work/train.py:7 in save"
    assert told[0] == f"no step for 22 s: {where}"
    assert told[1].startswith(f"HANG: no step for 26 s: {where} (confidence 0.75")
    assert told[2] == "steps come again"


def test_a_fault_of_the_rule_prints_nothing(
    session: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(standstill_notice, "POLL_S", 0.01)
    looked: list[Session] = []

    def fails(session: Session) -> None:
        looked.append(session)
        raise ZeroDivisionError

    monkeypatch.setattr(standstill_notice, "open_standstill", fails)
    with StandstillNotice(session, print):
        write(session, FILE, sample(32.0))
        until(lambda: len(looked) == 1)
    assert capfd.readouterr().err == ""


def test_a_session_without_a_standstill_is_not_read(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Path] = []
    with monkeypatch.context() as patch:
        patch.setattr(standstill_notice, "POLL_S", 0.01)
        patch.setattr(Session, "load", lambda folder: loads.append(folder))
        with StandstillNotice(session, print):
            time.sleep(0.1)
    assert not loads


def test_standstills_are_read_back_as_they_were_saved(session: Path) -> None:
    write(session, FILE, sample(32.0), sample(34.0), {"kind": "standstill_over", "since_s": 10.0, "time_s": 40.0})
    read = Session.load(session)
    (found,) = read.standstills
    assert (found.since_s, len(found.samples), found.over) == (10.0, 2, True)
    assert found.samples[0].processes[0].frames == (("save", "/work/train.py", 7),)
    read.save(session / "copy")
    assert Session.load(session / "copy") == read
