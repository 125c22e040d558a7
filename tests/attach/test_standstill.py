"""Standstills: real processes that stand, how the sampler finds them and asks for their stacks, and whom it never signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace.attach.machine import procfs
from headrace.attach.record.open_step import SIGNAL
from headrace.attach.standstill import FILE, Standstills, lock_name, parse_stack

PROC = Path("/proc")
PACKAGE = str(Path(procfs.__file__).parents[3])

TRAINING = """
import os, sys, threading, time
sys.path.insert(0, {package!r})
from headrace.attach.record import open_step
cache_lock = threading.Lock()

def item():
    with cache_lock:
        pass

assert open_step.install() is None
now_s = time.monotonic()
open_step.wait_begun(0, 0, 0, now_s)
open_step.step_begun(1, now_s)
open_step.wait_begun(0, 0, 1, now_s)
cache_lock.acquire()
worker = os.fork()
if worker == 0:
    open_step.batch_begun(0, 3, time.monotonic())
    item()
print(worker, flush=True)
for line in sys.stdin:
    if line == "go on\\n":
        open_step.step_begun(2, time.monotonic())
    if line == "exec\\n":
        os.execvp("sleep", ["sleep", "60"])
"""


@pytest.fixture
def training(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that waits for a batch of a worker; its worker waits for a lock that it inherited."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING.format(package=PACKAGE))
    with subprocess.Popen(
        [sys.executable, "-S", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def told(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def worker_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def written(folder: Path) -> list[dict[str, Any]]:
    file = folder / FILE
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def look_until(found: Standstills, job: list[int], count: int, kind: str = "standstill") -> list[dict[str, Any]]:
    """Look until so many lines of a kind are written, at most a minute. Return all lines."""
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        recording = [(pid, start) for pid in job if (start := procfs.start_ticks(pid, PROC)) is not None]
        found.look(time.monotonic(), recording, job, None)
        lines = written(found.folder)
        if sum(line["kind"] == kind for line in lines) >= count:
            return lines
        time.sleep(0.02)
    raise AssertionError(f"fewer than {count} lines: {lines}")


def test_a_worker_that_waits_for_a_lock_is_named_with_file_line_and_function(
    training: subprocess.Popen[str], tmp_path: Path
) -> None:
    worker = worker_of(training)
    found = Standstills(tmp_path, scale=0.005)
    by_pid: dict[int, Any] = {}
    while worker not in by_pid or not by_pid[worker]["frames"]:
        by_pid = {one["pid"]: one for line in look_until(found, [training.pid, worker], 1) for one in line["processes"]}
    assert by_pid[training.pid]["phase"] == "waits"
    assert by_pid[training.pid]["batches"] == 1
    stuck = by_pid[worker]
    assert (stuck["phase"], stuck["worker"], stuck["parent_pid"]) == ("makes a batch", 3, training.pid)
    row = TRAINING.splitlines().index("    with cache_lock:") + 1
    assert stuck["lock"] == "cache_lock"
    assert stuck["frames"][-1] == ["item", str(tmp_path / "train.py"), row]
    assert procfs.start_ticks(worker, PROC) is not None, "the worker lives on"


def test_no_sample_is_taken_before_the_limit(training: subprocess.Popen[str], tmp_path: Path) -> None:
    worker = worker_of(training)
    found = Standstills(tmp_path, scale=1.0)
    recording = [(pid, procfs.start_ticks(pid, PROC) or 0) for pid in (training.pid, worker)]
    found.look(time.monotonic(), recording, [training.pid, worker], None)
    assert written(tmp_path) == []
    found.look(time.monotonic() + 25, recording, [training.pid, worker], None)
    assert len(written(tmp_path)) == 1


def test_a_standstill_is_over_when_a_batch_comes(training: subprocess.Popen[str], tmp_path: Path) -> None:
    worker = worker_of(training)
    found = Standstills(tmp_path, scale=0.02)
    lines = look_until(found, [training.pid, worker], 2)
    told(training, "go on")
    over = look_until(found, [training.pid, worker], 1, "standstill_over")[-1]
    assert over["since_s"] == lines[0]["since_s"]


def test_a_process_without_a_handler_gets_no_signal(training: subprocess.Popen[str], tmp_path: Path) -> None:
    """Without one it would die. After `exec` the pid is the same, and the handler is gone."""
    worker = worker_of(training)
    found = Standstills(tmp_path, scale=0.005)
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            lines = look_until(found, [training.pid, worker, other.pid], 1)
            assert [one["pid"] for one in lines[-1]["others"]] == [other.pid]
            told(training, "exec")
            while Path(f"/proc/{training.pid}/comm").read_text() != "sleep\n":
                time.sleep(0.02)
            for _ in range(5):
                found.look(time.monotonic() + 100, [(training.pid, 0), (other.pid, 0)], [training.pid, other.pid], None)
            assert other.poll() is None and training.poll() is None
        finally:
            other.kill()


def test_a_handler_of_the_script_stays(tmp_path: Path) -> None:
    script = (
        f"import signal, sys; sys.path.insert(0, {PACKAGE!r})\n"
        f"signal.signal({int(SIGNAL)}, lambda *_: None)\n"
        "from headrace.attach.record import open_step\nprint(open_step.install())\n"
    )
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"the script has a handler for signal {int(SIGNAL)}\n"


DUMP = f"""Stack (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/opt/env/lib/python3.11/site-packages/torch/utils/data/worker.py", line 5 in _worker_loop
  File "{PACKAGE}/headrace/attach/batches/steps.py", line 9 in __next__
  File "<frozen importlib._bootstrap>", line 1 in _call
  File "/work/train.py", line 3 in step
"""


def test_a_stack_is_read_without_own_frames() -> None:
    assert parse_stack(DUMP) == {
        "frames": [
            ["step", "/work/train.py", 3],
            ["_worker_loop", "torch/utils/data/worker.py", 5],
            ["wait", "threading.py", 331],
        ],
        "lock": None,
    }


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("    with self.lock:", "self.lock"),
        ("with locks[key], other:", "locks"),
        ("    if not cache.lock.acquire(timeout=5):", "cache.lock"),
        ("with open(path) as file:", None),
        ("    time.sleep(3)", None),
    ],
)
def test_the_name_of_a_lock_is_read_from_the_line_that_takes_it(tmp_path: Path, line: str, name: str | None) -> None:
    file = tmp_path / "code.py"
    file.write_text(f"{line}\n    pass\n")
    assert lock_name(str(file), 1) == name
