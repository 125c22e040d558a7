"""Several processes train as one: same gradients, same order of records; when one fails, none survives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from headrace.errors import UsageError
from headrace.training.distributed.ranks import Ranks, RankVote, compute_threads, ranks_from_environment
from train_command import assert_same_weights, run_to_document, slow_train_command, train_command, wait_for


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_ranks_train_like_one_with_the_whole_batch(
    two_colours: Path, tmp_path: Path, child_environment: dict[str, str]
) -> None:
    alone = run_to_document(train_command(two_colours, tmp_path / "alone", "--batch-size", 8), child_environment)
    two = run_to_document(train_command(two_colours, tmp_path / "two", "--batch-size", 4, "--processes", 2), child_environment)
    assert_same_weights(tmp_path / "alone", tmp_path / "two")
    assert (alone["world_size"], two["world_size"]) == (1, 2)
    assert alone["steps"] == two["steps"] == 12
    assert alone["top1"] == two["top1"]
    # the evaluation counted each of the 14 images once, on two ranks and batches that do not divide
    lines = [json.loads(line) for line in (tmp_path / "two/metrics.jsonl").read_text().splitlines()]
    assert {line["evaluation"]["images"] for line in lines if "evaluation" in line} == {14}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_rank_ends_the_others(two_colours: Path, tmp_path: Path, child_environment: dict[str, str]) -> None:
    words = slow_train_command(two_colours, tmp_path / "run", "--batch-size", 4, "--processes", 2, "--checkpoint-steps", 1)
    with subprocess.Popen(words, env=child_environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: any((tmp_path / "run").glob("checkpoints/step-*")), process)
        ranks = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        assert process.wait(timeout=60) != 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)


def test_ranks_are_read_from_torchruns_variables(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_ranks_on_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setattr("headrace.system.hardware.machine.cores", lambda: SimpleNamespace(usable=8.0))
    assert [compute_threads(ranks) for ranks in (1, 2, 3, 16)] == [None, 4, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert compute_threads(2) is None  # the user's choice
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert compute_threads(2) == 4  # torchrun's
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert compute_threads(2) is None


def test_a_single_rank_gets_its_own_vote_at_once() -> None:
    agreement = RankVote(Ranks())
    assert agreement.cast(0, False) == (0, False)
    assert agreement.cast(15, True) == (15, True)
    agreement.close()
