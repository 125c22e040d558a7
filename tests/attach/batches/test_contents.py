"""What is in the batches of real loops: each odd loop gives its note, each healthy one none, and nothing is changed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from headrace.attach.batches.batch_values import NOTES_VARIABLE
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.findings.batch_notes import batch_notes
from headrace.profiling.command import watch
from headrace.session.batch_contents import Contents
from headrace.session.model import Session

SCRIPT = """
import random, sys, time
import numpy, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, get_worker_info

class Data(Dataset):
    def __init__(self, count=128, label=lambda index: index * 7919 % 10, change=None):
        self.count, self.label, self.change = count, label, change
    def __len__(self): return self.count
    def __getitem__(self, index):
        image = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(index)) * 2 - 1
        return (image if self.change is None else self.change(image, index)), self.label(index)

class Noisy(Data):
    def __init__(self, make=None): super().__init__(); self.rng = make and make()
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image + float((self.rng or numpy.random).normal()), label

class Stream(IterableDataset):
    def __init__(self, divided): self.divided = divided
    def __len__(self): return 64
    def __iter__(self):
        info, data = get_worker_info(), Data()
        step = info.num_workers if self.divided else 1
        return (data[index] for index in range(info.id if self.divided else 0, 64, step))

class Same:  # a batch sampler with the same batch again and again
    def __iter__(self): return iter([list(range(16))] * 8)
    def __len__(self): return 8

class Lengths(Data):  # images, texts and their lengths
    def __getitem__(self, index):
        return super().__getitem__(index)[0], torch.arange(5), 5

def seeded(worker): numpy.random.seed(1)
def seeded_by_worker(worker): numpy.random.seed(worker)
def seeded_by_torch(worker): numpy.random.seed(torch.initial_seed() % 2**32)
def to_bytes(image, index): return ((image + 1) * 127.5).round().clamp(0, 255)
def with_nan(image, index): return image.masked_fill(image > 0.9, float("nan")) if index % 3 == 0 else image
def sometimes_black(image, index): return image * (index % 64 >= 16)

mix, two = {"shuffle": True}, {"num_workers": 2}
CASES = {  # name: dataset, arguments, and "first": only the first batch of each pass
    "healthy": (Data(), mix),
    "healthy workers": (Data(), mix | two),
    "same_records": (Data(), {"batch_sampler": Same()}),
    "same_records first": (Data(), {}),
    "healthy one batch on purpose": (Subset(Data(), range(16)), mix),
    "one_label": (Data(label=lambda index: 0), mix),
    "one_label_a_batch,same_order": (Data(label=lambda index: index // 16), {}),
    "healthy masks": (Data(label=lambda index: torch.zeros(16, 16, dtype=torch.long)), mix),
    "healthy several labels": (Data(label=lambda index: torch.zeros(5, dtype=torch.long)), mix),
    "healthy regression": (Data(label=lambda index: 1.0), mix),
    "healthy lengths": (Lengths(), mix),
    "healthy rare": (Data(label=lambda index: int(index == 77)), mix),
    "zero_images": (Data(change=lambda image, index: image * 0), mix),
    "healthy some black": (Data(change=sometimes_black), mix),
    "equal_images": (Data(change=lambda image, index: torch.linspace(-1, 1, 768).view(3, 16, 16)), mix),
    "not_finite": (Data(change=with_nan), mix),
    "values_to_255": (Data(change=to_bytes), mix),
    "healthy bytes": (Data(change=lambda image, index: to_bytes(image, index).to(torch.uint8)), mix),
    "healthy 0 to 1": (Data(change=lambda image, index: (image + 1) / 2), mix),
    "same_order": (Data(), {}),
    "workers_repeat": (Stream(False), two),
    "healthy stream": (Stream(True), two),
    "same_draws": (Noisy(lambda: numpy.random.default_rng(0)), mix | two),
    "same_draws RandomState": (Noisy(lambda: numpy.random.RandomState(0)), mix | two),
    "same_draws init": (Noisy(), mix | two | {"worker_init_fn": seeded}),
    "same_draws epochs": (Noisy(), mix | two | {"worker_init_fn": seeded_by_worker}),
    "healthy draws": (Noisy(), mix | two),
    "healthy init": (Noisy(), mix | two | {"worker_init_fn": seeded_by_torch}),
    "healthy persistent": (Noisy(), mix | two | {"persistent_workers": True}),
}

def run():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    total = 0.0
    for name, (data, options) in CASES.items():
        model = torch.nn.Linear(768, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        size = {} if "batch_sampler" in options else {"batch_size": 16}
        loader = DataLoader(data, **options, **size)
        for epoch in range(3 if "first" not in name else 24):
            for batch in loader:
                loss = model(batch[0].float().nan_to_num().flatten(1)).square().mean()
                optimizer.zero_grad(); loss.backward(); optimizer.step()
                total += float(loss.detach())
                if "first" in name: break
                if "a_batch" in name: time.sleep(0.02)
    print("total", total, random.random(), numpy.random.random(), float(torch.rand(())))

if __name__ == "__main__":
    random.seed(0); numpy.random.seed(0)
    run() if len(sys.argv) == 1 else print("\\n".join(CASES))
"""


def run_watched(folder: Path, **env: str) -> tuple[Session, str]:
    (folder / "train.py").write_text(SCRIPT)
    with (folder / "output").open("wb") as log:
        finished = watch([sys.executable, str(folder / "train.py")], folder / "session", log=log, env=env)
    text = (folder / "output").read_text()
    assert finished.returncode == 0, text
    return Session.load(folder / "session"), text


def plain(folder: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, str(folder / "train.py"), *arguments], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_odd_loop_has_its_note_and_each_healthy_one_none(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    session, text = run_watched(tmp_path)
    assert plain(tmp_path) in text  # with the same losses, and the same random numbers left
    cases = plain(tmp_path, "names").splitlines()
    (pid,) = {loader.pid for loader in session.loaders}
    found = {}
    for number, name in enumerate(cases):
        only = [one for one in session.contents.loaders if one.loader == number]
        assert only, name
        alone = replace(session, contents=Contents(tuple(only), session.contents.draws))
        found[name] = {note.kind for note in batch_notes(alone, pid)}
    wanted = {name: set() if name.startswith("healthy") else set(name.split()[0].split(",")) for name in cases}
    assert found == wanted
    cost = [step for step in session.steps if step.loader == 0]
    assert cost and diagnose(session).steps


@pytest.mark.slow
def test_no_notes_leaves_batches_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    session, _ = run_watched(tmp_path, **{NOTES_VARIABLE: "0"})
    assert session.steps and session.contents == Contents()
