"""Training loops without a known loader: steps begin and end with the optimizer's step."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.profiling.command import watch
from headrace.session.model import Session

pytest.importorskip("torch")

HEAD = """
import queue, sys, threading, time
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

class Transform(torch.nn.Module):
    def forward(self, value): return value

def train(batches):
    ends_s = []
    for value in batches:
        time.sleep(0.004)
        loss = model(value).sum()
        time.sleep(0.004)
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        ends_s.append(time.monotonic())
    open(__file__ + ".ends", "w").write(" ".join(map(str, ends_s)))

def burn(seconds):
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s: pass
"""

THREAD = """
batches = queue.Queue(4)
def work():
    for _ in range(80):
        burn(0.03)
        batches.put(Transform()(torch.ones(16, 8)))
    batches.put(None)
threading.Thread(target=work, daemon=True).start()
train(iter(batches.get, None))
"""

GENERATOR = """
def made():
    for _ in range(60):
        burn(0.02)
        yield Transform()(torch.ones(16, 8))
train(made())
"""

LOADER = """
from torch.utils.data import DataLoader
for _ in range(2):
    train(value for value, in DataLoader(torch.utils.data.TensorDataset(torch.ones(640, 8)), 16))
"""


def watched(folder: Path, script: str) -> Session:
    file = folder / "train.py"
    file.write_text(textwrap.dedent(HEAD + script))
    assert watch([sys.executable, str(file)], folder / "session").returncode == 0
    return Session.load(folder / "session")


@pytest.mark.slow
def test_a_slow_thread_of_the_script_is_cpu_prep(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    session = watched(tmp_path, THREAD)
    assert "headrace" not in capfd.readouterr().err
    assert [loader.family for loader in session.loaders] == ["none"]
    assert all(step.items == 16 and step.optimizer_steps == 1 for step in session.steps)
    assert all(step.wait_s >= 0 and step.compute_s > 0.003 for step in session.steps)
    found = diagnose(session)
    ends_s = [float(text) for text in (tmp_path / "train.py.ends").read_text().split()]
    assert found.img_s == pytest.approx(16 * (len(ends_s) - 1) / (ends_s[-1] - ends_s[0]), rel=0.4)
    assert found.verdict in ("CPU_PREP", "CPU_SATURATED", "EXTERNAL_CPU")  # the last on a machine that others keep busy
    preparation = next(one for one in found.findings if one.kind in ("CPU_PREP", "CPU_SATURATED"))
    assert any("the script's own code makes" in words for words in preparation.evidence)


@pytest.mark.slow
def test_batches_made_in_the_training_thread_are_no_overlap(tmp_path: Path) -> None:
    found = diagnose(watched(tmp_path, GENERATOR))
    assert found.verdict in ("NO_OVERLAP", "EXTERNAL_CPU")  # the latter on a machine that others keep busy
    assert found.ceiling_img_s is not None
    assert found.img_s is not None
    assert found.ceiling_img_s > 2 * found.img_s


@pytest.mark.slow
def test_a_known_loader_turns_the_timing_off(tmp_path: Path) -> None:
    session = watched(tmp_path, LOADER)
    assert {loader.family for loader in session.loaders} == {"torch"}


PUMP = """
from torch.utils.data import DataLoader
batches = queue.Queue(2)
def pump():
    for value, in DataLoader(torch.utils.data.TensorDataset(torch.ones(640, 8)), 16):
        batches.put(value)
    batches.put(None)
threading.Thread(target=pump, daemon=True).start()
train(iter(batches.get, None))
"""


@pytest.mark.slow
def test_a_loader_iterated_by_another_thread_is_recorded(tmp_path: Path) -> None:
    session = watched(tmp_path, PUMP)
    assert [event.detail for event in session.events if event.name == "iterated_elsewhere"] == ["loader 0"]
    assert not [event for event in watched_again(tmp_path).events if event.name == "iterated_elsewhere"]


def watched_again(folder: Path) -> Session:
    (folder / "again").mkdir()
    return watched(folder / "again", LOADER)
