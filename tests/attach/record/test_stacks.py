"""Sampled stacks: real scripts whose workers, collate function or training loop spend their time in a known function."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace.attach.record import stacks
from headrace.attach.record.recorder import Recorder
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.measure.hot_functions import flame_charts, hot_functions, hot_words
from headrace.profiling.command import watch
from headrace.session.model import Session
from headrace.session.stacks import Stack, StackFrame

SCRIPT = """
import json, os, sys, threading, time
import torch
from PIL import Image, ImageFilter
from torch.utils.data import DataLoader, Dataset, default_collate
torch.set_num_threads(1)
IMAGE = Image.effect_noise((480, 480), 60).convert("RGB")
LEAST = 50

def burn(seconds):
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s: pass

def slow_collate(samples):
    burn(0.03)
    return default_collate(samples)

def is_sampled(least):  # on a busy machine a sample costs more, so fewer are taken a second
    return any(sampler._samples >= least for sampler in sys.modules["headrace.attach.record.stacks"]._samplers)

def has_enough(what, folder, workers):
    if what == "loop" or not workers: return is_sampled(LEAST)
    return any(name.startswith("enough-") for name in os.listdir(folder))

class Pictures(Dataset):
    def __init__(self, what, folder, workers): self.what, self.folder, self.least = what, folder, LEAST // max(1, workers)
    def __len__(self): return 4 * (2000 if sys.modules["headrace.attach.record.stacks"]._samplers else 80)
    def __getitem__(self, index):
        if is_sampled(self.least): open(f"{self.folder}/enough-{os.getpid()}", "w").close()
        begin_s = time.monotonic()
        if self.what == "blur":
            image = IMAGE.filter(ImageFilter.GaussianBlur(5))
            blurred_s = time.monotonic()
            image = image.rotate(7, expand=True)
            with open(f"{self.folder}/times-{os.getpid()}", "a") as file:
                file.write(json.dumps([blurred_s - begin_s, time.monotonic() - begin_s]) + "\\n")
        return torch.zeros(8)

def train(loader, what, folder):
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        if what == "loop": log_metrics()
        optimizer.step()
        if has_enough(what, folder, loader.num_workers): break

def log_metrics():
    burn(0.03)

if __name__ == "__main__":
    what, workers, context, folder = sys.argv[1:]
    collate = slow_collate if what == "collate" else None
    loader = DataLoader(Pictures(what, folder, int(workers)), batch_size=4, num_workers=int(workers), collate_fn=collate,
                        multiprocessing_context=context if context != "-" else None)
    train(loader, what, folder)
    if what == "wait": time.sleep(0.2)
    if what == "blur": time.sleep(2.6)  # longer than the sampling thread outlives its last mark
    print("threads", [thread.name for thread in threading.enumerate()])
