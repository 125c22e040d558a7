"""`headrace.launch.under`: what it changes of an estimator, and the requests of SageMaker's own SDKs before and after.

`make test-frameworks` sets HEADRACE_SAGEMAKER_SDKS; scripts/sagemaker_sdk.sh makes an environment for each SDK.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import headrace
import pytest
from headrace.errors import UsageError
from headrace.launch import under
from headrace.launch.own_code import travelling

under_module = importlib.import_module("headrace.launch.own_code.under")
HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
PACKAGE = str(Path(headrace.__file__).parents[1])


def requests_of(version: int, folder: Path) -> Any:
    """Run the program of an SDK in a folder with a project, and return what it printed."""
    for name, text in {"train.py": "print(1)", "start.sh": "echo", "tools/eval.py": "", "requirements.txt": "six"}.items():
        (folder / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "project" / name).write_text(text)
    script = REPOSITORY / "scripts" / "sagemaker_sdk.sh"
    python = subprocess.run([script, str(version)], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": PACKAGE, "AWS_DEFAULT_REGION": "us-east-1"}
    environment |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    program = HERE / "sdks" / f"sdk{version}.py"
    done = subprocess.run([python, str(program)], cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def differences(one: Any, other: Any, at: str = "") -> list[str]:
    """Return where two documents differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = sorted({*one, *other})
        return [found for name in names for found in differences(one.get(name), other.get(name), f"{at}.{name}")]
    return [] if one == other else [at]


needs_sdk = pytest.mark.skipif(
    "HEADRACE_SAGEMAKER_SDKS" not in os.environ, reason="untested: no environment with SageMaker's SDK"
)


def estimator(folder: Path, **fields: Any) -> Any:
    """A stand-in for an estimator of SDK 2, which is known by the name and the module of its class."""
    (folder / "project").mkdir(exist_ok=True)
    (folder / "project/train.py").write_text("print(1)")
    kind = type("Framework", (), {"__module__": "sagemaker.estimator", "__qualname__": "Framework"})
    given = {
        "source_dir": str(folder / "project"), "entry_point": "train.py", "image_uri": None, "instance_type": "ml.g5.xlarge",
        "framework_version": "2.8.0", "py_version": "py312", "_framework_name": "pytorch",
    }  # fmt: skip
    found = kind()
    vars(found).update({**given, **fields})
    return found


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only a small part of headrace travel."""
    monkeypatch.setattr(travelling, "travelling_files", lambda: iter([("headrace/__init__.py", Path(headrace.__file__))]))
    monkeypatch.setattr(travelling, "_staged_headrace", travelling._staged_headrace.__wrapped__)
    monkeypatch.setattr(under_module, "needed_glibc", lambda: (2, 28))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


@pytest.mark.usefixtures("light")
def test_under_starts_a_copy_of_the_source_and_plain_undoes_it(tmp_path: Path) -> None:
    found = estimator(tmp_path)
    assert under(found, "run") is found
    folder = Path(found.source_dir)
    assert found.entry_point == "headrace_entry.py" and folder != tmp_path / "project"
    assert sorted(path.name for path in folder.iterdir()) == [".headrace", "headrace_entry.py", "train.py"]
    under(found, "diagnose")
    again = Path(found.source_dir)
    assert (
        "UNDER = 'diagnose'" in (again / "headrace_entry.py").read_text()
        and "SCRIPT = 'train.py'" in (again / "headrace_entry.py").read_text()
    )
    under(found, "plain")
    assert (found.source_dir, found.entry_point) == (str(tmp_path / "project"), "train.py")
    assert (tmp_path / "project/train.py").exists()


@pytest.mark.usefixtures("light")
def test_the_source_outlives_the_estimator_for_its_copies(tmp_path: Path) -> None:
    found = under(estimator(tmp_path), "run")
    other = copy.deepcopy(found)
    del found
    assert (Path(other.source_dir) / "headrace_entry.py").is_file()
    assert under(other, "plain").source_dir == str(tmp_path / "project")


STAGES = """
import sys
from pathlib import Path
from headrace.launch.own_code import travelling
from headrace.launch.own_code.source import Source
for number in (1, 2):
    travelling.stage(Source(Path(sys.argv[1]), "train.py", "run"), folder := travelling.temporary_folder())
    for file in folder.rglob("*"):
        if file.is_file() and (b"zanzibar" in file.read_bytes() or "zanzibar" in str(file.relative_to(folder))):
            print("tells of this machine:", file.relative_to(folder))
