"""`headrace launch local --source-dir`: a folder with a script runs as on SageMaker, plain and under headrace."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from headrace.cli.main import main

SCRIPT = """
import argparse, json, os, sys
import torch, torchvision
from torchvision import transforms
from helper import NAME
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--more", type=int)
args = parser.parse_args()
torch.manual_seed(0)
steps = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
data = torchvision.datasets.ImageFolder(os.environ["SM_CHANNEL_TRAINING"], steps)
model = torch.nn.Linear(3 * 32 * 32, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for x, y in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, num_workers=1):
    loss = torch.nn.functional.cross_entropy(model(x.flatten(1)), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
seen = {"loss": loss.item(), "argv": sys.argv[1:], "cwd": os.path.basename(os.getcwd()), "config": open("configs/a.txt").read(),
        "name": NAME, "program": os.environ["SM_USER_ENTRY_POINT"]}
json.dump(seen, open(os.path.join(os.environ["SM_MODEL_DIR"], "seen.json"), "w"))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "configs").mkdir(parents=True)
    (folder / "configs/a.txt").write_text("ok")
    (folder / "helper.py").write_text("NAME = 'helped'")
    (folder / "main.py").write_text(SCRIPT)
    return folder


@pytest.fixture
def photos(image_folder: Callable[..., Path]) -> Path:
    return image_folder(classes=3, per_class=4)


def launch(tmp_path: Path, project: Path, *words: str, entry: str = "main.py") -> int:
    named = ["--source-dir", str(project), "--entry", entry, "--out", str(tmp_path / "job")]
    return main(["launch", "local", *named, *words])


def log(tmp_path: Path) -> str:
    return (tmp_path / "job/logs/algo-1.log").read_text()


@pytest.mark.slow
def test_a_folder_gives_the_same_result_plain_and_under_headrace(tmp_path: Path, project: Path, photos: Path) -> None:
    seen = {}
    for under in ("plain", "run", "diagnose"):
        words = ["--under", under, "--data", str(photos), "--hyperparameter", "lr=0.01", "--", "--more", "3"]
        assert launch(tmp_path, project, *words) == 0, log(tmp_path)
        seen[under] = json.loads((tmp_path / "job/results/model/seen.json").read_text())
        assert ("taken over: decode" in log(tmp_path)) == (under == "run")
    assert seen["plain"] == seen["run"] == seen["diagnose"]
    assert seen["plain"]["argv"] == ["--lr", "0.01", "--more", "3"]
    assert (seen["plain"]["cwd"], seen["plain"]["program"]) == ("code", "main.py")
    assert (tmp_path / "job/results/output/headrace-algo-1/report.html").is_file()


QUICK = """
import json, os
json.dump(sorted(os.environ), open(os.environ["SM_MODEL_DIR"] + "/names.json", "w"))
"""


def test_run_is_the_default_and_the_words_say_what_travels(
    tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "train.py").write_text(QUICK)
    assert main(["launch", "local", "--source-dir", str(project), "--out", str(tmp_path / "job")]) == 0
    said = capsys.readouterr()
    assert f"of {project}; train.py under headrace run" in said.err
    assert f"model: {tmp_path}/job/s3/local/headrace/" in said.out and "s3://" not in said.out


def test_a_shell_script_starts_too(tmp_path: Path, project: Path) -> None:
    (project / "start.sh").write_text('echo "$@" "$SM_USER_ENTRY_POINT" hooks=$HEADRACE_HOOKS')
    assert launch(tmp_path, project, "--hyperparameter", "lr=0.1", entry="start.sh") == 0, log(tmp_path)
    assert "--lr 0.1 start.sh hooks=headrace.accelerate.hook" in log(tmp_path)


@pytest.mark.slow
def test_what_requirements_ask_for_is_there_and_this_python_stays_as_it_is(tmp_path: Path, project: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "setup.py").write_text("from setuptools import setup; setup(name='oddone', version='7', py_modules=['oddone'])")
    (package / "oddone.py").write_text("HERE = __file__")
    build = [
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path / "wheels"),
        str(package),
    ]
    if subprocess.run([sys.executable, "-m", *build], capture_output=True, check=False).returncode:
        pytest.skip("untested: pip cannot make a wheel here")
    (project / "requirements.txt").write_text(f"numpy\n--no-index\n--find-links {tmp_path / 'wheels'}\noddone\n")
    (project / "main.py").write_text("import numpy, oddone; print(oddone.HERE)")
    assert launch(tmp_path, project) == 0, log(tmp_path)
    assert "requirements.txt: oddone==7" in log(tmp_path) and "/packages/oddone.py" in log(tmp_path)
    assert subprocess.run([sys.executable, "-c", "import oddone"], capture_output=True, check=False).returncode == 1
    (project / "requirements.txt").write_text("--no-index\nno-such-package==9\n")
    assert launch(tmp_path, project) == 1
    assert "cannot install requirements.txt" in log(tmp_path) and "no-such-package==9" in log(tmp_path)


