"""Whole jobs that come to a standstill, watched until it is a hang: who stands where is in the verdict."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from headrace.attach.standstill import SCALE_VARIABLE
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.model import Diagnosis
from headrace.profiling.command import watch
from headrace.profiling.standstill_notice import StandstillNotice
from headrace.session.model import Session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE_S = 240

BEGIN = """
import os, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)

def end_when_told():
    while not os.path.exists(sys.argv[1]): time.sleep(0.2)
    os._exit(3)

threading.Thread(target=end_when_told, daemon=True).start()

class Numbers(Dataset):
    def __init__(self, count, make=lambda index: torch.zeros(8)): self.count, self.make = count, make
    def __len__(self): return self.count
    def __getitem__(self, index): return self.make(index)
"""

LOCKED_WORKER = """
cache_lock = threading.Lock()

def cached(index):
    if index >= 64:
        with cache_lock:
            pass
    return torch.zeros(8)

cache_lock.acquire()
for batch in DataLoader(Numbers(400, cached), batch_size=8, num_workers=2):
    time.sleep(0.02)
"""

CHECKPOINT = """
def save(state):
    with open(sys.argv[1] + ".fifo", "wb") as file:
        file.write(bytes(1 << 20))

os.mkfifo(sys.argv[1] + ".fifo")
reader = os.open(sys.argv[1] + ".fifo", os.O_RDONLY | os.O_NONBLOCK)
for batch in DataLoader(Numbers(64), batch_size=8):
    time.sleep(0.02)
save({})
"""

UNEVEN_RANKS = """
import torch.distributed as dist

def train(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(Numbers(80 - 16 * rank), batch_size=8):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    while True: time.sleep(1)

if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    torch.multiprocessing.start_processes(train, args=(port,), nprocs=2, start_method="fork")
"""


def hang(folder: Path, job: str) -> tuple[Diagnosis, list[str]]:
    """Watch a job until a hang is told, and return its diagnosis and what was told."""
    script, enough = folder / "train.py", folder / "enough"
    script.write_text(BEGIN + job)
    told: list[str] = []

    def tell(words: str) -> None:
        told.append(words)
        if words.startswith("HANG"):
            enough.touch()

    command = [sys.executable, str(script), str(enough)]
    with StandstillNotice(folder / "session", tell), open(folder / "output.txt", "wb") as log:
        watch(command, folder / "session", env={SCALE_VARIABLE: "0.1"}, time_limit_s=PATIENCE_S, log=log)
    return diagnose(Session.load(folder / "session")), told


def line_of(job: str, text: str) -> int:
    return next(number for number, line in enumerate((BEGIN + job).splitlines(), 1) if text in line)


def test_a_deadlock_in_a_forked_worker_is_named_live_and_in_the_report(tmp_path: Path) -> None:
    found, told = hang(tmp_path, LOCKED_WORKER)
    place = f"{tmp_path / 'train.py'}:{line_of(LOCKED_WORKER, 'with cache_lock')} in cached (waits for the lock cache_lock)"
    assert found.verdict == "HANG", told
    assert "worker" in found.summary and place in found.summary
    assert told[-1].startswith("HANG") and place in told[-1]
    assert found.share_of_step["standstill"] > 0.5


def test_a_checkpoint_that_no_one_reads_is_named(tmp_path: Path) -> None:
    found, told = hang(tmp_path, CHECKPOINT)
    assert found.verdict == "HANG", told
    assert f"{tmp_path / 'train.py'}:{line_of(CHECKPOINT, 'file.write(')} in save" in found.summary


def test_ranks_with_uneven_numbers_of_batches_are_named(tmp_path: Path) -> None:
    found, told = hang(tmp_path, UNEVEN_RANKS)
    assert found.verdict == "HANG", told
    assert "rank 0 waits in all-reduce since step 8; rank 1 ended its loader after 8 batches" in found.summary
