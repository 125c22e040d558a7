"""Commands of the demo: their output is printed, their JSON returned, and no process is left."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

import pytest
from headrace.demo import steps
from headrace.errors import CommandError

JSON_VERB = [sys.executable, "-c", "import sys; print('hello', file=sys.stderr); print('{\"a\": 1}')", "--json"]


def test_stderr_is_shown_and_the_document_is_returned() -> None:
    lines: list[str] = []
    assert steps.run(JSON_VERB, show=lines.append) == {"a": 1}
    assert lines == ["hello"]


def test_stdout_is_shown_when_it_is_not_json() -> None:
    lines: list[str] = []
    assert steps.run([sys.executable, "-c", "print('one')"], show=lines.append) == {}
    assert lines == ["one"]


def test_a_failure_reports_exit_code_and_last_lines() -> None:
    code = "import sys; print('cannot open image x.jpg', file=sys.stderr); sys.exit(3)"
    with pytest.raises(CommandError, match=r"(?s)exit code 3.*cannot open image x.jpg"):
        steps.run([sys.executable, "-c", code], show=lambda line: None)


def test_output_that_is_not_json_raises() -> None:
    with pytest.raises(CommandError, match="did not print one JSON document"):
        steps.run([sys.executable, "-c", "print('chatter')", "--json"], show=lambda line: None)


def test_a_stopped_command_leaves_no_child_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "TIMEOUT_S", 5.0)  # enough to start the child, even on a busy machine
    mark = tmp_path / "pid"
    child = f"echo $$ > {shlex.quote(str(mark))}; exec sleep 100"
    started_s = time.monotonic()
    with pytest.raises(CommandError, match="exit code -9"):
        steps.run(["sh", "-c", f"sh -c {shlex.quote(child)}; true"], show=lambda line: None)
    assert time.monotonic() - started_s < 60
    state = Path(f"/proc/{mark.read_text()}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_commands_are_shown_as_a_user_types_them() -> None:
    line = [*steps.headrace("run", "--explain"), "--", *steps.python(Path("train.py"), "--data", "my images")]
    assert steps.typed_command(line) == "headrace run --explain -- python train.py --data 'my images'"
    assert steps.typed_command(steps.python(Path("train.py"))) == "python train.py"
    assert os.path.basename(line[0]).startswith("python")  # noqa: PTH119 - a word of a command line