print(len({file.stat().st_ino for file in folder.parent.rglob("_native.abi3.so")}), "library at", folder)
"""


def test_nothing_uploaded_tells_of_this_machine_and_the_copies_end_with_the_process(tmp_path: Path) -> None:
    home = tmp_path / "zanzibar"
    package = home / "checkout/python/headrace"
    shutil.copytree(PACKAGE + "/headrace", package, copy_function=os.link, ignore=shutil.ignore_patterns("__pycache__"))
    (home / "checkout/Cargo.toml").touch()
    library = (package / "_native.abi3.so").read_bytes()
    (package / "_native.abi3.so").unlink()
    built = f"\0{home}/.cargo/registry/src/x.rs:1\0{home}/checkout\0".encode()
    (package / "_native.abi3.so").write_bytes(library + built)
    (home / "project").mkdir()
    (home / "project/train.py").write_text("print(1)")
    environment = {**os.environ, "HOME": str(home), "USER": "zanzibar", "PYTHONPATH": str(package.parent)}
    words = [sys.executable, "-c", STAGES, str(home / "project")]
    done = subprocess.run(words, env=environment, cwd=home, capture_output=True, text=True, check=True)
    *told, last = done.stdout.splitlines()
    assert not told
    assert last.startswith("1 library at "), "the second copy links to the first"
    assert not Path(last.removeprefix("1 library at ")).exists(), "the copies end with the process"


@pytest.mark.usefixtures("light")
def test_what_somebody_has_changed_since_stays_and_is_what_runs(tmp_path: Path) -> None:
    found = under(estimator(tmp_path), "run")
    (tmp_path / "project/other.py").write_text("print(2)")
    found.entry_point, found.source_dir = "other.py", str(tmp_path / "project")
    under(found, "run")
    assert "SCRIPT = 'other.py'" in (Path(found.source_dir) / "headrace_entry.py").read_text()
    assert (under(found, "plain").entry_point, found.source_dir) == ("other.py", str(tmp_path / "project"))
    found.entry_point = "train.py"
    under(found, "run")
    assert "SCRIPT = 'train.py'" in (Path(found.source_dir) / "headrace_entry.py").read_text()


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize(
    "fields, how, words",
    [
        ({"framework_version": "2.0.1", "py_version": "py310"}, "run", r"Python 3\.10, and headrace needs 3\.11"),
        ({"framework_version": "2.3.0", "py_version": "py311"}, "run", r"torch 2\.3, and headrace needs 2\.4"),
        ({"source_dir": "s3://bucket/source.tar.gz"}, "run", "the source is s3"),
        ({"git_config": {"repo": "x"}}, "run", "comes from git"),
        ({"distribution": {"smdistributed": {"dataparallel": {}}}}, "run", "data-parallel library"),
        ({"is_llmft_recipe": True}, "run", "training recipe"),
        ({"entry_point": object()}, "run", "known only when a pipeline runs"),
        ({"entry_point": None}, "run", "no entry_point"),
        ({"_framework_name": "huggingface", "pytorch_version": "2.1", "py_version": "py310"}, "run", r"Python 3\.10"),
        ({"_framework_name": "tensorflow", "py_version": "py310"}, "diagnose", r"Python 3\.10"),
        ({"instance_groups": [SimpleNamespace(instance_type="ml.c7g.large")]}, "run", "another processor"),
        ({"_framework_name": "tensorflow"}, "run", "is for PyTorch, not for tensorflow"),
        ({"instance_type": "ml.c7g.large"}, "diagnose", "another processor"),
        ({"source_dir": None, "entry_point": "nowhere.py"}, "run", r"there is no file nowhere\.py"),
        ({}, "fast", "'run', 'diagnose', 'plain' are known"),
    ],
)
def test_what_cannot_start_is_refused_and_the_estimator_stays(
    tmp_path: Path, fields: dict[str, Any], how: Any, words: str
) -> None:
    found = estimator(tmp_path, **fields)
    before = dict(vars(found))
    with pytest.raises(UsageError, match=words):
        under(found, how)
    assert vars(found) == before


def test_something_else_than_an_estimator_is_refused() -> None:
    with pytest.raises(UsageError, match=r"builtins\.dict is not supported"):
        under({}, "run")


@needs_sdk
@pytest.mark.timeout(900)
def test_a_request_of_sdk_2_differs_in_the_name_of_its_program_only(tmp_path: Path) -> None:
    found = requests_of(2, tmp_path)
    assert len(found["works"]) >= 15
    for name, each in found["works"].items():
        for how in {"run", "diagnose"} & each.keys():
            changed = differences(each["plain"]["request"], each[how]["request"])
            assert changed == [".HyperParameters.sagemaker_program"], (name, changed)
            assert "headrace_entry.py" in each[how]["files"], name
            assert ".headrace/headrace/attach/site/sitecustomize.py" in each[how]["files"], name
        assert differences(each["plain"], each["undone"]) == [], name
    refused = found["refused"]
    assert "torch_distributed" in refused["smddp"] and "CHANGED" not in json.dumps(refused)
    assert 'framework_version="2.8.0", py_version="py312"' in refused["old image"]
    assert "unpack it" in refused["archive"] and "clone it" in refused["git"]
    assert "there is no folder nowhere" in refused["no folder"] and "nothing.py" in refused["no entry"]
    assert "another processor" in refused["graviton"] and "diagnose" in refused["tensorflow"]


@needs_sdk
@pytest.mark.timeout(900)
def test_a_request_of_sdk_3_does_not_differ(tmp_path: Path) -> None:
    found = requests_of(3, tmp_path)
    assert len(found["works"]) >= 10
    for name, each in found["works"].items():
        assert differences(each["plain"]["request"], each["run"]["request"]) == [], name
        assert "headrace_entry.py" in each["run"]["files"] and "headrace_entry.py" in json.dumps(each["run"]), name
        assert ".headrace/headrace/attach/site/sitecustomize.py" in each["run"]["files"], name
        assert differences(each["plain"], each["undone"]) == [], name
    refused = found["refused"]
    assert 'framework_version="2.8.0", py_version="py312" works' in refused["old image"] and "unpack it" in refused["archive"]
    assert "no script of yours" in refused["no code"]
    assert "another processor" in refused["graviton"] and "CHANGED" not in json.dumps(refused)
