"""`headrace.watch()` and the callbacks. Each test uses a process of its own, because hooks stay in a process until it ends."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from headrace.session.model import Session

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


def run(folder: Path, text: str, start: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    file = folder / "train.py"
    file.write_text(LOOP + text)
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")} | environment
    command = [*start, sys.executable, str(file)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100)


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
    train(DataLoader(Data(), batch_size=4, num_workers=1))  # workers that start after a block
    with headrace.watch("second", report=False) as block:
        train(DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context="spawn"))
        for _ in begun: pass
    assert block.diagnosis.steps >= 3 and block.diagnosis.verdict != "INSUFFICIENT_DATA", block.diagnosis
    assert "HEADRACE_HOOKS" not in __import__("os").environ
"""


@pytest.mark.slow
def test_a_block_records_only_what_runs_inside_it(tmp_path: Path) -> None:
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
    assert json.loads((tmp_path / "second/diagnosis.json").read_text())["steps"] >= 3  # steady ones, beside the probe's
    assert len(second.steps) > 30
    assert not (tmp_path / "inner").exists()


@pytest.mark.slow
def test_a_standstill_is_told_while_the_block_runs(tmp_path: Path) -> None:
    text = """
def wait_for_the_tracker(): time.sleep(9)
with headrace.watch("s", report=False):
    train(DataLoader(Data(), batch_size=4)); wait_for_the_tracker()
    for epoch in range(12): train(DataLoader(Data(), batch_size=4))  # seconds: the notice looks once a second
"""
    done = run(tmp_path, text, HEADRACE_STANDSTILL_SCALE="0.1")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("headrace.watch: ")]
    place = next(at for at, line in enumerate(told) if line.endswith("wait_for_the_tracker (sleeps)"))
    assert told[place].startswith("headrace.watch: no step for "), told
    assert told[place + 1] == "headrace.watch: steps come again"


@pytest.mark.slow
def test_an_exception_passes_through_and_sets_the_exit_code(tmp_path: Path) -> None:
    done = run(tmp_path, 'with headrace.watch("s"):\n    train(DataLoader(Data(), batch_size=4))\n    raise KeyError("mine")\n')
    assert "KeyError: 'mine'" in done.stderr
    assert Session.load(tmp_path / "s").exit_code == 1
    assert steps_of(tmp_path / "s") >= 18
    said = json.loads((tmp_path / "s/diagnosis.json").read_text())["end"]
    assert said["kind"] == "exception" and said["text"].startswith("the training raised KeyError: 'mine' (train.py:")
    assert f"headrace.watch: {said['text']}" in done.stderr
    again = run(tmp_path, 'with headrace.watch("s"): pass\n')
    assert "already holds a session" in again.stderr


@pytest.mark.slow
def test_under_diagnose_a_block_does_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, 'with headrace.watch("s"): pass\nprint("went on")\n', HEADRACE_SESSION_DIR=str(tmp_path / "outer"))
    assert "went on" in done.stdout
    assert "being watched already" in done.stderr
    assert not (tmp_path / "s").exists()


STUBS = {"transformers": "class TrainerCallback: pass\n", "lightning/pytorch": "class Callback: pass\n"}
"""The base classes alone. The scripts below make the calls of the real packages."""

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


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("package", CALLBACKS)
def test_a_callback_diagnoses_the_training(tmp_path: Path, package: str) -> None:
    stub = tmp_path / "stubs" / f"{package}.py"
    stub.parent.mkdir(parents=True)
    stub.write_text(STUBS[package])
    done = run(tmp_path, CALLBACKS[package], PYTHONPATH=str(tmp_path / "stubs"))
    assert done.returncode == 0, done.stderr
    assert "headrace.watch: NO_OVERLAP" in done.stderr or "headrace.watch: EXTERNAL_CPU" in done.stderr
    assert "report in" in done.stderr


RAISES = """
from headrace.callbacks.transformers import HeadraceCallback
callback = HeadraceCallback("s")
callback.on_train_begin(None, None, None, model=None)
train(DataLoader(Data(), batch_size=4))
try: raise MemoryError("too large a batch")
except MemoryError: callback.on_train_begin(None, None, None, model=None)
train(DataLoader(Data(), batch_size=2))
raise KeyError("mine")
"""


@pytest.mark.slow
def test_a_training_that_raises_is_diagnosed_when_the_process_ends(tmp_path: Path) -> None:
    """The real Trainer does not call `on_train_end` when a training raises."""
    stub = tmp_path / "stubs/transformers.py"
    stub.parent.mkdir()
    stub.write_text(STUBS["transformers"])
    done = run(tmp_path, RAISES, PYTHONPATH=str(stub.parent))
    assert done.returncode == 1 and "KeyError: 'mine'" in done.stderr
    assert "headrace.watch: report in" in done.stderr
    assert "watched already" not in done.stderr and "exit callback" not in done.stderr
    session = Session.load(tmp_path / "s")
    assert session.exit_code == 1 and len(session.steps) >= 55  # of both trials
    assert (tmp_path / "s/report.html").exists()


TRAINERS = {
    "transformers": """
from transformers import Trainer, TrainingArguments
from headrace.callbacks.transformers import HeadraceCallback

class Named(Data):
    def __getitem__(self, index): return {"x": super().__getitem__(index)}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)
    def forward(self, x): return {"loss": self.layer(x).sum()}

callback = HeadraceCallback("s")
arguments = TrainingArguments(
    "out", per_device_train_batch_size=4, num_train_epochs=2, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True
)
Trainer(model=Model(), args=arguments, train_dataset=Named(), callbacks=[callback]).train()
assert callback.diagnosis.steps > 8
""",
    "lightning": """
import lightning
from headrace.callbacks.lightning import HeadraceCallback

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)
    def training_step(self, batch, number): return self.layer(batch).sum()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)

callback = HeadraceCallback("s")
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, callbacks=[callback]
)
trainer.fit(Model(), DataLoader(Data(), batch_size=4))
assert callback.diagnosis.steps > 8
""",
}


@pytest.mark.parametrize("package", TRAINERS)
def test_a_callback_of_a_real_trainer_diagnoses_the_training(tmp_path: Path, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    done = run(tmp_path, TRAINERS[package])
    assert done.returncode == 0, done.stderr
    assert "headrace.watch: NO_OVERLAP" in done.stderr or "headrace.watch: EXTERNAL_CPU" in done.stderr
    assert steps_of(tmp_path / "s") in (38, 39, 40)


@pytest.mark.slow
def test_a_block_under_headrace_run_records_its_steps(tmp_path: Path, image_folder: Callable[..., Path]) -> None:
    root = image_folder(per_class=20)
    text = f"""
from torchvision import transforms
from torchvision.datasets import ImageFolder
steps = [transforms.RandomResizedCrop(16), transforms.ToTensor(), torch.flatten]
for count in (2, 3):
    transform = transforms.Compose(steps[:count])
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with headrace.watch(str(count), report=False):
        for images, _ in DataLoader(ImageFolder({str(root)!r}, transform), batch_size=4):
            optimizer.zero_grad(); model(images).sum().backward(); optimizer.step()
"""
    done = run(tmp_path, text, start=(sys.executable, "-m", "headrace", "run", "--"))
    assert done.returncode == 0, done.stderr
    assert "taken over: decode, " in done.stderr
    assert "taken over in part" in done.stderr
    for name in ("2", "3"):
        assert steps_of(tmp_path / name) in (13, 14, 15)  # of 60 images
