"""`diagnose --find-learning-rate`: the range test in the script's own loop, and what is said of its curve."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from headrace.attach.experiments.range_curve import RangeCurve, rate_at
from headrace.attach.experiments.range_test import FACT
from headrace.profiling import range_test
from headrace.profiling.command import add_fact, begin_session, watch
from headrace.session.model import Session
from session_factory import example_diagnosis

SCRIPT = """
import io, json, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
images = torch.randn(96, 16)
data = TensorDataset(images, (images @ torch.randn(16, 4)).argmax(1))
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
groups = [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[2].parameters()}]
optimizer = torch.optim.SGD(groups, lr=0.1)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
train, held_out = DataLoader(data, batch_size=32, shuffle=True), DataLoader(data, batch_size=32)
given, seen = [], []
optimizer.register_step_pre_hook(lambda one, *_: given.append([group["lr"] for group in one.param_groups]))
for _ in held_out: pass  # what trains nothing ends as ever
for epoch in range(3):
    for inputs, labels in train:
        optimizer.zero_grad(); torch.nn.functional.cross_entropy(model(inputs), labels).backward(); optimizer.step()
        schedule.step()
        seen.append(optimizer.param_groups[1]["lr"])
        torch.save(model.state_dict(), sys.argv[2])
        torch.save(model.state_dict(), copied := io.BytesIO())
        assert copied.tell() > 0
        json.dump([given, seen], open(sys.argv[1], "w"))
    raise SystemExit("the epoch must not end")
"""


@pytest.mark.slow
def test_the_scripts_loop_makes_the_test_and_saves_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "seen.json"), str(tmp_path / "model.pt")]
    finished = watch(command, tmp_path / "s", hooks=(range_test.HOOK,), time_limit_s=100)
    assert finished.returncode == 0, capfd.readouterr().err
    found = Session.load(tmp_path / "s").facts[FACT]
    rates = [rate for rate, *_ in found["points"]]
    assert len(rates) > 60 and rates == [rate_at(number) for number in range(len(rates))]
    assert (found["own_rate"], found["global_batch"], found["optimizer"]) == (0.1, 32, "SGD")
    assert found["diverged"] or found["complete"]
    assert not (tmp_path / "model.pt").exists()
    given, seen = json.loads((tmp_path / "seen.json").read_text())
    assert [one for _, one in given] == pytest.approx(rates[: len(given)], rel=1e-9)
    assert all(first == pytest.approx(0.1 * second) for first, second in given), "groups keep the ratio of their rates"
    assert seen == pytest.approx([0.1 * 0.99 ** (number + 1) for number in range(len(seen))]), "the schedule is the script's"


def curve(least_at: float) -> RangeCurve:
    """A curve whose smoothed loss is smallest near a rate, and diverges soon after it."""
    made = RangeCurve()
    while not made.is_over:
        made.add(2.3 if made.rate < least_at / 30 else 1.0 if made.rate < least_at else 60.0)
    return made


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (0.03, "close to it"),
        (0.0001, "times lower"),
        (0.15, "times higher"),
        (3.0, "at which the loss diverged"),
    ],
)
def test_the_suggestion_says_where_the_script_stands(
    own: float, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = curve(0.3)
    fact: dict[str, Any] = {
        "points": [[one.rate, one.loss, one.smoothed] for one in made.points],
        "diverged": made.diverged,
        "complete": True,
        "optimizer": "AdamW",
        "own_rate": own,
        "global_batch": 64,
    }

    def run(command: Any, folder: Path, **_: Any) -> Any:
        begin_session(folder, command)
        add_fact(folder, FACT, fact)
        return SimpleNamespace(stopped_by=None)

    monkeypatch.setattr(range_test, "watch", run)
    said: list[str] = []
    begin_session(tmp_path / "s", ["train"])
    found = range_test.with_learning_rate(example_diagnosis(), tmp_path / "s", command=["train"], log=said.append)
    note = found.notes[0].text
    assert note.startswith("learning rate: the range test suggests 0.0") and "AdamW, a batch of 64" in note
    assert words in note and f"the script's is {own:.3g}" in note
    page = (tmp_path / "s" / range_test.PAGE_FILE).read_text()
    assert "rate that the script begins with" in page and "--learning-rate" not in page
    assert any("smoothed loss by rate: 1e-06 2.3" in line for line in said)
    assert Session.load(tmp_path / "s").facts[FACT] == fact


def test_a_script_without_an_optimizer_gets_no_suggestion(tmp_path: Path) -> None:
    said: list[str] = []
    begin_session(tmp_path / "s", ["train"])
    diagnosis = example_diagnosis()
    command = [sys.executable, "-c", "pass"]
    assert range_test.with_learning_rate(diagnosis, tmp_path / "s", command=command, log=said.append) is diagnosis
    assert "nothing is suggested" in said[-1]
