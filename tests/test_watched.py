"""`with headrace.watch():` and the callbacks, in processes of their own: the hooks stay in a process for good."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from headrace.session import Session

pytest.importorskip("torch")

LOOP = """
import sys, time
import torch, headrace
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)

class Data(Dataset):
    def __len__(self): return 80
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((8,), float(index))

def train(loader):
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for value in loader:
        optimizer.zero_grad(); model(value).sum().backward(); optimizer.step()
"""


def run(folder: Path, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    file = folder / "train.py"
    file.write_text(LOOP + text)
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")} | environment
    return subprocess.run([sys.executable, str(file)], cwd=folder, env=env, capture_output=True, text=True, timeout=100)


def steps_of(folder: Path) -> int:
    return len(Session.load(folder).steps)


TWO_BLOCKS = """
if __name__ == "__main__":
    loader = DataLoader(Data(), batch_size=4, num_workers=1, persistent_workers=True)
    early = DataLoader(Data(), batch_size=4)
    begun = iter(early); next(begun)
    with headrace.watch("first") as block:
        train(loader); train(loader)
        with headrace.watch("inner"): pass
    assert block.diagnosis.verdict in ("STORAGE_LATENCY", "EXTERNAL_CPU"), block.diagnosis.verdict
    train(loader)
    with headrace.watch("second", report=False) as block:
        train(DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context="spawn"))
        for _ in begun: pass
    assert block.diagnosis.steps > 8
    assert "HEADRACE_HOOKS" not in __import__("os").environ
"""


def test_blocks_record_what_runs_within_them_and_nothing_else(tmp_path: Path) -> None:
    done = run(tmp_path, TWO_BLOCKS)
    assert done.returncode == 0, done.stderr
    assert "is off" not in done.stderr
    assert "being watched already" in done.stderr
    first, second = Session.load(tmp_path / "first"), Session.load(tmp_path / "second")
    assert len(first.steps) in (38, 39, 40)
    assert {loader.persistent_workers for loader in first.loaders} == {True}
    assert sum(batch.items or 0 for batch in first.batches) == 160  # not those of the pass between the blocks
    assert first.exit_code == 0
    assert first.samples
    assert [loader.num_workers for loader in second.loaders] == [1, 0]
    assert sum(batch.items or 0 for batch in second.batches if batch.worker >= 0) == 80, "spawned workers attach themselves"
    assert (tmp_path / "first/report.html").exists()
    assert not (tmp_path / "second/report.html").exists()
    assert json.loads((tmp_path / "second/diagnosis.json").read_text())["steps"] > 8
    assert not (tmp_path / "inner").exists()


def test_an_exception_passes_through_and_is_noted(tmp_path: Path) -> None:
    done = run(tmp_path, 'with headrace.watch("s"):\n    train(DataLoader(Data(), batch_size=4))\n    raise KeyError("mine")\n')
    assert "KeyError: 'mine'" in done.stderr
    assert Session.load(tmp_path / "s").exit_code == 1
    assert steps_of(tmp_path / "s") >= 18
    again = run(tmp_path, 'with headrace.watch("s"): pass\n')
    assert "already holds a session" in again.stderr


def test_below_diagnose_the_block_leaves_the_outer_session_alone(tmp_path: Path) -> None:
    done = run(tmp_path, 'with headrace.watch("s"): pass\nprint("went on")\n', HEADRACE_SESSION_DIR=str(tmp_path / "outer"))
    assert "went on" in done.stdout
    assert "being watched already" in done.stderr
    assert not (tmp_path / "s").exists()


STUBS = {"transformers": "class TrainerCallback: pass\n", "lightning/pytorch": "class Callback: pass\n"}
"""The base classes alone: what the real packages call, and when, is what the scripts below do."""

CALLBACKS = {
    "transformers": """
from headrace.callbacks.transformers import HeadraceCallback
callback = HeadraceCallback("s")
callback.on_train_begin(None, None, None, model=None)
train(DataLoader(Data(), batch_size=4))
callback.on_train_end(None, None, None, model=None)
assert callback.diagnosis.steps > 8
""",
    "lightning/pytorch": """
from headrace.callbacks.lightning import HeadraceCallback
callback = HeadraceCallback("s")
callback.setup(None, None, "fit")
train(DataLoader(Data(), batch_size=4))
callback.teardown(None, None, "fit")
assert callback.diagnosis.steps > 8
""",
}


@pytest.mark.parametrize("package", CALLBACKS)
def test_callbacks(tmp_path: Path, package: str) -> None:
    stub = tmp_path / "stubs" / f"{package}.py"
    stub.parent.mkdir(parents=True)
    stub.write_text(STUBS[package])
    done = run(tmp_path, CALLBACKS[package], PYTHONPATH=str(tmp_path / "stubs"))
    assert done.returncode == 0, done.stderr
    assert "headrace.watch: NO_OVERLAP" in done.stderr or "headrace.watch: EXTERNAL_CPU" in done.stderr
    assert "report in" in done.stderr
