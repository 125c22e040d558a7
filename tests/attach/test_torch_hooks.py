"""The session of real PyTorch scripts: forked and spawned workers, no workers, a crash, a kill, two ranks."""

from __future__ import annotations

import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.profiling.command import watch
from headrace.session.merge_loaders import merge_recreated_loaders
from headrace.session.model import Session

pytest.importorskip("torch")

SCRIPT = """
import os, signal, sys, time, gc
import torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)

class Data(Dataset):
    def __init__(self, length): self.length = length
    def __len__(self): return self.length
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((8,), float(index)), index

def train(model, loader, optimizer, seen, steps=None):
    for number, (value, label) in enumerate(loader):
        optimizer.zero_grad(); model(value).sum().backward(); optimizer.step()
        seen += label.tolist()
        if steps is not None and number == steps: return

def main(workers, context, *what):
    gc.collect(); gc.freeze()  # a collection of torch's objects would take a third of so short a job
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Data(96), batch_size=4, num_workers=workers, multiprocessing_context=context)
    seen = []
    train(model, loader, optimizer, seen)
    if "validate" in what:
        with torch.no_grad():
            for value, _ in DataLoader(Data(24), batch_size=8, num_workers=1): model(value)
    if "save" in what:
        torch.save(model.state_dict(), os.devnull); gc.collect()
    if "crash" in what: raise RuntimeError("on purpose")
    if "kill" in what: time.sleep(0.7); train(model, loader, optimizer, [], 3); os.kill(os.getpid(), signal.SIGKILL)
    assert seen == list(range(96)), seen

if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if sys.argv[2] != "-" else None, *sys.argv[3:])
"""


def watched(folder: Path, *arguments: str, script: str = SCRIPT, launcher: tuple[str, ...] = ()) -> tuple[Session, int]:
    """Run the script with the hooks; the session, and the exit code."""
    file = folder / "train.py"
    file.write_text(textwrap.dedent(script))
    finished = watch([sys.executable, *launcher, str(file), *arguments], folder / "session")
    return Session.load(folder / "session"), finished.returncode


def test_forked_workers_two_loaders_and_pauses_are_recorded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    session, code = watched(tmp_path, "2", "-", "validate", "save")
    assert code == 0
    assert "headrace" not in capfd.readouterr().err
    training = [step for step in session.steps if step.loader == 0]
    assert len(training) in (23, 24)  # the last step of a loader ends when the loader is asked again
    assert all(step.items == 4 and step.optimizer_steps == 1 for step in training)
    assert all(step.wait_s >= 0 and step.compute_s >= 0 for step in session.steps)
    assert {loader.loader: loader.num_workers for loader in session.loaders} == {0: 2, 1: 1}
    made = [batch for batch in session.batches if batch.loader == 0]
    assert sum(batch.items or 0 for batch in made) == 96
    assert {batch.worker for batch in made} == {0, 1}
    slept = sorted(batch.blocked_s or 0.0 for batch in made)[len(made) // 2]
    assert slept == pytest.approx(0.008, rel=0.9)
    assert any(event.name == "save" for event in session.events)
    assert [process.role for process in session.processes].count("worker") == 3
    assert session.exit_code == 0
    assert session.samples or session.not_measured


@pytest.mark.slow
def test_spawned_workers_are_recorded(tmp_path: Path) -> None:
    session, code = watched(tmp_path, "1", "spawn")
    assert code == 0
    assert sum(batch.items or 0 for batch in session.batches) == 96
    assert {batch.worker for batch in session.batches} == {0}
    assert session.loaders[0].start_method == "spawn"


@pytest.mark.slow
def test_without_workers_the_training_process_makes_the_batches(tmp_path: Path) -> None:
    session, code = watched(tmp_path, "0", "-")
    assert code == 0
    assert {batch.worker for batch in session.batches} == {-1}
    assert diagnose(session).verdict in ("NO_OVERLAP", "EXTERNAL_CPU")


PERSISTENT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.arange(12.0)), batch_size=4, num_workers=1, persistent_workers=True)
for epoch in range(3):
    for number, _ in enumerate(loader):
        if epoch == 1 and number == 1:
            break  # the next epoch begins while a step is open