HARD = """
import json, os
found = sorted(os.listdir("/opt/ml/input/data/training"))
print("training:", found, json.load(open("/opt/ml/input/config/hyperparameters.json")))
open("/opt/ml/model/model.txt", "w").write("done")
"""


def test_paths_of_the_container_work_or_are_explained(
    tmp_path: Path, project: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "main.py").write_text(HARD)
    code = launch(tmp_path, project, "--data", str(photos), "--hyperparameter", "lr=0.1")
    if "by SAGEMAKER_BASE_DIR" not in log(tmp_path):  # else the system has no mounts for users
        assert code == 0, log(tmp_path)
        assert "training: ['class_0', 'class_1', 'class_2'] {'lr': '0.1'}" in log(tmp_path)
        assert (tmp_path / "job/results/model/model.txt").read_text() == "done"
        return
    assert code == 1
    said = capsys.readouterr().out
    assert "/opt/ml is " in said and "read SM_CHANNEL_" in said and "SM_CHANNEL_TRAINING=" in said


def test_a_missing_channel_is_answered_with_those_that_are_there(
    tmp_path: Path, project: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "main.py").write_text("import os; os.environ['SM_CHANNEL_TRAIN']")
    assert launch(tmp_path, project, "--data", str(photos)) == 1
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert "AlgorithmError: algo-1: training ended with exit code 1" in lines
    (channels,) = [line for line in lines if line.startswith("the channels of this job: ")]
    assert "SM_CHANNEL_TRAINING=" in channels
    assert (said.out + said.err).count("KeyError") == 1, "the reason is said once"


def test_channels_have_the_names_that_the_script_reads(tmp_path: Path, project: Path, photos: Path) -> None:
    read = "import os; print('classes:', *(len(os.listdir(os.environ['SM_CHANNEL_' + name])) for name in ('TRAIN', 'VAL')))"
    (project / "main.py").write_text(read)
    (tmp_path / "held/one").mkdir(parents=True)
    (tmp_path / "held/one/image.jpg").write_bytes(b"x")
    channels = ["--channel", f"train={photos}", "--channel", f"val={tmp_path / 'held'}"]
    assert launch(tmp_path, project, *channels) == 0, log(tmp_path)
    assert "classes: 3 1" in log(tmp_path)


HALF = """
import os, pathlib, subprocess, sys
broken = pathlib.Path("broken/headrace/__init__.py")
broken.parent.mkdir(parents=True)
broken.write_text("raise ImportError('no safetensors')")
path = os.pathsep.join(["broken", os.environ["PYTHONPATH"]])
subprocess.run([sys.executable, "-c", "1"], env={**os.environ, "PYTHONPATH": path}, check=True)
"""


def test_the_end_of_a_job_says_what_ran_plain_and_why(
    tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "main.py").write_text(HALF)
    assert launch(tmp_path, project, "--under", "diagnose", "--json") == 0, log(tmp_path)
    (line,) = json.loads(capsys.readouterr().out)["ran_plain"]
    assert re.fullmatch(r"algo-1: process \d+: ImportError: no safetensors", line)
    assert f"headrace: {line.split(': ')[1]} runs plain: ImportError: no safetensors" in log(tmp_path)
    description = json.loads((tmp_path / "job/description.json").read_text())
    assert description["SecondaryStatusTransitions"][-1]["StatusMessage"] == f"ran plain on {line}"
    diagnosis = json.loads((tmp_path / "job/results/output/headrace-algo-1/diagnosis.json").read_text())
    assert any("no safetensors" in missing for missing in diagnosis["not_measured"])


@pytest.mark.parametrize("saves", [False, True])
def test_a_job_that_its_limit_ended_says_whether_it_saved_anything(
    tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str], saves: bool
) -> None:
    save = "open('/opt/ml/checkpoints/step', 'w').write('1')" if saves else "pass"
    (project / "main.py").write_text(f"import time\ntry: {save}\nexcept OSError: pass\nfor _ in range(999): time.sleep(0.1)")
    limit_h = "0.003" if saves else "0.0006"  # a busy machine needs seconds until the script has begun
    assert launch(tmp_path, project, "--under", "plain", "--max-hours", limit_h) == 1
    said = capsys.readouterr().out
    assert said.startswith("Stopped after ")
    if "by SAGEMAKER_BASE_DIR" not in log(tmp_path):  # else the script could not save
        assert ("nothing was saved" in said) != saves


@pytest.mark.parametrize(
    "words, said",
    [
        (["--under", "run", "--model", "resnet18", "--data", "x"], "--under is for a script of your own"),
        (["--model", "resnet18", "--data", "x", "--", "--lr"], "-- ARGUMENTS is for a script of your own"),
        (["--script", "x.py", "--source-dir", "."], "both name the code"),
        (["--source-dir", "none-there"], "there is no folder none-there"),
    ],
)
def test_options_that_contradict_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "local", *words]) == 2
    assert said in capsys.readouterr().err
