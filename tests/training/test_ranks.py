"""Several processes train as one: same gradients, same order of samples, stopped together, no survivor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from headrace.errors import UsageError
from headrace.training.distributed.ranks import Agreement, Ranks, ranks_from_environment
from PIL import Image
from safetensors.torch import load_file

HELPERS = Path(__file__).parents[1] / "helpers"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ranks")
    dice = np.random.default_rng(0)
    for part, per_class in (("train", 16), ("val", 7)):
        for name, colour in {"blue": (40, 60, 200), "red": (200, 50, 40)}.items():
            (root / part / name).mkdir(parents=True)
            for index in range(per_class):
                pixels = np.clip(np.array(colour) + dice.normal(0, 40, (36, 36, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{index}.jpg")
    return root


def command(data: Path, out: Path, *more: object) -> list[str]:
    words = [sys.executable, "-m", "headrace", "train", "--model", "tiny:make", "--data", data, "--out", out]
    words += ["--epochs", 3, "--image-size", 32, "--device", "cpu", "--threads", 1, "--json", "--learning-rate", 2]
    return [str(word) for word in [*words, "--warmup-epochs", 0, "--momentum", 0.5, "--deterministic", *more]]


@pytest.fixture
def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(HELPERS), "OMP_NUM_THREADS": "1"}


def run(words: list[str], environment: dict[str, str], code: int = 0) -> dict[str, object]:
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == code, done.stderr
    return dict(json.loads(done.stdout)) if done.stdout else {}


def same(one: Path, other: Path) -> None:
    left, right = load_file(one / "final.safetensors"), load_file(other / "final.safetensors")
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_ranks_train_like_one_with_the_whole_batch(data: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    alone = run(command(data, tmp_path / "alone", "--batch-size", 8), environment)
    two = run(command(data, tmp_path / "two", "--batch-size", 4, "--processes", 2), environment)
    same(tmp_path / "alone", tmp_path / "two")
    assert (alone["world_size"], two["world_size"]) == (1, 2)
    assert alone["steps"] == two["steps"] == 12
    assert alone["top1"] == two["top1"]
    # the evaluation counted each of the 14 images once, on two ranks and batches that do not divide
    lines = [json.loads(line) for line in (tmp_path / "two/metrics.jsonl").read_text().splitlines()]
    assert {line["evaluation"]["images"] for line in lines if "evaluation" in line} == {14}


def simulated(data: Path, out: Path, *more: object) -> list[str]:
    """A run slow enough to be stopped on the way: 24 steps of a tenth of a second."""
    return command(data, out, "--device", "sim:40", "--model", "resnet18", "--epochs", 6, *more)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_rank_ends_the_others(data: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    words = simulated(data, tmp_path / "run", "--batch-size", 4, "--processes", 2, "--checkpoint-steps", 1)
    with subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: any((tmp_path / "run").glob("checkpoints/step-*")), process)
        ranks = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        assert process.wait(timeout=60) != 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s and process.poll() is None
        time.sleep(0.01)


def test_who_one_is_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert ranks_from_environment() == Ranks(0, 1, 0, 1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match="RANK"):
        ranks_from_environment()
    for name, value in (("RANK", "3"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert ranks_from_environment() == Ranks(3, 4, 1, 2)
    assert not ranks_from_environment().main


def test_alone_ones_own_vote_counts_at_once() -> None:
    agreement = Agreement(Ranks())
    assert agreement.vote(0, False) == (0, False)
    assert agreement.vote(15, True) == (15, True)
    agreement.close()
