"""Restarted ranks find each other, and training continues from the last checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch.distributed
from headrace.errors import HeadraceError
from headrace.training.distributed.ranks import Ranks, lost_ranks_reported
from headrace.training.distributed.rendezvous import agree_on_group_name
from train_command import assert_same_weights, run_to_document, slow_train_command, wait_for


def together(store: torch.distributed.Store, world_size: int, *, timeout_s: float = 20.0) -> list[str]:
    """The names that `world_size` processes (threads here) find, in order of rank."""
    names: dict[int, str] = {}

    def one(rank: int) -> None:
        names[rank] = agree_on_group_name(store, rank, world_size, timeout_s=timeout_s)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in reversed(range(world_size))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [names[rank] for rank in range(world_size)]


def test_each_attempt_agrees_on_a_new_group_name() -> None:
    store = torch.distributed.HashStore()
    attempts = [together(store, 3) for _ in range(3)]
    assert all(len(set(names)) == 1 for names in attempts)
    assert len({names[0] for names in attempts}) == 3


def test_keys_of_dead_processes_are_ignored() -> None:
    store = torch.distributed.HashStore()
    for key, value in (("here/0", "dead0"), ("here/1", "dead1"), ("proposal", "dead0,dead1")):
        store.set(key, value)
    names: list[str] = []
    first = threading.Thread(target=lambda: names.append(agree_on_group_name(store, 0, 2, timeout_s=20)))
    first.start()
    while store.get("proposal").endswith(b"dead0,dead1"):  # rank 0 is early and proposes with what it sees
        pass
    assert store.get("proposal").endswith(b",dead1") and first.is_alive()
    names.append(agree_on_group_name(store, 1, 2, timeout_s=20))
    first.join()
    assert names[0] == names[1]


def test_missing_ranks_are_named_in_the_error() -> None:
    store = torch.distributed.HashStore()
    with pytest.raises(HeadraceError, match=r"rank 0 of 3 waited .* for rank 1, 2"):
        agree_on_group_name(store, 0, 3, timeout_s=0.1)


def test_only_errors_of_a_lost_connection_become_lost_rank_errors() -> None:
    with pytest.raises(HeadraceError, match="rank 1: another process of this run has ended"), lost_ranks_reported(Ranks(1, 2)):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1\nmore")
    for ranks, words in ((Ranks(1, 2), "mat1 and mat2 shapes cannot be multiplied"), (Ranks(), "gloo")):
        with pytest.raises(RuntimeError, match=words), lost_ranks_reported(ranks):
            raise RuntimeError(words)


@pytest.fixture(scope="module")
def undisturbed(two_colours: Path, child_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing interrupts."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    run_to_document(slow_train_command(two_colours, out, "--batch-size", 8, "--device", "sim:10000"), child_environment)
    return out


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("killed", [0, 1])
def test_torchrun_restarts_a_killed_rank_and_the_run_ends_with_the_same_weights(
    two_colours: Path,
    undisturbed: Path,
    tmp_path: Path,
    child_environment: dict[str, str],
    killed: int,
) -> None:
    words = slow_train_command(two_colours, tmp_path / "run", "--batch-size", 4, "--checkpoint-steps", 1)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "2"]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*torchrun, *words[1:]], env=child_environment, **pipes) as process:
        wait_for(lambda: any((tmp_path / "run").glob("checkpoints/step-*[3-9]")), process)
        os.kill(rank_process(process.pid, killed), signal.SIGKILL)
        _, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    begun = [line["resumed_from_step"] for line in lines if "resumed_from_step" in line]
    assert len(begun) == 2 and begun[0] is None and begun[1] >= 3  # one restart was enough
    assert lines[-1]["step"] == 24
    assert_same_weights(undisturbed, tmp_path / "run")


def rank_process(agent: int, rank: int) -> int:
    for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return int(pid)
    raise AssertionError(f"no process of rank {rank}")
