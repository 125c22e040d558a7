"""The file that stands in the place of a script: the script starts as without it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from headrace.launch.own_code.plain_reasons import plain_reasons
from headrace.launch.own_code.source import ENTRY, PACKAGE, Source

SCRIPT = """
import json, os, sys
from lib import NAME
def model_fn(folder): return folder
if __name__ == "__main__":
    found = {"argv": sys.argv, "file": os.path.basename(__file__), "path": sys.path[0], "pid": os.getpid(), "lib": NAME,
             "hooks": os.environ.get("HEADRACE_HOOKS"), "isolated": sys.flags.dev_mode,
             "names": [os.environ.get(name) for name in ("SM_USER_ENTRY_POINT", "SM_MODULE_NAME", "SM_TRAINING_ENV")]}
    print(json.dumps(found))
"""


def staged(folder: Path, *, entry: str = "train.py", under: Any = "run") -> Path:
    source = folder / "source"
    (source / entry).parent.mkdir(parents=True, exist_ok=True)
    (source / entry).write_text(SCRIPT)
    ((source / entry).parent / "lib.py").write_text("NAME = 'mine'")
    Source(source, entry, under).stage(folder / "code")
    return folder / "code"


def started(code: Path, *words: str, **environment: str) -> tuple[dict[str, Any], int, str]:
    """Start the entry; return what the script saw, the number of the process, and stderr."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE", "SM_"))}
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=code,
        env={**clean, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return json.loads(next(line for line in out.splitlines() if line.startswith("{"))), process.pid, errors


def test_the_script_starts_in_the_same_process_with_its_own_name(tmp_path: Path) -> None:
    code = staged(tmp_path)
    found, pid, _ = started(code, "-X", "dev", str(code / ENTRY), "--lr", "a b", ENTRY)
    assert found["argv"] == [str(code / "train.py"), "--lr", "a b", ENTRY]
    assert (found["file"], found["path"], found["lib"], found["pid"]) == ("train.py", str(code), "mine", pid)
    assert found["isolated"] and "headrace.accelerate.hook" in found["hooks"]


@pytest.mark.parametrize("words", [(ENTRY,), (f"./{ENTRY}",), ("-m", "headrace_entry")])
def test_each_way_to_start_it_works(tmp_path: Path, words: tuple[str, ...]) -> None:
    found, _, _ = started(staged(tmp_path), *words, "--x")
    assert found["file"] == "train.py" and found["argv"][1:] == ["--x"]


def test_a_script_in_a_folder_keeps_its_place(tmp_path: Path) -> None:
    code = staged(tmp_path, entry="tools/train.py")
    found, _, _ = started(code, ENTRY)
    assert found["path"] == str(code / "tools")


def test_the_variables_of_the_toolkit_name_the_script(tmp_path: Path) -> None:
    training = json.dumps({"user_entry_point": ENTRY, "module_name": "headrace_entry", "hosts": ["algo-1"]})
    names = {"SM_USER_ENTRY_POINT": ENTRY, "SM_MODULE_NAME": "headrace_entry", "SM_TRAINING_ENV": training}
    found, _, _ = started(staged(tmp_path), ENTRY, **names)
    assert found["names"][:2] == ["train.py", "train"]
    assert json.loads(found["names"][2]) == {"user_entry_point": "train.py", "module_name": "train", "hosts": ["algo-1"]}
    found, _, _ = started(staged(tmp_path), ENTRY, SM_TRAINING_ENV="no json")
    assert found["names"][2] == "no json"


def test_an_import_gives_the_names_of_the_script(tmp_path: Path) -> None:
    code = staged(tmp_path)
    program = "import headrace_entry; print(headrace_entry.model_fn('x'), headrace_entry.__name__)"
    done = subprocess.run([sys.executable, "-c", program], cwd=code, capture_output=True, text=True, check=True)
    assert done.stdout == "x headrace_entry\n"


def test_a_job_without_headrace_runs_plain_and_says_why(tmp_path: Path) -> None:
    code = staged(tmp_path)
    (code / ".headrace").mkdir()  # what travelled is empty
    (code / ".headrace/headrace").mkdir()
    (code / ".headrace/headrace/__init__.py").write_text("raise ImportError('no safetensors')")
    output = {"SM_OUTPUT_DATA_DIR": str(tmp_path / "output"), "SM_CURRENT_HOST": "algo-2"}
    found, _, errors = started(code, ENTRY, **output)
    assert found["hooks"] is None
    assert errors == "headrace: train.py runs plain: ImportError: no safetensors\n"
    started(code, ENTRY, **output)
    assert (tmp_path / "output/headrace-plain-algo-2.txt").read_text() == "train.py: ImportError: no safetensors\n" * 2
    assert plain_reasons(tmp_path / "output") == ["algo-2: train.py: ImportError: no safetensors"]


def test_the_headrace_that_travelled_is_used_where_another_is_installed(tmp_path: Path) -> None:
    code = staged(tmp_path)
    shutil.copytree(PACKAGE, code / ".headrace/headrace", copy_function=os.link, ignore=shutil.ignore_patterns("__pycache__"))
    (code / ".headrace/lacking").mkdir()
    (code / "train.py").write_text("import json, sys; print(json.dumps({'headrace': sys.modules['headrace'].__file__}))")
    found, _, errors = started(code, ENTRY, PYTHONPATH=str(PACKAGE.parent))
    assert found["headrace"] == str(code / ".headrace/headrace/__init__.py"), errors


def test_under_diagnose_the_first_rank_of_a_host_watches(tmp_path: Path) -> None:
    code = staged(tmp_path, under="diagnose")
    output = tmp_path / "output"
    first, _, _ = started(code, ENTRY, SM_OUTPUT_DATA_DIR=str(output), SM_CURRENT_HOST="algo-2", LOCAL_RANK="0")
    folder = output / "headrace-algo-2"
    assert first["file"] == "train.py" and (folder / "launch.jsonl").is_file()
    other, pid, _ = started(code, ENTRY, SM_OUTPUT_DATA_DIR=str(output), SM_CURRENT_HOST="algo-2", LOCAL_RANK="1")
    assert other["pid"] == pid and other["hooks"] == first["hooks"]


def test_a_command_gets_the_arguments_of_its_launcher(tmp_path: Path) -> None:
    code = staged(tmp_path)
    (code / ENTRY).write_bytes(Source(tmp_path / "source", "", "run", command="python train.py --a 1").entry_file() or b"")
    found, _, _ = started(code, ENTRY, "--lr", "a b")
    assert found["argv"] == ["train.py", "--a", "1", "--lr", "a b"] and "headrace.accelerate.hook" in found["hooks"]


@pytest.mark.parametrize(
    "first, shell", [("#!/bin/sh", ""), ("#!/usr/bin/env bash", "bash"), ("#!/bin/bash -e", "bash e"), ("", "")]
)
@pytest.mark.parametrize("under", ["run", "plain"])
def test_a_shell_script_starts_by_its_first_line_as_in_the_toolkit(tmp_path: Path, first: str, shell: str, under: Any) -> None:
    source = tmp_path / "my source"
    source.mkdir()
    says = 'case $- in *e*) e=" e";; esac; echo "$1|$#|$SM_USER_ENTRY_POINT|$HEADRACE_HOOKS|${BASH_VERSION:+bash}$e"'
    (source / "start it.sh").write_text(f"{first}\n{says}\n")
    found = Source(source, "start it.sh", under)
    found.stage(tmp_path / "code")
    (tmp_path / "code" / found.program).chmod(0o755)
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "SM_USER_ENTRY_POINT": found.program}
    words = ["/bin/sh", "-c", f"'./{found.program}' --lr 'a b'"]
    done = subprocess.run(words, cwd=tmp_path / "code", env=environment, capture_output=True, text=True, check=True)
    hooks = "headrace.accelerate.hook" if under == "run" else ""
    words_of_sh = subprocess.run(["/bin/sh", "-c", 'echo "${BASH_VERSION:+bash}"'], capture_output=True, text=True, check=True)
    shell = shell or words_of_sh.stdout.strip()
    assert done.stdout == f"--lr|2|start it.sh|{hooks}|{shell}\n", done.stderr


