"""The loss that a script trains on: read from real loops, without a change to what the script computes."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.profiling.command import watch
from headrace.session.model import Session

SCRIPT = """
import sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

what, rate = sys.argv[1], float(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
data = TensorDataset(torch.randn(64000, 16), torch.randint(0, 4, (64000,)))
data.tensors[0][:, :4] += 3 * torch.nn.functional.one_hot(data.tensors[1], 4)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
total = 0.0
for step, (images, labels) in enumerate(DataLoader(data, batch_size=256)):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    if what == "nan" and step > 120: loss = loss * float("nan")
    if what == "scaled":
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        (0.0 * model.weight.sum() + 99.0).backward()  # a second one in the same step is not the loss
        optimizer.step()
    total += float(loss.detach())
    time.sleep(0.015)  # 37 times the interval at which losses are recorded
print("total", repr(total), repr(float(model.weight.detach().sum())))
"""


def trained(folder: Path, what: str, rate: float) -> tuple[Session, str]:
    pytest.importorskip("torch")
    file = folder / "train.py"
    file.write_text(SCRIPT)
    with (folder / "output").open("wb") as log:
        finished = watch([sys.executable, str(file), what, str(rate)], folder / "session", log=log)
    text = (folder / "output").read_text()
    assert finished.returncode == 0, text
    return Session.load(folder / "session"), text


@pytest.mark.slow
def test_a_rate_of_zero_is_noted_and_no_finding(tmp_path: Path) -> None:
    session, _ = trained(tmp_path, "plain", 0.0)
    assert len(session.losses) > 24
    found = diagnose(session)
    (note,) = [note for note in found.notes if "loss" in note.text]
    assert "does not move over 250 watched steps" in note.text
    assert not any("loss" in sentence for finding in found.findings for sentence in finding.evidence)


@pytest.mark.slow
def test_a_loss_that_falls_is_not_noted(tmp_path: Path) -> None:
    session, _ = trained(tmp_path, "plain", 0.1)
    assert session.losses[-1].value < 0.7 * session.losses[0].value
    assert diagnose(session).notes == ()


@pytest.mark.slow
def test_a_scaled_loss_is_recorded_before_it_is_scaled(tmp_path: Path) -> None:
    session, _ = trained(tmp_path, "scaled", 0.1)
    assert len(session.losses) > 24
    assert all(0 < loss.value < 8 for loss in session.losses)


def test_a_loss_that_is_no_number_to_the_end_is_the_end_with_its_step(tmp_path: Path) -> None:
    session, _ = trained(tmp_path, "nan", 0.1)
    diagnosis = diagnose(session)
    assert diagnosis.end is not None and diagnosis.end.kind == "nan" and not diagnosis.notes
    text = diagnosis.end.text
    step = int(text.partition("from step ")[2].partition(" ")[0])
    assert text.startswith("the loss is NaN from step") and 120 <= step <= 130
    assert math.isnan(session.losses[-1].value)


FOLDS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
for fold in range(3):
    model = torch.nn.Linear(4, 1)
    for epoch in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # a new one for the same weights
        for inputs, values in DataLoader(data, batch_size=16):
            optimizer.zero_grad()
            (model(inputs) - values).square().mean().backward()
            optimizer.step()
"""


def test_a_model_that_begins_anew_is_noted_and_a_new_optimizer_is_not(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "folds.py").write_text(FOLDS)
    assert watch([sys.executable, str(tmp_path / "folds.py")], tmp_path / "session").returncode == 0
    session = Session.load(tmp_path / "session")
    assert len([event for event in session.events if event.name == "new_weights"]) == 3
    assert len(session.steps) == 24


@pytest.mark.slow
def test_watching_leaves_the_result_of_the_script_as_it_is(tmp_path: Path) -> None:
    import subprocess

    _, watched = trained(tmp_path, "plain", 0.1)
    alone = subprocess.run(
        [sys.executable, str(tmp_path / "train.py"), "plain", "0.1"], capture_output=True, text=True, check=True
    )
    assert alone.stdout in watched
