"""`headrace watch`: updates while the command runs, its output in a file, the report at the end."""

from __future__ import annotations

import json
import sys
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


def test_a_failing_command_is_reported_with_the_end_of_its_output(
    tmp_path: Path, script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", "--out", str(tmp_path / "session"), "--", sys.executable, str(script), "3"]) == 1
    out, err = capfd.readouterr()
    assert "exit code 3" in err and "step 59" in err
    assert "report: " in out


def test_watch_without_a_command_is_a_usage_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["watch"]) == 2