"""


def sampled(folder: Path, what: str, workers: int, context: str = "-", env: dict[str, str] | None = None) -> Session:
    pytest.importorskip("torch")
    file = folder / "train.py"
    file.write_text(SCRIPT)
    finished = watch([sys.executable, str(file), what, str(workers), context, str(folder)], folder / "session", env=env)
    assert finished.returncode == 0
    return Session.load(folder / "session")


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if text in line)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "context"), [(2, "fork"), (1, "spawn"), (0, "-")])
def test_a_blurring_worker_is_named_with_its_line_and_share(
    tmp_path: Path, workers: int, context: str, capfd: pytest.CaptureFixture[str]
) -> None:
    session = sampled(tmp_path, "blur", workers, context)
    output = capfd.readouterr()
    assert "headrace-stacks" not in output.out
    assert "headrace" not in output.err
    times = [json.loads(line) for path in tmp_path.glob("times-*") for line in path.read_text().splitlines()]
    true = sum(row[0] for row in times) / sum(row[1] for row in times)
    hot = hot_functions(session)[0]
    assert (hot.role, hot.function, hot.file) == ("batch", "GaussianBlur", str(tmp_path / "train.py"))
    assert hot.line == line_of("IMAGE.filter")
    assert hot.share == pytest.approx(true, abs=0.15)
    (words,) = hot_words(session, "batch")
    assert words.startswith(f"GaussianBlur takes {hot.share * 100:.0f} % of making a batch (")
    assert f"train.py:{hot.line})" in words
    assert {stack.pid for stack in session.stacks if stack.role == "batch"} == {batch.pid for batch in session.batches}
    assert flame_charts(session)[0].name == "batch"


@pytest.mark.slow
def test_a_slow_collate_function_is_named(tmp_path: Path) -> None:
    session = sampled(tmp_path, "collate", 1)
    (words,) = hot_words(session, "collate")
    assert words.startswith(("burn takes 9", "burn takes 8", "burn takes 100 %")), words
    hot = {one.function: one for one in hot_functions(session) if one.role == "collate"}
    assert hot["slow_collate"].share == pytest.approx(0.98, abs=0.15)
    assert hot["slow_collate"].line == line_of("burn(0.03)")
    assert hot["burn"].self_share > 0.8


@pytest.mark.slow
def test_a_slow_training_loop_is_named(tmp_path: Path) -> None:
    session = sampled(tmp_path, "loop", 1)
    hot = {one.function: one for one in hot_functions(session) if one.role == "step"}
    assert hot["log_metrics"].share > 0.75
    assert hot_words(session, "step")[0].startswith("burn takes")
    chart = next(chart for chart in flame_charts(session) if chart.name == "step")
    assert chart.bars[0].function == "train"  # the callers that every stack shares are left out
    assert chart.bars[0].share == 1
    diagnosis = diagnose(session)
    script = next(found for found in diagnosis.findings if found.kind == "SCRIPT_BOUND")
    assert script.summary.startswith(f"log_metrics ({tmp_path}/train.py:")
    assert diagnosis.share_of_step["script"] > 2 * diagnosis.share_of_step["compute"], "the bar agrees with the table"


@pytest.mark.slow
def test_the_environment_turns_sampling_off(tmp_path: Path) -> None:
    session = sampled(tmp_path, "loop", 1, env={stacks.STACKS_VARIABLE: "0"})
    assert len(session.steps) > 50
    assert session.stacks == ()


@pytest.fixture
def sampler(tmp_path: Path) -> Iterator[stacks.StackSampler]:
    recorder = Recorder(tmp_path)
    made = stacks.StackSampler(recorder)
    yield made
    made.stop()
    recorder.closed = True  # the folder is gone when the process ends


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 20
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.01)
    assert condition()


def names_on_stack(thread: threading.Thread) -> list[str]:
    return [frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._current_frames()[thread.ident or 0])]


def test_random_deep_stacks_take_bounded_memory(sampler: stacks.StackSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "MOST_STACKS", 50)
    monkeypatch.setattr(stacks, "FIRST_MARKS", 1000)  # no thread: this test samples
    names = random.Random(1)
    spaces: list[dict[str, Callable[..., None]]] = []
    for number in range(40):
        space: dict[str, Callable[..., None]] = {}
        code = f"def f{number}(depth, inner):\n    inner(depth)\n"
        exec(compile(code, f"/home/me/{number}.py", "exec"), space)
        spaces.append(space)

    def deep(depth: int) -> None:
        if depth == 0:
            sampler.mark("step", 0)
            assert sampler.sample()
        else:
            number = names.randrange(40)
            spaces[number][f"f{number}"](depth - 1, deep)

    for _ in range(300):
        deep(names.randrange(1, 150))
    assert len(sampler._counts) <= 51
    assert sum(sampler._counts.values()) == 300
    assert max(len(places) for _, _, places in sampler._counts) == stacks.MOST_FRAMES
    assert sampler._counts[("step", 0, False), False, ()] >= 200


def test_samples_keep_no_frame_and_no_local_value(sampler: stacks.StackSampler) -> None:
    class Value:
        pass

    gone: list[bool] = []

    def work() -> None:
        import weakref

        value = Value()
        weakref.finalize(value, gone.append, True)
        sampler.mark("step", 0)
        sampler.sample()

    work()
    assert gone == [True]
    held = [value for values in vars(sampler).values() if isinstance(values, dict) for value in values.values()]
    assert not any(isinstance(value, types.FrameType) for value in held)


def test_the_thread_ends_when_nothing_is_marked_and_before_a_fork(
    sampler: stacks.StackSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alive() -> bool:
        return any(thread.name == "headrace-stacks" for thread in threading.enumerate())

    monkeypatch.setattr(stacks, "IDLE_S", 0.2)
    for _ in range(stacks.FIRST_MARKS):
        assert not alive()
        sampler.mark("step", 0)
    assert alive()
    child = os.fork()
    if child == 0:
        os._exit(0 if threading.active_count() == 1 and not sampler._marks else 1)
    assert not alive()
    assert os.waitpid(child, 0)[1] == 0
    sampler.mark("step", 0)
    wait_until(lambda: sampler._samples > 0)
    sampler.unmark()
    wait_until(lambda: not alive())


def test_a_mark_ends_with_its_owner(sampler: stacks.StackSampler) -> None:
    """A loop that is left by `break` drops its iterator; what follows is no training step."""

    class Owner:
        pass

    owner = Owner()
    sampler.mark("step", 0, owner)
    assert sampler.sample()
    del owner
    assert not sampler.sample()


def test_the_scripts_random_numbers_stay_as_they_are(sampler: stacks.StackSampler) -> None:
    random.seed(5)
    expected = [random.random() for _ in range(3)]
    random.seed(5)
    for _ in range(stacks.FIRST_MARKS):
        sampler.mark("step", 0)
    wait_until(lambda: sampler._samples >= 3)
    sampler.stop()
    assert [random.random() for _ in range(3)] == expected


def test_waiting_is_no_work(sampler: stacks.StackSampler) -> None:
    import queue

    def waits() -> None:
        sampler.mark("step", 0)
        source.get()

    source: queue.Queue[int] = queue.Queue()
    thread = threading.Thread(target=waits)
    thread.start()
    wait_until(lambda: bool(sampler._marks) and names_on_stack(thread)[0] == "wait")
    sampler.sample()
    source.put(1)
    thread.join()
    assert {waiting for _, waiting, _ in sampler._counts} == {True}


def test_where_a_thread_waits_for_another_the_work_of_that_one_counts(sampler: stacks.StackSampler) -> None:
    """`next()` waits for the thread that pins memory."""
    import queue

    done = threading.Event()
    source: queue.Queue[int] = queue.Queue()

    def pin_memory() -> None:
        while not done.is_set():
            pass

    def waits() -> None:
        sampler.mark(stacks.NEXT, 0, behind=pinning.ident)
        source.get()

    pinning = threading.Thread(target=pin_memory)
    pinning.start()
    waiting = threading.Thread(target=waits)
    waiting.start()
    wait_until(lambda: bool(sampler._marks) and names_on_stack(waiting)[0] == "wait")
    sampler.sample()
    done.set()
    pinning.join()
    sampler.sample()
    source.put(1)
    waiting.join()
    assert {(waits, "pin_memory" in str(places)) for _, waits, places in sampler._counts} == {(False, True), (True, False)}


def with_all_of_it_used_by(name: str, read: Callable[[], Any]) -> Callable[[], Any]:
    """Return `_cpu_used` as if one thread had used all the CPU time."""

    def cpu_used() -> Any:
        found = read()
        holder = next(each.ident for each in threading.enumerate() if each.name == name)
        return found and (found[0], {ident: found[0] if ident == holder else 0.0 for ident in found[1]})

    return cpu_used


def test_the_thread_that_holds_the_interpreter_is_recorded(
    sampler: stacks.StackSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where the sampling thread gets the interpreter late: a thread that works in native code delays nobody."""
    monkeypatch.setattr(stacks, "HOLDER_CPU_SHARE", 0.0)
    monkeypatch.setattr(stacks, "HOLDER_SINCE_S", 60.0)  # a busy machine may take long between two samples
    monkeypatch.setattr(sampler, "_start", lambda: None)  # only the samples of this test
    done, asked = threading.Event(), threading.Event()

    def count_in_python() -> None:
        while not done.is_set():
            pass

    def waits(role: str) -> None:
        sampler.mark(role, 0)
        asked.wait()

    def steps() -> None:
        sampler.mark("step", 1)
        while not done.is_set():
            pass

    targets: tuple[tuple[Callable[..., None], tuple[str, ...]], ...] = (
        (waits, (stacks.NEXT,)),
        (waits, ("step",)),
        (steps, ()),
    )
    for target, args in targets:
        threading.Thread(target=target, args=args).start()
    threading.Thread(target=count_in_python, name="holder").start()
    wait_until(lambda: len(sampler._marks) == 3)
    monkeypatch.setattr(sampler, "_cpu_used", with_all_of_it_used_by("holder", sampler._cpu_used))
    sampler.sample(0.0)
    late = 0
    while late < 2 or (
        late < 50 and stacks.STEP_HOLDER not in str(sampler._counts)
    ):  # it may wait for the interpreter just then
        sampler.sample(0.01)
        late += 1
        time.sleep(0.1)
    done.set()
    asked.set()
    held = {places: count for (work, _, places), count in sampler._counts.items() if work[:2] == (stacks.HOLDER, 0)}
    assert sum(held.values()) == late - 1, "the first late sample only reads the clocks of the threads"
    assert "count_in_python" in str(held)
    in_steps = [(work[1], places) for work, _, places in sampler._counts if work[0] == stacks.STEP_HOLDER]
    assert {loader for loader, _ in in_steps} == {1}, "the step that waits in a function needs no interpreter"
    assert "count_in_python" in str(in_steps)


