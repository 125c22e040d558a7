"""Scripts for popular frameworks, unmodified, with and without headrace: the same exit code, batches and random generators.

`make test-frameworks` installs the frameworks and runs this file; timm and torchvision are in .venv, and `make test-long` runs
their scripts. Each script of scripts/ prints a name for every batch, made from its values, types, shapes and strides. Where
`run` takes a loader over whole, the random draws of its augmentation are headrace's own: then only the batches without such
draws are compared here, and `--check` compares the others.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
PLAIN: tuple[str, ...] = (sys.executable,)
LIMIT_S = 500

pytestmark = pytest.mark.timeout(2 * LIMIT_S)

IN_PART = "taken over in part: "
LAZY = (
    IN_PART
    + "the decode(, crop)?( and resize| and crop)? of JPEGs that Pillow opens(, and the decode of .*)? (is|are) native in "
)


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and what `run` says. `lines`: patterns; each fits a line, and each line of a loader fits one.

    augmented: the dataset of the script's augmented loader, and the names of its batches and of what follows from them.
    """

    name: str
    package: str
    lines: tuple[str, ...]
    augmented: tuple[str, tuple[str, ...]] | None = None
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


WHOLE = r"taken over: decode, [\w, ]+ in \d native threads? instead of \d workers?"

CASES = [
    Script(
        "with_timm",
        "timm",
        (
            r"ImageDataset\(.*\) taken over: decode, [\w, ]+ in 2 native threads instead of 2 workers",
            rf"ImageDataset\(.*\) {WHOLE}",
            rf"ImageDataset\(.*\) (taken over: |{LAZY}its own 2)",
            f"AugMixDataset (taken over|{LAZY}its own 1 worker)",
            # timm's own erasing stays the script's
            rf"ImageDataset\(.*\) (taken over: decode, [\w, ]+ in 1 native thread instead of 1 worker|{LAZY}its own 1 worker)",
        ),
        ("ImageDataset", ("RandAugment", "AugMix")),
        options=("--check",),
    ),
    Script(
        "with_torchvision_references",
        "torchvision",
        (
            rf"ImageFolder\(.*\) {WHOLE}",
            rf"ImageFolder\(.*\) (taken over: |{LAZY}its own 2 workers)",
            r"ImageFolder\(.*\) taken over( in part)?: .*",
        ),
        options=("--check",),
    ),
    Script(
        "with_lightning",
        "lightning",
        (
            rf"ImageFolder\(.*\) {WHOLE}",
            f"Pictures (taken over: |{LAZY}its own 2 workers)",
        ),
        ("Pictures", ("train", "weights")),
        options=("--check",),
    ),
    Script(
        "with_accelerate",
        "accelerate",
        (rf"ImageFolder\(.*\) {WHOLE}", rf"WithPath\(.*\) (taken over: |{LAZY}its own 1 worker)"),
        ("WithPath", ("rank 0 epoch", "rank 1 epoch")),
        options=("--check",),
    ),
    Script(
        "with_hf_trainer",
        "transformers",
        (f"Dataset (taken over: |{LAZY}its own 2 workers)",),
        ("Dataset", ("train", "evaluation", "weights")),
        arguments=("2",),
    ),
    Script("with_fastai", "fastai", ("Datasets not taken over: fastai's DataLoader makes its own batches",)),
    Script("with_albumentations", "albumentations", (r"Pictures (not )?taken over.*",)),
    Script(
        "with_monai",
        "monai",
        (
            f"Dataset {LAZY}the main process",
            f"Dataset {LAZY}its own 2 workers",
            "CacheDataset (goes on without native decode: its items open no JPEG with Pillow|not taken over)",
        ),
    ),
]


@dataclass(frozen=True, slots=True)
class Ended:
    """A script's end: exit code, the names of its batches in order, and the lines of headrace about its loaders."""

    code: int
    names: list[str]
    lines: list[str]
    errors: str


