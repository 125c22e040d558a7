"""`headrace watch`: updates while the command runs, its output in a file, the report at the end."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from headrace.cli.main import main

SCRIPT = """
import sys, time
from torch.utils.data import DataLoader
for number, batch in enumerate(DataLoader(list(range(4 * 60)), batch_size=4)):
    time.sleep(0.02)
    print("step", number, flush=True)
print("to stderr", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A training loop without a model."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_watch_updates_while_the_command_runs_and_reports_at_the_end(
    tmp_path: Path, script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "session"
    code = main(["watch", "--out", str(folder), "--every", "0.3", "--json", "--", sys.executable, str(script), "0"])
    out, err = capfd.readouterr()
    assert code == 0, err
    document = json.loads(out)
    assert document["steps"] > 40
    assert Path(document["report"]).is_file() and (folder / "diagnosis.json").is_file()
    assert " img/s, waiting " in err  # at least one update with steps, before the end
    printed = (folder / "output.txt").read_text()
    assert "step 59" in printed and "to stderr" in printed
    assert "step 59" not in out


def test_in_a_notebook_s_cell_watch_writes_lines_and_moves_no_cursor(tmp_path: Path, script: Path) -> None:
    """`!headrace watch` has a terminal of its own, whose cursor the cell of a notebook does not move."""
    main_end, cell = pty.openpty()
    words = ["watch", "--out", str(tmp_path / "session"), "--every", "0.3", "--json", "--", sys.executable, str(script), "0"]
    variables = os.environ | {"JPY_PARENT_PID": "1", "TERM": "xterm-color", "FORCE_COLOR": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "headrace", *words], stdin=cell, stdout=subprocess.DEVNULL, stderr=cell, env=variables
    ) as process:
        os.close(cell)
        shown = b""
        with contextlib.suppress(OSError):  # the last process that holds the terminal has ended
            while piece := os.read(main_end, 65536):
                shown += piece
    os.close(main_end)
    assert process.returncode == 0, shown
    text = shown.decode().replace("\r\n", "\n")
    assert " img/s, waiting " in text and "\x1b" not in text and "\r" not in text


@pytest.mark.slow
def test_a_failing_command_is_reported_with_the_end_of_its_output(
    tmp_path: Path, script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", "--out", str(tmp_path / "session"), "--", sys.executable, str(script), "3"]) == 3
    out, err = capfd.readouterr()
    assert "exit code 3" in err and "step 59" in err.splitlines() and "to stderr" in err.splitlines()
    assert "report: " in out


@pytest.mark.parametrize(
    ("ending", "code"),
    [("os.kill(os.getpid(), 9)", 137), ("os.kill(os.getpid(), 15)", 143), ("sys.exit(42)", 42), ("sys.exit(-1)", 255)],
)
def test_the_exit_code_is_the_commands_own(tmp_path: Path, ending: str, code: int) -> None:
    words = ["watch", "--out", str(tmp_path / "session"), "--", sys.executable, "-c", f"import os, sys; {ending}"]
    assert main(words) == code


def test_a_signal_that_asks_to_stop_reaches_the_command_and_its_exit_code(tmp_path: Path) -> None:
    program = "import sys; from headrace.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"]
    words = ["watch", "--out", str(tmp_path / "session"), "--", *command]
    with subprocess.Popen([sys.executable, "-c", program, *words], stdout=subprocess.DEVNULL) as watching:
        while not (printed := tmp_path / "session" / "output.txt").exists() or not printed.read_text():
            time.sleep(0.05)
        watching.send_signal(signal.SIGTERM)
        assert watching.wait(60) == 128 + signal.SIGTERM


def test_a_command_that_the_time_limit_stops_has_not_failed(tmp_path: Path) -> None:
    words = [
        "watch",
        "--out",
        str(tmp_path / "session"),
        "--seconds",
        "1",
        "--",
        sys.executable,
        "-c",
        "import time; time.sleep(60)",
    ]
    assert main(words) == 0


def test_watch_without_a_command_is_a_usage_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["watch"]) == 2
