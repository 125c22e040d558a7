"""`make fuzz-long`: the targets of the parsers in Python hold for a short run, a finding is reported, the scripts run all."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TARGETS = re.findall(
    r'^    "(\w+)": Target\(', (REPOSITORY / "fuzz/python/targets.py").read_text(encoding="utf-8"), re.MULTILINE
)
PYTHON = """#!/usr/bin/env bash
echo "$*" >> "$CALLS"
case "$*" in
    -c*) [ -e "$CALLS.installed" ] ;;
    "-m pip"*) exit "$PIP" ;;
    *--list) printf 'first\\nsecond\\n' ;;
    "fuzz/python/run.py $FAILS "*) exit 77 ;;
esac
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPOSITORY / "fuzz" / "python"))
    return importlib.import_module("run")


@pytest.mark.parametrize("name", TARGETS)
def test_a_short_run_of_each_target_finds_nothing(name: str, run: ModuleType) -> None:
    assert run.run_plain(name, executions=300) == 300


def test_a_finding_keeps_its_input(run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = importlib.import_module("targets")

    def parse(data: bytes, folder: Path) -> None:
        if len(data) > 3:
            raise KeyError("wrong")

    monkeypatch.setitem(targets.TARGETS, "broken", targets.Target(parse, lambda: [b"abc"]))
    monkeypatch.setattr(run, "REPOSITORY", tmp_path)
    with pytest.raises(KeyError):
        run.run_plain("broken", executions=1000)
    (kept,) = (tmp_path / "fuzz/artifacts/python").iterdir()
    assert len(kept.read_bytes()) > 3
    with pytest.raises(KeyError):
        run.main(["broken", "--input", str(kept)])


def test_an_input_that_takes_too_long_is_a_finding(run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = importlib.import_module("targets")

    def parse(data: bytes, folder: Path) -> None:
        while True:
            pass

    monkeypatch.setitem(targets.TARGETS, "slow", targets.Target(parse, lambda: [b"abc"]))
    monkeypatch.setattr(run, "REPOSITORY", tmp_path)
    monkeypatch.setattr(run, "LIMIT_S", 0.05)
    with pytest.raises(run.SlowInputError):
        run.run_plain("slow", executions=1)


def script(folder: Path, name: str, *words: str, fails: str = "", installed: bool = True, pip: int = 0):
    """Run a copy of a script in `folder` with a stand-in for Python; return the result and its calls."""
    shutil.copytree(REPOSITORY / "fuzz", folder / "fuzz", ignore=shutil.ignore_patterns("target", "corpus", "artifacts"))
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    (folder / "fuzz/all.sh").write_text("#!/bin/sh\necho rust $1\nexit ${RUST:-0}\n")
    calls = folder / "calls"
    calls.touch()
    if installed:
        Path(f"{calls}.installed").touch()
    environment = os.environ | {"PYTHON": str(folder / "python"), "CALLS": str(calls), "FAILS": fails, "PIP": str(pip)}
    command = [str(folder / "fuzz" / name), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    return done, calls.read_text().splitlines()


def test_every_target_runs_for_its_time(tmp_path: Path) -> None:
    done, calls = script(tmp_path, "python.sh", "7")
    assert done.returncode == 0 and "no findings" in done.stdout, done.stderr
    assert [call for call in calls if "--seconds 7" in call] == [
        f"fuzz/python/run.py {name} --seconds 7" for name in ("first", "second")
    ]
    assert not any(call.startswith("-m pip") for call in calls)


def test_a_finding_fails_the_whole_but_the_other_targets_run(tmp_path: Path) -> None:
    done, calls = script(tmp_path, "long.sh", "7", fails="first")
    assert done.returncode == 1 and "findings in first;" in done.stderr and "rust 7" in done.stdout
    assert any("second --seconds 7" in call for call in calls)


@pytest.mark.parametrize("pip", [0, 1])
def test_atheris_is_installed_where_it_is_missing_and_has_a_wheel(tmp_path: Path, pip: int) -> None:
    done, calls = script(tmp_path, "python.sh", "1", installed=False, pip=pip)
    assert done.returncode == 0 and any("atheris" in call for call in calls if call.startswith("-m pip"))
    assert ("seeded mutations instead" in done.stdout) == bool(pip)


def test_every_target_is_explained() -> None:
    page = (REPOSITORY / "docs" / "fuzzing.md").read_text(encoding="utf-8")
    assert len(TARGETS) >= 16
    for name in TARGETS:
        assert f"| `{name}` |" in page, name
    assert "fuzz-long:" in (REPOSITORY / "Makefile").read_text(encoding="utf-8")
