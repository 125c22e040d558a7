"""A small world in which the commands and Python blocks of the guides run as they are written.

Paths such as /data/imagenet lie below a folder of the test. Commands get options behind their own (the last one counts) that
make them small: a tiny model, small images, short measurements. Python blocks get small batches and no GPU.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from containers import image_record, write_rec, write_tar
from PIL import Image
from sample_images import jpeg
from session_factory import example_session

ROOTS = ("data", "fast", "opt", "var")
"""First parts of absolute paths in the guides."""
_ROOT = re.compile(rf"(?<![\w.:/])/(?={'|'.join(ROOTS)}/)")
_MODEL = ("--model", "tiny:make", "--image-size", 32, "--batch-size", 4, "--device", "cpu", "--threads", 1)
_JOB = ("--model", "resnet20", "--batch-size", 4, "--hyperparameter", "image-size=32", "--hyperparameter", "device=cpu")
SMALL: dict[str, tuple[object, ...]] = {
    "train": (*_MODEL, "--epochs", 1, "--warmup-epochs", 0, "--no-blurpool"),
    "tune": (*_MODEL, "--seconds", 0.2, "--time-limit", 120),
    **dict.fromkeys(("evaluate", "export", "predict"), ("--model", "tiny:make")),
    "demo": ("--seconds", 1, "--data", "photos"),
    "launch local": (*_JOB, "--epochs", 1),
    "launch sagemaker": (*_JOB, "--epochs", 1),
    "trials": (
        *("--models", "resnet18", "--loads", 1, "--loaders", "pytorch", "--mode", "corrected"),
        *("--scale", 0.003, "--seconds", 0.1, "--budget-minutes", 20),
    ),
}
"""Options that make a verb small, by verb."""
PLACEHOLDERS = {
    "ARN": "arn:aws:iam::123456789012:role/training",
    "ROLE": "arn:aws:iam::123456789012:role/training",
    "IMAGE": "123456789012.dkr.ecr.us-east-1.amazonaws.com/headrace:1",
    "QUEUE": "packing",
    "fs-ID": "fs-0123456789abcdef0",
}
"""Words in capitals that a reader replaces by their own."""
TRAIN = """
import sys, torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
folder = sys.argv[sys.argv.index("--data") + 1] if "--data" in sys.argv else "ROOT/data/photos"
augment = transforms.Compose([transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor()])
loader = DataLoader(datasets.ImageFolder(folder, augment), batch_size=4, shuffle=True)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(4):
    for images, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
