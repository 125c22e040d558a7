"""Threads of a watched process: their settings, the CPU time of a pool, the useful part of it, and a limit from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy
import pytest
from headrace.attach.experiments.overrides import OVERRIDES_VARIABLE
from headrace.attach.machine.thread_settings import thread_settings
from headrace.attach.record.recorder import Recorder
from headrace.attach.training.operator_cpu import OperatorCpu
from headrace.profiling.command import watch
from headrace.session.model import Session

torch = pytest.importorskip("torch")

SCRIPT = """
import sys, types, torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self): return 48
    def __getitem__(self, index):
        (torch.rand(64, 64) @ torch.rand(64, 64)).sum()
        return torch.zeros(8)

cv2 = types.ModuleType("cv2")
cv2.threads = 7
cv2.getNumThreads = lambda: cv2.threads
def set_threads(number): cv2.threads = number
cv2.setNumThreads = set_threads
sys.modules["cv2"] = cv2
torch.set_num_threads(3)
for batch in DataLoader(Data(), batch_size=4, num_workers=int(sys.argv[1])): pass
if len(sys.argv) > 2: assert torch.get_num_threads() == int(sys.argv[2]), torch.get_num_threads()
"""


def watched(folder: Path, *arguments: str, **options: object) -> Session:
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT))
    finished = watch([sys.executable, str(folder / "train.py"), *arguments], folder / "session", **options)  # type: ignore[arg-type]
    assert finished.returncode == 0
    return Session.load(folder / "session")


@pytest.mark.slow
def test_settings_of_main_process_and_workers_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    session = watched(tmp_path, "1")
    settings = {process.role: process.thread_settings for process in session.processes}
    blas = {"blas": settings["main"]["blas"]} if "blas" in settings["main"] else {}
    expected = {"OMP_NUM_THREADS": "5", "torch": 3, "torch_interop": torch.get_num_interop_threads(), "cv2": 7}
    assert settings["main"] == expected | blas
    assert (settings["worker"]["torch"], settings["worker"]["cv2"]) == (1, 7)
    held = [int(event.detail or 0) for event in session.events if event.name == "worker_memory"]
    assert len(held) == 1 and 1e5 < held[0] < 1e9, "what the forked worker does not share with its parent"
    assert all(batch.pool_cpu_s is not None and batch.preempted is not None for batch in session.batches)


HANDING_OVER = """
import time, torch
from torch.utils.data import DataLoader

class Data(torch.utils.data.Dataset):
    def __len__(self): return 24
    def __getitem__(self, index): return torch.zeros(2**22)

def collate(samples):
    begin_s = time.thread_time()
    while time.thread_time() - begin_s < 0.03: pass
    return torch.stack(samples)

for batch in DataLoader(Data(), batch_size=1, num_workers=1, collate_fn=collate, prefetch_factor=6): pass
"""


@pytest.mark.slow
def test_the_thread_that_hands_batches_over_is_no_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It copies each batch into shared memory while the worker makes the next one: 16 MB of work, not spinning."""
    monkeypatch.setitem(globals(), "SCRIPT", HANDING_OVER)
    session = watched(tmp_path)
    made = [batch for batch in session.batches if batch.worker == 0]
    handed_s = sum(batch.other_cpu_s or 0.0 for batch in made[1:])
    pool_s = sum(batch.pool_cpu_s or 0.0 for batch in made[1:])
    assert handed_s > 0.05, "the copies take CPU time"
    assert pool_s < 0.3 * handed_s


def test_threads_of_numpys_blas_are_read() -> None:
    """NumPy's wheels bring OpenBLAS, which reads its variable when it is loaded."""
    program = (
        "import sys, numpy; from headrace.attach.machine.thread_settings import thread_settings; "
        "print(thread_settings().get('blas'))"
    )
    for number in ("1", "2"):
        environment = os.environ | {"OPENBLAS_NUM_THREADS": number}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
        if "openblas" not in str(numpy.show_config(mode="dicts")):
            pytest.skip("NumPy has another BLAS")
        assert int(done.stdout) == min(int(number), os.cpu_count() or 1)


def test_libraries_that_are_not_imported_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cv2", raising=False)
    assert "cv2" not in thread_settings()
    assert "cv2" not in sys.modules


def test_a_limit_of_threads_holds_against_the_script(tmp_path: Path) -> None:
    hooks = ("headrace.attach.experiments.overrides", "headrace.attach.torch_hooks")
    session = watched(tmp_path, "0", "2", hooks=hooks, env={OVERRIDES_VARIABLE: json.dumps({"threads": 2})})
    assert session.processes[0].torch_threads == 2


def measured(folder: Path, *, pool_s: float, queue_s: float) -> list[dict[str, float]]:
    """What is recorded of twelve batches of real operators, with this CPU time of a pool and wait for a core per batch."""
    recorder = Recorder(folder)
    operators = OperatorCpu(recorder)
    image = torch.rand(3, 64, 64)
    expected = (image.mul(2).add(1)).sum()
    for _ in range(12):
        if not operators.done:
            operators.begin()
            result = image.mul(2).add(1).sum()
            operators.leave()
            assert torch.equal(result, expected)
            operators.end(wall_s=0.1, cpu_s=0.02, pool_s=pool_s, queue_s=queue_s)
    recorder.flush()
    lines = [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return [json.loads(line["detail"]) for line in lines if line.get("name") == "operator_cpu"]


def test_useful_cpu_time_is_measured_where_a_pool_contends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    first, last = measured(tmp_path, pool_s=0.02, queue_s=0.05)
    assert (first["batches"], last["batches"]) == (2, 6)
    assert last["calls"] == 6 * 3
    assert 0 < last["low_s"] <= last["high_s"] < 0.03


@pytest.mark.parametrize(("threads", "pool_s", "queue_s"), [(1, 0.02, 0.05), (2, 0.001, 0.05), (2, 0.02, 0.001)])
def test_no_operator_is_touched_without_the_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, pool_s: float, queue_s: float
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert measured(tmp_path, pool_s=pool_s, queue_s=queue_s) == []


def test_opencv_reads_its_number_of_threads_from_the_variable_that_is_advised() -> None:
    pytest.importorskip("cv2")
    environment = os.environ | {"OPENCV_FOR_THREADS_NUM": "1"}
    program = "import cv2; print(cv2.getNumThreads())"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]
