"""Mistakes in launches of own scripts: each gives the option or field that is wrong, and what to do."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from headrace.cli.main import main
from headrace.errors import HeadraceError
from headrace.launch.in_container.requirements import install_requirements
from headrace.launch.own_code.source import Source

AWS = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
OLD_PYTHON = f"{AWS}/pytorch-training:2.1.0-gpu-py310-cu121-ubuntu20.04-sagemaker"
OLD_TORCH = f"{AWS}/pytorch-training:2.3.0-gpu-py311-cu121-ubuntu20.04-sagemaker"
TENSORFLOW = f"{AWS}/tensorflow-training:2.19.0-gpu-py312-cu125-ubuntu22.04-sagemaker"
MANY = [word for number in range(101) for word in ("--hyperparameter", f"a{number}=1")]
SAGEMAKER = {"--data": "s3://bucket/train", "--instance": "ml.g5.xlarge", "--role": "arn:aws:iam::111122223333:role/r",
             "--bucket": "bucket"}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("train.py", "start.sh", "notes.txt", "lib/x.py", "a b.py", "-x.py", "new\nline.py"):
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text("print(1)")
    (tmp_path / "other").mkdir()
    for name in ("file.txt", "other/kept.txt"):
        (tmp_path / name).write_text("")
    for name in ("empty", "taken/.headrace"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "taken/train.py").write_text("")
    (tmp_path / "project/link.py").symlink_to("/etc/hostname")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def launch(target: str, words: list[str]) -> list[str]:
    given = ["launch", target]
    if target == "sagemaker":
        options = {option: value for option, value in SAGEMAKER.items() if option not in words}
        given += [word for option in options.items() for word in option] + ["--dry-run"]
    if not {"--source-dir", "--script"} & set(words):
        given += ["--source-dir", "project"]
    return [*given, *words]


PLANTED: dict[str, tuple[str, list[str], str, str]] = {
    "an entry that is not there": ("local", ["--entry", "main.py"], "--entry: there is no file main.py", "there: .*train.py"),
    "an entry outside": ("local", ["--entry", "../train.py"], "--entry ../train.py is not below", "name the script from"),
    "an absolute entry": ("local", ["--entry", "/tmp/x.py"], "--entry /tmp/x.py is not below", "name the script from"),
    "an entry that is a folder": ("local", ["--entry", "lib"], "--entry: there is no file lib", "there: "),
    "an entry of another kind": ("local", ["--entry", "notes.txt"], "--entry notes.txt: only .py and .sh", "--under plain"),
    "an entry that is a link": ("local", ["--entry", "link.py"], "--entry link.py does not travel", "links do not"),
    "an entry with a space": ("local", ["--entry", "a b.py"], "--entry 'a b.py' is a name", "rename the script"),
    "an entry like an option": ("local", ["--entry=-x.py"], "--entry '-x.py' is a name", "rename the script"),
    "an entry of two lines": ("local", ["--entry", "new\nline.py"], r"--entry 'new\nline.py' is a name", "rename the script"),
    "a source that is not there": ("local", ["--source-dir", "none"], "--source-dir: there is no folder none", "name the"),
    "a source without a name": ("local", ["--source-dir", ""], "--source-dir is empty", "name the folder"),
    "a source that is a file": ("local", ["--source-dir", "file.txt"], "--source-dir: file.txt is a file", "--script FILE"),
    "an empty source": ("local", ["--source-dir", "empty"], "there is no file train.py in empty", "which has none at its top"),
    "a source with our names": ("local", ["--source-dir", "taken"], "taken has a .headrace", "rename it"),
    "a script that is not there": ("local", ["--script", "no.py"], "--script: there is no file no.py", "--source-dir DIR"),
    "a script and a source": ("local", ["--script", "x.py", "--source-dir", "project"], "both name the code", "leave one out"),
    "a misspelt way": ("local", ["--under", "rum"], "--under: invalid choice: 'rum'", "headrace launch -h"),
    "another launcher": ("local", ["--launcher", "mpirun"], "--launcher: invalid choice", "headrace launch -h"),
    "torchrun of a shell script": ("local", ["--entry", "start.sh", "--launcher", "torchrun"], "start.sh is a", "torchrun"),
    "data that are not there": ("local", ["--data", "none"], "--data: there is no folder none", "name the folder"),
    "data without a file": ("local", ["--data", "empty"], "--data: empty holds no file", "name the folder"),
    "another's folder for the job": ("local", ["--out", "other"], "other is not the folder of a local job", "--out FOLDER"),
    "a file for the job": ("local", ["--out", "file.txt"], "file.txt is not the folder of a local job", "--out FOLDER"),
    "a hyperparameter without a value": ("local", ["--hyperparameter", "lr"], "--hyperparameter lr: KEY=VALUE", "such as"),
    "a hyperparameter twice": (
        "local", ["--hyperparameter", "lr=1", "--hyperparameter", "lr=2"], "--hyperparameter lr=… is given twice", "leave one"),
    "a hyperparameter of the toolkit": (
        "local", ["--hyperparameter", "sagemaker_program=x.py"], "names with sagemaker_ are the toolkit's", "rename it"),
    "a long hyperparameter": (
        "sagemaker", ["--hyperparameter", "lr=" + "1" * 2501], r"HyperParameters['lr']: 2501 characters", "at most 2500"),
    "a hyperparameter with a long name": ("sagemaker", ["--hyperparameter", "l" * 257 + "=1"], "257 characters", "at most 256"),
    "too many hyperparameters": ("sagemaker", MANY, "HyperParameters: 101", "at most 100"),
    "a variable without a value": ("local", ["--env", "A"], "--env A: KEY=VALUE", "such as --env"),
    "a variable of the toolkit": ("local", ["--env", "SM_CHANNEL_TRAINING=/x"], "--env SM_CHANNEL_TRAINING: SM_", "another"),
    "long arguments": ("sagemaker", ["--", "x" * 600], "-- ARGUMENTS: 604 characters", "--hyperparameter KEY=VALUE"),
    "a folder as data on SageMaker": ("sagemaker", ["--data", "photos/"], "S3DataSource.S3Uri: 'photos/'", "must match"),
    "TensorFlow": ("sagemaker", ["--image", TENSORFLOW], "is for PyTorch", "\"diagnose\" measures"),
    "an image with an old Python": ("sagemaker", ["--image", OLD_PYTHON], "Python 3.10", "2.8.0"),
    "an image with an old torch": ("sagemaker", ["--image", OLD_TORCH], "torch 2.3", "2.8.0"),
    "an instance without its prefix": ("sagemaker", ["--instance", "g5.xlarge"], "InstanceType: 'g5.xlarge'", "near values"),
    "a role that is no ARN": ("sagemaker", ["--role", "mine"], "RoleArn: 4 characters", "at least 20"),
    "a name with a space": ("sagemaker", ["--name", "my job"], "TrainingJobName: 'my job'", "must match"),
    "a wheel beside a source": ("sagemaker", ["--wheel", "x.whl"], "--wheel", "leave it out"),
}  # fmt: skip


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", PLANTED)
def test_a_mistake_gives_its_place_and_the_remedy(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    target, words, place, remedy = PLANTED[name]
    assert main(launch(target, words)) != 0
    said = capsys.readouterr()
    printed = said.err + said.out
    assert "Traceback" not in printed
    assert place in printed
    _, _, behind = printed.partition(place)
    assert re.search(remedy, behind), printed


def test_a_file_that_cannot_be_read_is_named_before_anything_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "project/secret.bin").write_text("x")
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda file, mode: allowed(file, mode) and Path(file).name != "secret.bin")
    with pytest.raises(HeadraceError, match=r"secret\.bin of .*project travels, and cannot be read") as found:
        Source(here / "project", "train.py", "run").words()
    assert "chmod u+r" in str(found.value.hint)


def test_a_source_that_is_too_large_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(here / "project/weights.bin", "wb") as file:
        file.truncate(1_100_000_000)  # a hole
    assert main(launch("local", [])) == 2
    said = capsys.readouterr().err
    assert "--source-dir: source: " in said and "data do not travel with the code" in said and "name them by --data" in said


def test_a_link_that_leads_back_and_odd_names_are_no_mistakes(here: Path) -> None:
    (here / "project/loop").symlink_to(".")
    found = Source(here / "project", "train.py", "run")
    found.check()
    found.stage(here / "copy")
    assert "loop" in found.contents.links and (here / "copy/new\nline.py").is_file()


@pytest.mark.parametrize(
    "line, words",
    [
        ("-r more.txt", "more.txt"),
        ("-e ./nowhere", "nowhere"),
        ("https://127.0.0.1:9/oddone-1.0-py3-none-any.whl", "127.0.0.1"),
        ("oddone==", "oddone=="),
        ("--no-index\nno-such-package", "no-such-package"),
    ],
)
@pytest.mark.slow
def test_requirements_that_cannot_be_installed_say_why(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"{line}\n")
    environment = {**os.environ, "PIP_RETRIES": "0", "PIP_TIMEOUT": "2"}
    with pytest.raises(HeadraceError, match=r"cannot install requirements\.txt: ") as found:
        install_requirements(tmp_path, tmp_path / "packages", environment)
    assert words in str(found.value) and "requirements.txt beside the script" in str(found.value.hint)
    assert not (tmp_path / "packages").exists() and json.dumps(str(found.value)).count("\\n") == 0


@pytest.mark.slow
def test_a_package_that_cannot_be_built_is_told_with_pips_words_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken").mkdir()
    backend = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (tmp_path / "broken/pyproject.toml").write_text(backend)
    (tmp_path / "broken/backend.py").write_text("raise RuntimeError('no compiler here')")
    (tmp_path / "requirements.txt").write_text("./broken\n")
    with pytest.raises(HeadraceError, match=r"cannot install requirements\.txt: .+ log") as found:
        install_requirements(tmp_path, tmp_path / "packages", dict(os.environ))
    assert "See above" not in str(found.value) and "no compiler here" in capsys.readouterr().err