"""


@dataclass
class World:
    """The folder that stands for `/`, in which all blocks run, and their environment."""

    root: Path
    environment: dict[str, str]

    def small_python(self, text: str) -> str:
        """Return a Python block with paths of this world, batches of four, and no GPU."""
        text = _ROOT.sub(f"{self.root}/", text)
        text = re.sub(r"batch_size=\d+", "batch_size=4", text)
        text = re.sub(r"((?:Loader\(|\"), ?)(?:8|16|64|256)(?=, hr)", r"\g<1>4", text)
        text = re.sub(r"imagenet_train\(\d+", "imagenet_train(32", text)
        text = text.replace("weights=None", "weights=None, input_shape=(32, 32, 3)")
        text = text.replace('device="cuda"', 'device="cpu"').replace('decode="split"', 'decode="auto"')
        return text.replace("default=200", "default=10")

    def small_command(self, line: str) -> list[str]:
        """Return a command line with paths of this world and with options that make it small."""
        words = shlex.split(_ROOT.sub(f"{self.root}/", line), comments=True)
        words = ["2" if before in ("--nproc-per-node",) else word for before, word in zip(["", *words], words, strict=False)]
        if words[0] == "headrace":
            words = [PLACEHOLDERS.get(word, word) for word in words]
            verb = " ".join(words[1:3])
            small = () if "--source-dir" in words else SMALL.get(verb if verb in SMALL else words[1], ())
            options = [str(option) for option in small]
            if words[1] == "train" and "--epochs" in words:  # a longer training stays longer than the one that it continues
                options[options.index("--epochs") + 1] = str(math.ceil(int(words[words.index("--epochs") + 1]) / 16))
            end = words.index("--") if "--" in words else len(words)
            words = [*words[:end], *options, *words[end:]]
        return words

    def run(self, words: list[str], timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
        """Run a command in this world."""
        return subprocess.run(
            words, cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )


def make_world(root: Path, **environment: str) -> World:
    """Make the files that the guides name."""
    for folder in (
        "data/imagenet/train",
        "data/imagenet/val",
        "data/imagenette",
        "data/train",
        "data/photos",
        "demo/images",
        "photos",
        "opt/ml/input/data/train",
    ):
        _image_folder(root / folder, 4 if folder.endswith("val") else 8)
    for image in (root / "data/photos").rglob("*.jpg"):
        mask = root / "data/masks" / image.relative_to(root / "data/photos").with_suffix(".png")
        _mask(mask, image)
    _masked_tar(root)
    write_rec(root / "train.rec", [image_record(jpeg(60, 50, number), number % 2, number) for number in range(8)])
    for name in ("one", "two"):
        example_session().save(root / "headrace-sessions" / name)
    (root / "trace.json.gz").write_bytes(gzip.compress(json.dumps(_trace()).encode()))
    (root / "var/lib/node_exporter/textfile").mkdir(parents=True)
    for number in (1, 2):
        known = {"kind": "ec2:g5.xlarge", "predicted_s": 1000, "observed_s": 1000 + 50 * number}
        (root / f"run-{number}.json").write_text(json.dumps(known))
    _image_folder(root / "made/train", 8)
    _image_folder(root / "made/test", 4)
    subprocess.run(["tar", "-cf", root / "cifar10-jpeg-14k.tar", "-C", root / "made", "train", "test"], check=True)
    (root / "project").mkdir()
    for script in ("train.py", "project/train.py"):
        (root / script).write_text(TRAIN.replace("ROOT", str(root)))
    make_commands(root / "bin")
    path = os.pathsep.join([str(root / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    helpers = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    cache = {"HEADRACE_CACHE": str(root / "cache"), "XDG_CACHE_HOME": str(root / "cache"), "HOME": str(root)}
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONPATH": helpers, "PATH": path, "MPLBACKEND": "agg"}
    return World(root, {**os.environ, **quiet, **cache, **environment})


def make_commands(folder: Path) -> None:
    """Make the commands of this Python, wherever it was installed from."""
    folder.mkdir()
    for name, words in (("headrace", "-m headrace"), ("torchrun", "-m torch.distributed.run")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (folder / name).chmod(0o755)


def _image_folder(folder: Path, per_class: int) -> None:
    for label, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            data = jpeg(72 + 5 * number, 64 + 3 * number, 100 * label + number)
            (folder / name / f"{name}-{number}.jpg").write_bytes(data)


def _mask(path: Path, image: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(image) as opened:
        width, height = opened.size
    Image.fromarray(np.arange(width * height, dtype=np.uint8).reshape(height, width) % 3).save(path)


def _masked_tar(root: Path) -> None:
    members: list[tuple[str, bytes]] = []
    for number, image in enumerate(sorted((root / "data/photos").rglob("*.jpg"))):
        mask = root / "data/masks" / image.relative_to(root / "data/photos").with_suffix(".png")
        members += [(f"{number:04}.jpg", image.read_bytes()), (f"{number:04}.mask.png", mask.read_bytes())]
        members += [(f"{number:04}.cls", b"0"), (f"{number:04}.json", b'{"caption": "a cat"}')]
    write_tar(root / "data/masked.tar", members)


def _trace() -> dict[str, Any]:
    """A trace of torch.profiler: four steps, each with a wait for input and a kernel."""
    events: list[dict[str, Any]] = []
    wait = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    for step in range(4):
        at = 100_000 * step
        for name, begin, length, category in (
            (f"ProfilerStep#{step + 3}", at, 100_000, "user_annotation"),
            (wait, at, 40_000, "user_annotation"),
            ("sgemm", at + 40_000, 60_000, "kernel"),
        ):
            events.append({"ph": "X", "name": name, "ts": begin, "dur": length, "cat": category, "pid": 7, "tid": 7})
    return {"traceEvents": events}
