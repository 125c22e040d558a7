"""A watched script, and every process below it, imports from the same places as without headrace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from headrace.attach.launch import SITE_FOLDER, attached_path, spawn

SCRIPT = """
import json, multiprocessing, subprocess, sys
FACTS = "import json, sys; print(json.dumps([sys.path, list(sys.flags), getattr(sys.flags, 'safe_path', None)]))"

def report(queue):
    queue.put(sys.path)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=report, args=(queue,))
    worker.start()
    paths = [sys.path, list(sys.flags), queue.get()]
    worker.join()
    child = json.loads(subprocess.run([sys.executable, "-c", FACTS], stdout=-1, check=True).stdout)
    open("facts.json", "w").write(json.dumps([paths, child]))
"""
VALUES = [None, "", ":", "/a::/b", "lib", "lib:.", ":/a", "/a:"]


def environment_with(value: str | None) -> dict[str, str]:
    clean = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    return clean if value is None else clean | {"PYTHONPATH": value}


def facts(folder: Path, command: list[str], env: dict[str, str]) -> object:
    subprocess.run(command, cwd=folder, env=env, check=True, timeout=60)
    return json.loads((folder / "facts.json").read_text())


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("safe", ["", "-P", "PYTHONSAFEPATH"])
def test_import_path_is_the_same_with_and_without_headrace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None, safe: str
) -> None:
    if safe and value not in (None, ":", "lib"):
        pytest.skip("covered without -P")
    (tmp_path / "lib").mkdir()
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "job.py").write_text(SCRIPT)
    command = [sys.executable, *(["-P"] if safe == "-P" else []), str(folder / "job.py")]
    env = environment_with(value) | ({"PYTHONSAFEPATH": "1"} if safe == "PYTHONSAFEPATH" else {})
    expected = facts(tmp_path, command, env)
    (tmp_path / "facts.json").unlink()
    monkeypatch.chdir(tmp_path)
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.delenv(name, raising=False)
    for name in set(env) - set(os.environ):
        monkeypatch.setenv(name, env[name])
    assert spawn(command, hooks=["headrace.errors"]).returncode == 0
    assert json.loads((tmp_path / "facts.json").read_text()) == expected


IN_PROCESS = """
import json, subprocess, sys
import headrace
FACTS = "import json, sys; print(json.dumps([sys.path, list(sys.flags)]))"
child = lambda: json.loads(subprocess.run([sys.executable, "-c", FACTS], stdout=-1, check=True).stdout)
before = child()
with headrace.watch(sys.argv[1], report=False):
    inside = child()
assert inside == before, (before, inside)
assert child() == before
"""


@pytest.mark.parametrize("value", [None, ":", "lib:."])
def test_children_of_a_watched_block_import_from_the_same_places(tmp_path: Path, value: str | None) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-c", IN_PROCESS, str(tmp_path / "session")]
    done = subprocess.run(command, cwd=tmp_path, env=environment_with(value), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_site_folder_is_put_in_front_once() -> None:
    assert attached_path(None) == attached_path("") == str(SITE_FOLDER)
    assert attached_path(":") == f"{SITE_FOLDER}::"
    assert attached_path(attached_path("a::b")) == f"{SITE_FOLDER}:a::b"