def test_a_shell_script_without_a_python_runs_plain_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/start.sh").write_text("echo started $1")
    Source(tmp_path / "source", "start.sh", "run").stage(tmp_path / "code")
    (tmp_path / "bin").mkdir()
    for name in ("dirname", "chmod"):
        (tmp_path / "bin" / name).symlink_to(f"/bin/{name}")
    words = ["/bin/sh", str(tmp_path / "code/headrace_entry.sh"), "x"]
    done = subprocess.run(words, env={"PATH": str(tmp_path / "bin")}, capture_output=True, text=True, check=True)
    assert done.stdout == "started x\n" and done.stderr.endswith("start.sh runs plain: there is no Python\n")


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"])
def test_other_processes_of_a_host_are_known_by_their_launchers_variables(tmp_path: Path, variable: str) -> None:
    code, output = staged(tmp_path, under="diagnose"), tmp_path / "output"
    folder = output / f"headrace-{os.uname().nodename}"
    folder.mkdir(parents=True)
    (folder / "launch.jsonl").write_text("")
    found, pid, _ = started(code, ENTRY, SM_OUTPUT_DATA_DIR=str(output), **{variable: "1"})
    assert found["pid"] == pid


def test_a_second_start_on_a_host_and_a_folder_without_rights_start_the_script(tmp_path: Path) -> None:
    code, output = staged(tmp_path, under="diagnose"), tmp_path / "output"
    first, _, _ = started(code, ENTRY, SM_OUTPUT_DATA_DIR=str(output))
    again, pid, _ = started(code, ENTRY, SM_OUTPUT_DATA_DIR=str(output))
    assert first["file"] == again["file"] == "train.py" and again["pid"] == pid
    (tmp_path / "file").write_text("")
    plain, _, errors = started(code, ENTRY, SM_OUTPUT_DATA_DIR=str(tmp_path / "file"))
    assert plain["hooks"] is None and "train.py runs plain: NotADirectoryError" in errors


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10"])
def test_an_older_python_runs_the_script_plain_and_says_why(tmp_path: Path, version: str) -> None:
    installed = [*map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")), f"/usr/bin/python{version}"]
    python = next((one for one in installed if Path(one).exists()), None)
    if python is None:
        pytest.skip(f"untested: there is no Python {version}")
    code = staged(tmp_path)
    output = {"SM_OUTPUT_DATA_DIR": str(tmp_path / "output")}  # else /opt/ml, which launch local would find on this machine
    done = subprocess.run([python, ENTRY, "--x"], cwd=code, env=output, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["argv"][1:] == ["--x"]
    assert done.stderr == f"headrace: train.py runs plain: Python {version}, and headrace needs 3.11\n"
