"""Command lines of `headrace train` for tests that run it in processes of their own, and what these tests check."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file


def train_command(data: Path, out: Path, *more: object) -> list[str]:
    """`headrace train` of the model `tiny:make`, three deterministic epochs on the CPU; `more` comes last and wins."""
    words = [sys.executable, "-m", "headrace", "train", "--model", "tiny:make", "--data", data, "--out", out]
    words += ["--epochs", 3, "--image-size", 32, "--device", "cpu", "--threads", 1, "--json", "--learning-rate", 2]
    return [str(word) for word in [*words, "--warmup-epochs", 0, "--momentum", 0.5, "--deterministic", *more]]


def slow_train_command(data: Path, out: Path, *more: object) -> list[str]:
    """A run slow enough to be stopped on the way: 24 steps of a tenth of a second, on a simulated device."""
    return train_command(data, out, "--device", "sim:40", "--model", "resnet18", "--epochs", 6, *more)


def run_to_document(command: list[str], environment: dict[str, str]) -> dict[str, object]:
    """Run `command` to its end and return the JSON document it printed."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout)) if done.stdout else {}


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Wait up to a minute for `condition`; fail when `process` ends before."""
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s and process.poll() is None
        time.sleep(0.01)


def assert_same_weights(one: Path, other: Path) -> None:
    """Compare the final weights of two runs, up to the rounding of sums in another order."""
    left, right = load_file(one / "final.safetensors"), load_file(other / "final.safetensors")
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], rtol=1e-4, atol=1e-6)
