"""`diagnose --find-learning-rate`: the range test in the script's own loop, and what is said of its curve."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from headrace.attach.experiments import kept_files
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
        torch.save(model.state_dict(), copied := io.BytesIO())
        assert copied.tell() > 0
        json.dump([given, seen], open(sys.argv[1], "w"))
    raise SystemExit("the epoch must not end")
"""


def run(script: str, folder: Path, *words: str, limit_s: float = 60) -> tuple[Any, str]:
    """Run a script as the range test does, with one good file in its folder. Return the fact, and why the run ended early."""
    (folder / "good.pt").write_text("good")
    (folder / "train.py").write_text(script)
    finished = watch(
        [sys.executable, str(folder / "train.py"), *words],
        folder / "s",
        hooks=range_test.HOOKS,
        time_limit_s=limit_s,
        has_ended=lambda: kept_files.has_ended(folder / "s"),
    )
    assert not finished.timed_out and finished.returncode == -signal.SIGKILL
    assert (folder / "good.pt").read_text() == "good"
    return Session.load(folder / "s").facts.get(FACT), kept_files.reason(folder / "s")


@pytest.mark.slow
def test_the_scripts_loop_makes_the_test(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found, early = run(SCRIPT, tmp_path, str(tmp_path / "seen.json"))
    assert not early
    rates = [rate for rate, *_ in found["points"]]
    assert len(rates) > 60 and rates == [rate_at(number) for number in range(len(rates))]
    assert (found["own_rate"], found["global_batch"], found["optimizer"]) == (0.1, 32, "SGD")
    assert found["diverged"] or found["complete"]
    given, seen = json.loads((tmp_path / "seen.json").read_text())
    assert [one for _, one in given] == pytest.approx(rates[: len(given)], rel=1e-9)
    assert all(first == pytest.approx(0.1 * second) for first, second in given), "groups keep the ratio of their rates"
    assert seen == pytest.approx([0.1 * 0.99 ** (number + 1) for number in range(len(seen))]), "the schedule is the script's"


KEEPS = """
import atexit, os, pathlib, shutil, sqlite3, sys, tempfile
folder = pathlib.Path(__file__).parent
good, new = folder / "good.pt", folder / "new.pt"
atexit.register(lambda: good.write_text("saved as the script ended"))
os.makedirs(folder / "run" / "logs")
for _ in range(2):  # what this run made is its own
    (folder / "run" / "logs" / "one.txt").write_text("1"); new.write_text("bad")
os.replace(new, folder / "other.pt"); os.remove(folder / "other.pt"); shutil.rmtree(folder / "run")
with tempfile.TemporaryDirectory(dir=folder) as made: open(os.path.join(made, "one"), "w").close()
(folder / "lock").open("w").close(); open(os.devnull, "w").write("x"); good.open().close()
new.write_text("bad")
try: CHANGE
finally: (folder / "after").touch()
"""


@pytest.mark.parametrize(
    "change",
    [
        "good.open('wb')",
        "good.open('a')",
        "os.open(good, os.O_RDWR)",
        "os.replace(new, good)",
        "good.rename(folder / 'good-1.pt')",
        "os.remove(good)",
        "shutil.copyfile(new, good)",
        "os.truncate(good, 0)",
        "shutil.rmtree(folder / 'kept')",
        "os.rename(folder / 'kept', folder / 'kept-1')",
        "os.remove(folder / 'latest.pt')",
        "(folder / 'latest.pt').write_text('bad')",
        "sqlite3.connect(good)",
    ],
)
def test_the_run_ends_before_it_changes_a_file_that_was_there(change: str, tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "good.pt").write_text("good")
    (tmp_path / "latest.pt").symlink_to(tmp_path / "good.pt")
    found, early = run(KEEPS.replace("CHANGE", change), tmp_path)
    assert found is None and "about to change" in early and str(tmp_path) in early
    assert (tmp_path / "kept" / "good.pt").read_text() == "good" and (tmp_path / "latest.pt").is_symlink()
    assert not (tmp_path / "after").exists(), "nothing of the script runs after it"


LOOP = """
import os, sys, pathlib
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
folder = pathlib.Path(__file__).parent
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(96, 16), torch.randint(4, (96,)))
def step(inputs, labels):
    loss = torch.nn.functional.cross_entropy(model(inputs), labels); loss.backward()
    return loss
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rest", "updates", "early"),
    [
        (  # a save that follows some updates, through the file that a script has opened itself or not
            """
for number, batch in enumerate(DataLoader(data, batch_size=32)):
    step(*batch); optimizer.step()
    if number == 20: torch.save(model.state_dict(), folder / "good.pt")
""",
            21,
            "about to save its weights",
        ),
        (  # a worker changes a file
            """
class Caching(Dataset):
    def __len__(self): return 640
    def __getitem__(self, index):
        if index == 400: (folder / "good.pt").write_text("bad")
        return data[index % 96]
for batch in DataLoader(Caching(), batch_size=32, num_workers=1): step(*batch); optimizer.step()
""",
            None,
            "good.pt, which was there before",
        ),
        (  # updates are left out where a loss is no number, as a GradScaler does; the first four are too
            """
skipped = 4
for inputs, labels in DataLoader(data, batch_size=32):
    loss = step(inputs, labels)
    if given > 50: model.weight.data.fill_(float("nan"))
    if skipped: skipped -= 1
    elif torch.isfinite(loss): optimizer.step(); given += 1
""",
            51,
            "",
        ),
        (  # a loader whose `__iter__` is a generator, of batches that cannot be made again from their class
            """
from collections import defaultdict
def collate(items):
    made = defaultdict(list); made["image"], made["label"] = map(torch.stack, zip(*items)); return made
class Generating(DataLoader):
    def __iter__(self): yield from super().__iter__()
for _ in DataLoader(data, batch_size=96): pass  # a check before the training
for batch in Generating(data, batch_size=32, collate_fn=collate): step(batch["image"], batch["label"]); optimizer.step()
raise SystemExit("the epoch must not end")
""",
            100,
            "",
        ),
    ],
    ids=["saves", "worker", "no update", "generator"],
)
def test_the_run_ends_with_its_curve(rest: str, updates: int | None, early: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found, why = run(f"{LOOP}given = 0\n{rest}", tmp_path)
    assert early in why and bool(early) == bool(why)
    if updates is not None:
        assert found["diverged"] or len(found["points"]) >= min(updates, 100)
        assert found["global_batch"] == 32
    assert bool(early) or found["complete"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_rank_waits_for_one_that_has_ended(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = f"""{LOOP}
import torch.distributed as dist
def train(rank):
    dist.init_process_group("gloo", init_method=f"file://{{folder}}/meeting", rank=rank, world_size=2)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    for number, (inputs, labels) in enumerate(DataLoader(data, batch_size=32)):
        torch.nn.functional.cross_entropy(parallel(inputs), labels).backward(); optimizer.step()
        if rank == int(sys.argv[1]) and number == 20: torch.save(model.state_dict(), folder / "good.pt")
if __name__ == "__main__":
    torch.multiprocessing.spawn(train, nprocs=2)
"""
    found, why = run(script, tmp_path, "0", limit_s=180)
    assert "save" in why and found["global_batch"] == 64 and len(found["points"]) == 21


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

    def watched(command: Any, folder: Path, **_: Any) -> Any:
        begin_session(folder, command)
        add_fact(folder, FACT, fact)
        return SimpleNamespace(stopped_by=None, timed_out=False)

    monkeypatch.setattr(range_test, "watch", watched)
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


@pytest.mark.parametrize("early", ["the script was about to save its weights", "", None])
def test_a_partial_curve_says_why_no_rate_is_suggested(
    early: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [[one.rate, one.loss, one.smoothed] for one in curve(0.3).points[:30]]
    fact = {"points": points, "diverged": False, "complete": False, "optimizer": "SGD", "own_rate": 0.1, "global_batch": 0}

    def watched(command: Any, folder: Path, **_: Any) -> Any:
        begin_session(folder, command)
        add_fact(folder, FACT, fact)
        if early:
            (folder / kept_files.ENDED).write_text(early)
        return SimpleNamespace(stopped_by=None, timed_out=early is None)

    monkeypatch.setattr(range_test, "watch", watched)
    begin_session(tmp_path / "s", ["train"])
    note = range_test.with_learning_rate(example_diagnosis(), tmp_path / "s", command=["train"], log=print).notes[0].text
    ended = "the time was over" if early is None else f"the test ended early, because {early or 'the script ended'},"
    assert f"{ended} at a rate of 0.00011, before the loss diverged: nothing is chosen" in note
    assert ("--seconds" in note) == (early is None)


def test_a_command_without_steps_is_not_run_again(tmp_path: Path) -> None:
    said: list[str] = []
    diagnosis = replace(example_diagnosis(), step_s=None)
    command = [sys.executable, "-c", "raise SystemExit(1)"]
    assert range_test.with_learning_rate(diagnosis, tmp_path, command=command, log=said.append) is diagnosis
    assert said == ["--find-learning-rate: no steps of a training loop were seen: nothing is suggested"]


def test_a_script_without_an_optimizer_gets_no_suggestion(tmp_path: Path) -> None:
    said: list[str] = []
    begin_session(tmp_path / "s", ["train"])
    diagnosis = example_diagnosis()
    command = [sys.executable, "-c", "pass"]
    assert range_test.with_learning_rate(diagnosis, tmp_path / "s", command=command, log=said.append) is diagnosis
    assert "nothing is suggested" in said[-1]
