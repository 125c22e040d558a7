"""What travels to a container: the script's folder and headrace, and a container that has neither runs the script under it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from headrace.launch.job_request.request import TrainingJob, build_request
from headrace.launch.own_code import travelling
from headrace.launch.own_code.source import ENTRY, Source
from headrace.launch.own_code.travelling import ARCHIVE, needed_glibc, travelling_files, write_archive


def test_headrace_and_what_an_image_may_lack_travel() -> None:
    names = [name for name, _ in travelling_files()]
    assert "headrace/attach/site/sitecustomize.py" in names and "headrace/_native.abi3.so" in names
    assert "lacking/safetensors/__init__.py" in names and "lacking/rich/console.py" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith("lacking/numpy")]


def test_the_newest_symbol_decides_the_c_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.so").write_bytes(b"\0GLIBC_2.9\0GLIBC_2.17\0")
    (tmp_path / "b.so").write_bytes(b"\0GLIBC_2.34\0GLIBC_PRIVATE\0")
    monkeypatch.setattr(
        travelling, "travelling_files", lambda: iter([("a.so", tmp_path / "a.so"), ("b.so", tmp_path / "b.so")])
    )
    assert needed_glibc.__wrapped__() == (2, 34)


SCRIPT = """
import argparse, json, os, sys
import torch, torchvision
from torchvision import transforms
import headrace.accelerate.hook
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
args = parser.parse_args()
steps = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
data = torchvision.datasets.ImageFolder(os.environ["SM_CHANNEL_TRAINING"], steps)
seen = sum(len(y) for x, y in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1))
print("seen", seen, args.lr, os.environ["SM_USER_ENTRY_POINT"], sys.modules["headrace"].__file__)
"""

LACKING = (
    "headrace",
    "_headrace",
    "__editable__",
    "rich",
    "safetensors",
    "markdown_it",
    "mdurl",
    "pygments",
    "distutils-precedence",
)


def image(folder: Path) -> Path:
    """Make an environment with the packages of this one but for headrace and what an image may lack. Return its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    target = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not entry.name.lower().startswith(LACKING) and entry.suffix != ".pth":
            (target / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


@pytest.mark.slow
@pytest.mark.parametrize("under", ["run", "diagnose"])
def test_a_container_without_headrace_and_without_network_runs_the_script_under_it(
    tmp_path: Path, image_folder: Callable[..., Path], under: str
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/train.py").write_text(SCRIPT)
    source = Source(tmp_path / "project", "train.py", under)  # type: ignore[arg-type]
    base = tmp_path / "ml"
    for part in ("input/config", "input/data/code"):
        (base / part).mkdir(parents=True)
    write_archive(source, base / "input/data/code" / ARCHIVE)
    image_folder().rename(base / "input/data/training")
    files = {"hyperparameters": {"lr": "0.1"}, "inputdataconfig": {"training": {}}, "resourceconfig": {"hosts": ["algo-1"]}}
    for name, value in files.items():
        (base / "input/config" / f"{name}.json").write_text(json.dumps(value))
    request = build_request(TrainingJob("j", "ml.m5.xlarge", "role", "bucket", archive=ARCHIVE))
    words = request["AlgorithmSpecification"]["ContainerEntrypoint"][-1].replace("/opt/ml", str(base))
    python = image(tmp_path / "image")
    environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "SAGEMAKER_BASE_DIR": str(base)}
    alone = ["unshare", "-r", "-n"] if subprocess.run(["unshare", "-r", "-n", "true"], check=False).returncode == 0 else []
    done = subprocess.run(
        [*alone, "bash", "-c", words], env=environment | source.variables(), cwd=tmp_path, capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "seen 12 0.1 train.py" in said and f"{base}/code/.headrace/headrace/__init__.py" in said, said
    assert "runs plain" not in said and "not attached" not in said, said
    if under == "run":
        assert "taken over: decode, RandomResizedCrop, ToTensor" in said
    else:
        assert (base / "output/data/headrace-algo-1/report.html").is_file(), said


def test_the_archive_is_the_same_for_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(travelling, "travelling_files", lambda: iter([("headrace/x.py", Path(__file__))]))
    (tmp_path / "train.py").write_text("print(1)")
    for name in ("one", "two"):
        write_archive(Source.of_file(tmp_path / "train.py", "run"), tmp_path / name)
        os.utime(tmp_path / "train.py", (1, 1))
    with tarfile.open(tmp_path / "one") as one, tarfile.open(tmp_path / "two") as two:
        assert [member.get_info() for member in one] == [member.get_info() for member in two]
        assert sorted(one.getnames()) == [".headrace/headrace/x.py", ENTRY, "train.py"]


def test_the_container_needs_no_package_index() -> None:
    words = build_request(TrainingJob("j", "ml.m5.xlarge", "role", "bucket", archive=ARCHIVE))
    start = shlex.join(words["AlgorithmSpecification"]["ContainerEntrypoint"])
    assert "pip" not in start and "tar -xzf /opt/ml/input/data/code/source.tar.gz" in start
