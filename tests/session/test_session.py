"""Saving and loading a session: round trip, incomplete files, other versions, other folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from headrace.errors import SessionError
from headrace.session.model import BATCH_FIELDS, STEP_FIELDS, Session
from session_factory import example_diagnosis, example_session


def test_saved_session_loads_back_equal(tmp_path: Path) -> None:
    session = example_session()
    assert Session.load(session.save(tmp_path)) == session


def test_files_of_several_processes_are_merged_with_times_from_the_start(tmp_path: Path) -> None:
    write(tmp_path / "launch.jsonl", {"kind": "session", "version": 1, "command": ["a"], "monotonic_s": 100.0})
    write(tmp_path / "process-7.jsonl", {"kind": "process", "pid": 7, "parent_pid": 1, "role": "main", "started_s": 101.0})
    row = [0 if name == "epoch" else 103.5 if name == "start_s" else 0.25 for name in STEP_FIELDS[:5]]
    write(tmp_path / "process-7.jsonl", {"kind": "steps", "pid": 7, "loader": 0, "rows": [row]})
    session = Session.load(tmp_path)
    assert session.processes[0].started_s == 1.0
    assert session.steps[0].start_s == 3.5
    assert session.steps[0].sync_s is None  # the row was shorter: not measured, not 0


def test_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    write(tmp_path / "launch.jsonl", {"kind": "session", "version": 1, "command": ["a"], "monotonic_s": 0.0})
    with (tmp_path / "launch.jsonl").open("a") as file:
        file.write('{"kind":"exit","code":0,"monoto')
    session = Session.load(tmp_path)
    assert session.command == ("a",)
    assert session.exit_code is None


def test_newer_session_version_raises_session_error(tmp_path: Path) -> None:
    write(tmp_path / "launch.jsonl", {"kind": "session", "version": 99, "command": []})
    with pytest.raises(SessionError, match="version 99"):
        Session.load(tmp_path)


@pytest.mark.parametrize("make", [lambda path: path / "none", lambda path: path], ids=["no folder", "empty folder"])
def test_missing_session_raises_session_error_with_the_path(tmp_path: Path, make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SessionError, match=str(tmp_path)):
        Session.load(make(tmp_path))


def test_rows_start_with_the_required_fields() -> None:
    assert STEP_FIELDS[:4] == ("epoch", "start_s", "wait_s", "compute_s")
    assert BATCH_FIELDS[:2] == ("start_s", "wall_s")


def test_diagnosis_is_json_serialisable() -> None:
    document = json.loads(json.dumps(example_diagnosis().to_json()))
    assert document["verdict"] == "CPU_PREP"
    assert abs(sum(document["share_of_step"].values()) - 1) < 1e-9
    assert document["findings"][0]["fixes"][0]["id"] == "num_workers=6"


def write(path: Path, line: dict[str, object]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "event", "pid": 1, "name": "gc"}',
        '{"kind": "steps", "pid": 1, "loader": 0}',
        '{"kind": "steps", "pid": 1, "loader": 0, "rows": [[0, null]]}',
        '{"kind": "session", "version": "new"}',
    ],
)
def test_lines_of_another_format_raise_session_error(tmp_path: Path, line: str) -> None:
    (tmp_path / "other.jsonl").write_text(line + "\n")
    with pytest.raises(SessionError, match="not a session's"):
        Session.load(tmp_path)


def test_folder_of_a_training_run_raises_with_a_hint_to_its_session(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", {"seconds": 0.1, "step": 0})
    with pytest.raises(SessionError, match="holds no session") as raised:
        Session.load(tmp_path)
    assert "headrace diagnose" in str(raised.value.hint)
    (tmp_path / "sessions/from-000000000").mkdir(parents=True)
    write(tmp_path / "sessions/from-000000000/launch.jsonl", {"kind": "session", "version": 1, "command": []})
    with pytest.raises(SessionError, match="holds no session") as raised:
        Session.load(tmp_path)
    assert str(raised.value.hint).endswith("sessions/from-000000000")
    assert Session.load(tmp_path / "sessions/from-000000000").steps == ()


def test_threads_that_a_script_sets_later_are_those_of_its_process(tmp_path: Path) -> None:
    lines = (
        '{"kind": "process", "pid": 1, "parent_pid": 0, "role": "main", "started_s": 1.0, "torch_threads": 2}',
        '{"kind": "threads", "pid": 1, "torch_threads": 1, "thread_settings": {"torch": 1}}',
    )
    (tmp_path / "process-1.jsonl").write_text("\n".join(lines) + "\n")
    (process,) = Session.load(tmp_path).processes
    assert process.torch_threads == 1
    assert process.thread_settings == {"torch": 1}
