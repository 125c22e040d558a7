"""Processes of ours run no module of the current folder: `doctor`, `diagnose`, `watch`, ranks and trials start them there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import headrace
import pytest
from headrace.attach import sampler
from headrace.system.processes.own_python import own_module, own_text
from headrace.system.processes.software import read_torch

PACKAGE = Path(headrace.__file__).parent
PLANTED = ("json", "random", "platform", "subprocess", "warnings", "torch", "headrace")
"""Modules that our processes import, and that a stranger's folder may hold."""


@pytest.fixture
def strange_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with modules of the names of others. Each writes `ran` when it is imported."""
    for name in PLANTED:
        code = f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\nraise SystemExit(7)\n"
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_planted_modules_would_run(strange_folder: Path) -> None:
    assert subprocess.run([sys.executable, "-c", "import json"], check=False).returncode == 7
    assert (strange_folder / "ran").exists()


def test_a_process_of_ours_runs_no_module_of_the_current_folder(strange_folder: Path) -> None:
    program = "import json, random, headrace; print(headrace.__file__)"
    found = subprocess.run(own_text(program), capture_output=True, text=True, check=True)
    assert found.stdout.strip() == headrace.__file__
    subprocess.run(own_module("headrace", "--version"), check=True, capture_output=True)
    assert not (strange_folder / "ran").exists()


@pytest.mark.slow
def test_the_versions_for_doctor_are_read_beside_planted_modules(strange_folder: Path) -> None:
    torch, error = read_torch()
    assert torch is not None, error
    assert not (strange_folder / "ran").exists()


def test_the_sampler_of_diagnose_and_watch_starts_beside_planted_modules(strange_folder: Path) -> None:
    with subprocess.Popen(own_text("import time; time.sleep(1.5)")) as watched:
        process = sampler.start(strange_folder, watched.pid)
        watched.wait()
        assert process.wait(timeout=60) == 0
    assert not (strange_folder / "ran").exists()


def test_every_process_of_ours_is_started_without_the_current_folder() -> None:
    """Another way to start this interpreter stands in `own_python`, or isolates itself (-I), or runs a script by its path."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.List | ast.Tuple) or not node.elts:
                continue
            if ast.unparse(node.elts[0]) not in ("sys.executable", "python", "executable", "'python'", "'python3'"):
                continue
            rest = [ast.unparse(one) for one in node.elts[1:]]
            if {"'-m'", "'-c'"} & set(rest[:4]):
                isolated = "'-I'" in rest or "'-P'" in rest
                found += [] if isolated else [f"{path.relative_to(PACKAGE)}: {ast.unparse(node)[:80]}"]
    assert not found, found