@pytest.mark.parametrize(("since_s", "held"), [(0.2, 2), (60.0, 0)])
def test_a_thread_that_used_cpu_long_ago_holds_no_interpreter(
    since_s: float, held: int, sampler: stacks.StackSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it used since the last late sample counts, for each of the threads that were kept waiting alike."""
    done = threading.Event()

    def works() -> None:
        while not done.is_set():
            done.wait(0.01)
            sum(range(100))

    def waits() -> None:
        sampler.mark(stacks.NEXT, 0)
        done.wait()

    threads = [threading.Thread(target=target) for target in (works, waits, waits)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(sampler._marks) == 2)
    worker = threads[0].native_id
    assert worker is not None
    monkeypatch.setattr(stacks, "WAITS", frozenset())
    monkeypatch.setattr(stacks, "HOLDER_CPU_SHARE", 1e-6)
    monkeypatch.setattr(stacks, "python_threads_cpu_s", lambda: {each.native_id: 1.0 for each in threads} | {worker: 5.0})
    sampler._threads_cpu_s = time.monotonic() - since_s, {each.native_id: 1.0 for each in threads if each.native_id}
    wait_until(lambda: "works" in str(sampler._stack(sys._current_frames().get(threads[0].ident or 0))))
    sampler.sample(0.01)
    done.set()
    for thread in threads:
        thread.join()
    assert sum(count for (work, _, _), count in sampler._counts.items() if work[0] == stacks.HOLDER) == held


def test_a_mark_within_another_gives_it_back(sampler: stacks.StackSampler) -> None:
    """Without workers a batch is made inside `next()`."""
    sampler.mark(stacks.NEXT, 0)
    outer = sampler.mark("batch", 0)
    sampler.unmark(outer)
    sampler.sample()
    sampler.unmark()
    assert not sampler.sample()
    assert [work[:2] for work, _, _ in sampler._counts] == [(stacks.NEXT, 0)]


VALIDATION = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)

def burn(seconds):
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s: pass

def augment(): burn(0.02)
def centre_crop(): burn(0.02)

class Pictures(Dataset):
    def __init__(self, length, transform): self.length, self.transform = length, transform
    def __len__(self): return self.length
    def __getitem__(self, index):
        self.transform()
        return torch.zeros(8)

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(40):
    if any(sampler._samples >= 100 for sampler in sys.modules["headrace.attach.record.stacks"]._samplers): break
    for batch in DataLoader(Pictures(120, augment), batch_size=1):
        model(batch).sum().backward()
        optimizer.step()
    for batch in DataLoader(Pictures(150, centre_crop), batch_size=1): model(batch)
"""


@pytest.mark.slow
def test_the_stacks_of_validation_are_not_those_of_training(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(VALIDATION)
    assert watch([sys.executable, str(tmp_path / "train.py")], tmp_path / "session").returncode == 0
    session = Session.load(tmp_path / "session")
    assert {frame.function for stack in session.stacks for frame in stack.frames} >= {"augment", "centre_crop"}
    names = {one.function for one in diagnose(session).hot_functions}
    assert "augment" in names and "centre_crop" not in names


def test_stacks_survive_saving_and_merge(tmp_path: Path) -> None:
    stack = Stack(7, "batch", 3, False, (StackFrame("f", "/home/me/train.py", 4),))
    session = Session(stacks=(stack, Stack(7, "step", 2, True, ())))
    session.save(tmp_path)
    with (tmp_path / "more.jsonl").open("w") as file:
        line = {"kind": "stacks", "pid": 7, "role": "batch", "stacks": [[2, 0, [["f", "/home/me/train.py", 4]]]]}
        file.write(json.dumps(line) + "\n")
    loaded = Session.load(tmp_path)
    assert {(one.role, one.count) for one in loaded.stacks} == {("batch", 5), ("step", 2)}


def test_the_table_of_functions_and_the_flame_chart_have_the_same_shares() -> None:
    blur, load = (StackFrame(name, "/home/me/train.py", 4) for name in ("blur", "load"))
    made = (Stack(7, "batch", 60, False, (blur,)), Stack(7, "batch", 40, False, (load,)))
    session = Session(stacks=(*made, Stack(7, "batch", 25, False, ())))  # the last: beyond the most stacks that are kept
    listed = {one.function: one.share for one in hot_functions(session)}
    (chart,) = flame_charts(session)
    assert listed == {bar.function: bar.share for bar in chart.bars} == {"blur": 0.6, "load": 0.4}