"""


@pytest.mark.slow
def test_persistent_workers_give_the_steps_of_each_epoch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    session, code = watched(tmp_path, script=PERSISTENT)
    assert code == 0
    assert "headrace" not in capfd.readouterr().err
    assert [sum(step.epoch == epoch for step in session.steps) for epoch in range(3)] == [3, 2, 3]


ONE_BATCH = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)

class Data(Dataset):
    def __len__(self): return 1000
    def __getitem__(self, index): return torch.full((8,), float(index))

workers, how = int(sys.argv[1]), sys.argv[2]
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader, validation = (DataLoader(Data(), batch_size=size, num_workers=workers) for size in (4, 8))
for step in range(9):
    if how == "next": batch = next(iter(loader))
    else:
        batches = iter(loader)
        batch = next(batches)
    optimizer.zero_grad(); model(batch).sum().backward(); optimizer.step()
    time.sleep(0.02)
    if step % 4 == 3:
        with torch.no_grad(): model(next(iter(validation)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "how"), [(0, "next"), (1, "next"), (1, "iter")])
def test_the_step_of_an_iterator_that_is_gone_is_timed(tmp_path: Path, workers: int, how: str) -> None:
    """An iterator for each batch, also of the validation: the step ends where the script asks for the next one."""
    session, code = watched(tmp_path, str(workers), how, script=ONE_BATCH)
    assert code == 0
    steps = [step for step in session.steps if step.items == 4]
    assert len(steps) == 8
    assert sum(step.optimizer_steps or 0 for step in steps) >= 6
    assert all(step.compute_s >= 0.02 for step in steps)
    assert len([step for step in session.steps if step.items == 8]) == 2
    starts, stops = ([one for one in session.events if one.name == name] for name in ("workers_start", "workers_stop"))
    assert len(starts) == (11 if workers else 0) and len(stops) >= (9 if workers else 0)
    joined = merge_recreated_loaders(session)
    assert [loader.passes for loader in joined.loaders] == [8, 0]
    diagnosis = diagnose(session)
    assert ("NEW_ITERATORS" in [found.kind for found in diagnosis.findings]) == bool(workers)
    assert diagnosis.share_of_step["input_next"] > (0.1 if workers else -1)


@pytest.mark.slow
def test_crash_leaves_a_session_and_the_scripts_own_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    session, code = watched(tmp_path, "1", "-", "crash")
    assert code == 1
    assert "RuntimeError: on purpose" in capfd.readouterr().err
    assert len(session.steps) in (23, 24)
    assert session.exit_code == 1


@pytest.mark.slow
def test_a_killed_job_leaves_the_flushed_steps(tmp_path: Path) -> None:
    session, code = watched(tmp_path, "1", "-", "kill")
    assert code == -signal.SIGKILL
    assert len(session.steps) >= 20


def test_a_script_without_torch_gives_a_session_with_that_reason(tmp_path: Path) -> None:
    session, code = watched(tmp_path, script="print(1)")
    assert code == 0
    assert diagnose(session).verdict == "INSUFFICIENT_DATA"


# The model is gone, and the group with it, before the interpreter ends: PyTorch's gloo threads abort the process when they drop
# the last reference to a tensor after that (pytorch issue 190489).
DISTRIBUTED = """
import gc, time, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
dist.init_process_group("gloo")
slow = dist.get_rank() == 1

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)
    def forward(self, value):
        if slow: time.sleep(0.15)
        return self.layer(value)

def train():
    model = torch.nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (value,) in DataLoader(TensorDataset(torch.zeros(80, 8)), batch_size=4):
        optimizer.zero_grad(); model(value).sum().backward(); optimizer.step()

train()
gc.collect()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_the_slower_of_two_ranks_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        session, code = watched(folder, script=DISTRIBUTED, launcher=launcher)
        if "terminate called without an active exception" not in capfd.readouterr().err:
            break  # else PyTorch's abort, which strikes jobs that nobody watches, too: another try
    assert code == 0
    assert sorted(process.rank for process in session.processes if process.role == "main") == [0, 1]
    diagnosis = diagnose(session)
    slow = next(found for found in diagnosis.findings if found.kind == "RANK_STRAGGLER")
    assert "rank 1" in slow.evidence[0]
    assert "slow in forward" in slow.evidence[1]


def test_the_time_limit_ends_the_job_and_leaves_the_session(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("import time\ntime.sleep(60)\n")
    begin_s = time.monotonic()
    finished = watch([sys.executable, str(file)], tmp_path / "session", time_limit_s=0.5)
    assert finished.returncode == -signal.SIGTERM
    assert time.monotonic() - begin_s < 30
    assert Session.load(tmp_path / "session").exit_code == -signal.SIGTERM


REFUSED = """
import http.client, http.server, threading
import torch
from torch.utils.data import DataLoader, Dataset

class Store(http.server.BaseHTTPRequestHandler):
    answers = 0
    def do_GET(self):
        Store.answers += 1
        self.send_response(503 if Store.answers % 2 else 200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *words): pass

server = http.server.HTTPServer(("127.0.0.1", 0), Store)
threading.Thread(target=server.serve_forever, daemon=True).start()

class Data(Dataset):
    def __len__(self): return 24
    def __getitem__(self, index):
        for _ in range(2):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
            connection.request("GET", "/"); status = connection.getresponse().status; connection.close()
        assert status == 200
        return torch.zeros(2)

for batch in DataLoader(Data(), batch_size=4): pass
"""


@pytest.mark.slow
def test_answers_by_which_a_store_asks_for_fewer_requests_are_counted(tmp_path: Path) -> None:
    session, code = watched(tmp_path, script=REFUSED)
    assert code == 0
    assert [batch.refused for batch in session.batches] == [4] * 6


@pytest.mark.slow
def test_overrides_change_only_the_loader_that_matches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_OVERRIDES", '{"match": {"batch_size": 4, "num_workers": 2}, "set": {"num_workers": 1}}')
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    hooks = ("headrace.attach.experiments.overrides", "headrace.attach.torch_hooks")
    finished = watch([sys.executable, str(file), "2", "-", "validate"], tmp_path / "session", hooks=hooks)
    assert finished.returncode == 0
    session = Session.load(tmp_path / "session")
    assert [(item.num_workers, item.batch_size, item.overridden) for item in session.loaders] == [
        (1, 4, ("num_workers",)),
        (1, 8, ()),
    ]


@pytest.mark.slow
def test_headraces_own_loader_is_timed(tmp_path: Path, image_folder: Callable[..., Path]) -> None:
    script = """
        import sys, torch
        import headrace.loading.loader, headrace.transforms
        loader = headrace.loading.loader.Loader(sys.argv[1], 2, headrace.transforms.imagenet_train(32), threads=1)
        for epoch in range(4):
            for images, labels in loader: assert images.shape == (2, 3, 32, 32)
    """
    session, code = watched(tmp_path, str(image_folder(classes=3, per_class=4)), script=script)
    assert code == 0
    assert [loader.family for loader in session.loaders] == ["headrace"]
    assert {step.epoch for step in session.steps} == {0, 1, 2, 3}
    assert all(step.items == 2 for step in session.steps)