@pytest.fixture
def drive(image_folder: Callable[..., Path], tmp_path: Path) -> Callable[..., list[Ended]]:
    """Run a script by several commands at the same time, each with a folder and cache of its own."""
    root = image_folder(classes=3, per_class=8)

    def one(number: int, start: tuple[str, ...], script: Script) -> Ended:
        own = tmp_path / str(number)
        own.mkdir()
        environment = os.environ | {
            "HEADRACE_CACHE": str(own / "cache"),
            "HF_HOME": str(own / "hf"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        command = [*start, str(SCRIPTS / f"{script.name}.py"), str(root), str(own / "out"), *script.arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, cwd=own, check=False)
        names = re.findall(r"^.* [0-9a-f]{16}$|^ours .*$", done.stdout, re.MULTILINE)
        lines = re.findall(r"headrace run: loader over (.*)", done.stderr)
        return Ended(done.returncode, names, lines, done.stderr)

    def several(script: Script, *starts: tuple[str, ...]) -> list[Ended]:
        with ThreadPoolExecutor(len(starts)) as pool:
            return list(pool.map(one, range(len(starts)), starts, [script] * len(starts)))

    return several


def needs(package: str) -> None:
    if package not in packages_distributions():  # find_spec would find the folder tests/accelerate
        pytest.skip(f"{package} is not installed (make test-frameworks)")


def headrace(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "headrace", *words, "--", sys.executable)


def compared(script: Script, ended: Ended, lines: list[str]) -> list[str]:
    """Return the names that must agree: all, but for batches whose draws are headrace's."""
    if script.augmented is not None:
        dataset, names = script.augmented
        if any(line.startswith(dataset) and " taken over: " in line for line in lines):
            return [name for name in ended.names if not name.startswith(names)]
    return ended.names


@pytest.mark.slow
@pytest.mark.parametrize("script", CASES, ids=lambda script: script.name)
def test_a_script_gets_the_same_batches_under_run(script: Script, drive: Callable[..., list[Ended]]) -> None:
    needs(script.package)
    plain, ours = drive(script, PLAIN, headrace("run", *script.options))
    assert plain.code == 0 and len(plain.names) > 10, plain.errors
    assert ours.code == 0, ours.errors
    assert compared(script, ours, ours.lines) == compared(script, plain, ours.lines)
    assert len(ours.names) == len(plain.names)
    for pattern in script.lines:
        assert any(re.match(pattern, line) for line in ours.lines), (pattern, ours.lines)
    for line in ours.lines:
        assert any(re.match(pattern, line) for pattern in script.lines), (line, script.lines)
    if "--check" in script.options:
        checks = re.findall(r"headrace run:   check: (.*)", ours.errors)
        assert len(checks) >= len(ours.lines) - 1
        assert all(re.search(r"equal", check) and not re.search(r"differ|fail", check) for check in checks), checks


RANKS = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0", "--rdzv_backend", "c10d")


def test_two_ranks_of_accelerate_get_the_same_batches_under_run(drive: Callable[..., list[Ended]]) -> None:
    needs("accelerate")
    script = next(case for case in CASES if case.name == "with_accelerate")
    torchrun = (*RANKS, "--rdzv_endpoint", "localhost:0")
    plain, ours = drive(script, (*PLAIN, *torchrun), (*headrace("run"), *torchrun))
    assert plain.code == 0 and len({name.split()[1] for name in plain.names}) == 2, plain.errors
    assert ours.code == 0, ours.errors
    assert sorted(compared(script, ours, ours.lines)) == sorted(compared(script, plain, ours.lines))
    assert len(ours.lines) == 2, "only rank 0 prints lines"


@pytest.mark.parametrize("name", ["with_fastai", "with_hf_trainer"])
def test_diagnose_leaves_a_scripts_batches_alone(name: str, drive: Callable[..., list[Ended]], tmp_path: Path) -> None:
    script = next(case for case in CASES if case.name == name)
    needs(script.package)
    words = ("diagnose", "--no-report", "--out", str(tmp_path / "session"))
    plain, watched = drive(script, PLAIN, headrace(*words))
    assert plain.code == watched.code == 0, watched.errors
    assert watched.names == plain.names
    assert (tmp_path / "session" / "launch.jsonl").exists()
    assert "no DataLoader was iterated" not in watched.errors and "is off in process" not in watched.errors
