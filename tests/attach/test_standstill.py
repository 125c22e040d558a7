"""Standstills: real processes that stand, how the sampler finds them and asks for their stacks, and whom it never signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace.attach import standstill
from headrace.attach.machine import procfs, sockets
from headrace.attach.machine.sockets import SocketTraffic
from headrace.attach.record.open_step import DESCRIPTOR, EPOCH_ENDED, PAGE_BYTES, PHASE, PID, SIGNAL, WORKER
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

PAUSED = """
import os, sys, time
sys.path.insert(0, {package!r})
from headrace.attach.record import open_step
assert open_step.install() is None
now_s = time.monotonic()
open_step.wait_begun(0, 0, 0, now_s - 100)
for number in range(20):
    open_step.step_begun(number + 1, now_s - 95)
open_step.wait_begun(0, 0, 20, now_s - 90)
open_step.epoch_ended(now_s)
print(os.getpid(), flush=True)
sys.stdin.read()
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


THREADS = """
import signal, sys, threading, time
sys.path.insert(0, {package!r})
from headrace.attach.record import open_step

def train():
    if sys.argv[1] == "blocks":
        signal.pthread_sigmask(signal.SIG_BLOCK, {{open_step.SIGNAL}})
    open_step.wait_begun(0, 0, 0, time.monotonic())
    print(threading.get_native_id(), flush=True)
    time.sleep(60)

assert open_step.install() is None
threading.Thread(target=train, daemon=True).start()
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["catches", "blocks"])
def test_only_the_training_thread_is_asked_and_only_if_it_does_not_block_the_signal(how: str, tmp_path: Path) -> None:
    """The frames of other threads may vanish while they are read."""
    command = [sys.executable, "-S", "-c", THREADS.format(package=PACKAGE), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        thread = worker_of(process)
        (line,) = look_until(Standstills(tmp_path, scale=0.005), [process.pid], 1)
        status = Path(f"/proc/{process.pid}/task/{thread}/status").read_text()
        process.kill()
    (found,) = line["processes"]
    assert thread != process.pid
    assert [name for name, _, _ in found["frames"]][-1:] == (["train"] if how == "catches" else [])
    assert "SigPnd:\t0000000000000000\n" in status


def test_a_file_on_a_disk_is_no_page_whatever_its_name(tmp_path: Path) -> None:
    """The sampler must neither map nor cut it."""
    with open(tmp_path / standstill.PAGE_NAME, "w+b") as file:
        page = array("d", bytes(PAGE_BYTES))
        page[PID], page[DESCRIPTOR], page[PHASE], page[WORKER] = os.getpid(), file.fileno(), 2.0, -1
        file.write(page.tobytes())
        file.flush()
        found = Standstills(tmp_path, scale=0.0)
        found.look(time.monotonic(), [(os.getpid(), 0)], [os.getpid()], None)
    assert written(tmp_path) == []


def test_pages_of_workers_that_have_ended_are_closed(training: subprocess.Popen[str], tmp_path: Path) -> None:
    worker = worker_of(training)
    found = Standstills(tmp_path, scale=0.005)
    before = len(list(Path("/proc/self/fd").iterdir()))
    look_until(found, [training.pid, worker], 1)
    os.killpg(training.pid, signal.SIGKILL)
    training.wait()
    end_s = time.monotonic() + 20
    while procfs.start_ticks(worker, PROC) is not None and time.monotonic() < end_s:
        time.sleep(0.02)
    found.look(time.monotonic(), [], [], None)
    assert len(list(Path("/proc/self/fd").iterdir())) - before == 1, "the page of the training process"


def test_a_page_that_its_process_cuts_off_ends_no_sampler(tmp_path: Path) -> None:
    """The process may belong to another user. Of a mapped page, SIGBUS ended the sampler."""
    descriptor = os.memfd_create(standstill.PAGE_NAME)
    page = array("d", bytes(PAGE_BYTES))
    page[PID], page[DESCRIPTOR], page[PHASE], page[WORKER] = os.getpid(), descriptor, 2.0, -1
    os.write(descriptor, page.tobytes())
    found = Standstills(tmp_path, scale=0.0)
    found._follow(time.monotonic(), [(os.getpid(), 0)], [os.getpid()])
    assert len(found._pages) == 1
    os.ftruncate(descriptor, 0)
    found.look(time.monotonic(), [(os.getpid(), 0)], [os.getpid()], None)
    assert not found._pages
    os.close(descriptor)


def test_a_pause_no_longer_than_one_before_is_not_looked_at(tmp_path: Path) -> None:
    """A checkpoint after each epoch would fill the session."""
    command = [sys.executable, "-S", "-c", PAUSED.format(package=PACKAGE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        pid = worker_of(process)
        found = Standstills(tmp_path, scale=1.0)
        now_s, recording = time.monotonic(), [(pid, procfs.start_ticks(pid, PROC) or 0)]
        for later_s in (25.0, 85.0):
            found.look(now_s + later_s, recording, [pid], None)
            assert not written(tmp_path)
        found.look(now_s + 95.0, recording, [pid], None)
        assert len(written(tmp_path)) == 1
        process.kill()


def trains(*, rank: int = 0, world_size: int = 1, port: int = 0) -> subprocess.Popen[str]:
    """Start a process that trains; `go on` and `end` are told to it."""
    program = BESIDE.format(package=PACKAGE, rank=rank, world_size=world_size)
    environment = {**os.environ, "MASTER_PORT": str(port)}
    command = [sys.executable, "-S", "-c", program]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


BESIDE = """
import os, sys, time
sys.path.insert(0, {package!r})
from headrace.attach.record import open_step
assert open_step.install() is None
open_step.note_rank({rank}, {world_size})
open_step.wait_begun(0, 0, 0, time.monotonic())
open_step.step_begun(1, time.monotonic())
open_step.wait_begun(0, 0, 1, time.monotonic())
print(os.getpid(), flush=True)
for line in sys.stdin:
    open_step.step_begun(2, time.monotonic()) if line.strip() == "go on" else open_step.epoch_ended(time.monotonic())
"""


def test_a_training_that_goes_on_does_not_hide_one_that_stands_still(tmp_path: Path) -> None:
    with trains() as one, trains() as other:
        job = [worker_of(one), worker_of(other)]
        found, now_s = Standstills(tmp_path, scale=1.0), time.monotonic()
        recording = [(pid, procfs.start_ticks(pid, PROC) or 0) for pid in job]
        found.look(now_s, recording, job, None)
        told(other, "go on")
        while found._pages[job[1]].values()["steps"] < 2:
            time.sleep(0.01)
        stood_s = found._pages[job[0]].values()["since_s"]
        (line,) = looked_at(found, stood_s + 20.001, recording, job)
        assert [each["pid"] for each in line["processes"]] == [job[0]]
        assert line["beside"] == [job[1]] and not line["others"]

        one.kill()
        one.wait()
        now_s = stood_s + 22
        assert looked_at(found, now_s, recording, job)[-1]["kind"] == "standstill", "it may be the end of the command"
        assert {line["kind"] for line in looked_at(found, now_s + 15, recording, job)[1:]} >= {"standstill_over"}
        other.kill()


def looked_at(found: Standstills, now_s: float, recording: list[tuple[int, int]], job: list[int]) -> list[dict[str, Any]]:
    found.look(now_s, recording, job, None)
    return written(found.folder)


def test_ranks_of_one_job_stand_together_and_a_training_that_has_ended_its_epoch_is_left_out(tmp_path: Path) -> None:
    with trains(rank=0, world_size=2, port=29500) as zero, trains(rank=1, world_size=2, port=29500) as one, trains() as third:
        job = [worker_of(each) for each in (zero, one, third)]
        recording = [(pid, procfs.start_ticks(pid, PROC) or 0) for pid in job]
        found = Standstills(tmp_path, scale=1.0)
        found.look(time.monotonic(), recording, job, None)
        told(third, "end")
        while found._pages[job[2]].values()["phase"] != EPOCH_ENDED:
            time.sleep(0.01)
        (line,) = looked_at(found, time.monotonic() + 25, recording, job)
        assert [each["pid"] for each in line["processes"]] == job[:2] and line["beside"] == []
        for each in (zero, one, third):
            each.kill()


def test_standstills_of_a_session_are_bounded(
    training: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = worker_of(training)
    monkeypatch.setattr(standstill, "MOST_STANDSTILLS", 1)
    found = Standstills(tmp_path, scale=0.02)
    look_until(found, [training.pid, worker], 2)
    told(training, "go on")
    before = look_until(found, [training.pid, worker], 1, "standstill_over")
    found.look(time.monotonic() + 1000, [], [training.pid, worker], None)
    assert written(tmp_path) == before


def test_training_processes_are_looked_at_before_others(
    training: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = worker_of(training)
    monkeypatch.setattr(standstill, "MOST_PROCESSES", 1)
    (line,) = look_until(Standstills(tmp_path, scale=0.02), [os.getpid(), worker, training.pid], 1)
    assert [one["pid"] for one in line["processes"]] == [training.pid]


def test_what_ended_children_used_counts() -> None:
    child = "[sys.executable, '-S', '-c', 'sum(range(10**7))']"
    script = f"import subprocess, sys; subprocess.run({child}); print(1, flush=True); input()"
    command = [sys.executable, "-S", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        worker_of(process)
        found = procfs.process_cpu(process.pid, PROC)
        process.kill()
    assert found is not None and found.children_s > 0.05


def test_bytes_of_a_jobs_own_sockets_count_and_not_those_of_the_machine() -> None:
    """The machine's traffic once hid each hang beside another program's download."""
    receiver, sender = socket.create_server(("127.0.0.1", 0)), socket.socket()
    with receiver, sender:
        sender.connect(receiver.getsockname())
        connection, _ = receiver.accept()
        with connection:
            mine, none = SocketTraffic(), SocketTraffic()
            with subprocess.Popen(["sleep", "60"], close_fds=True) as other:
                assert mine.moved([os.getpid()], PROC, behind=False) == none.moved([other.pid], PROC, behind=False) == 0
                sender.sendall(bytes(100_000))
                left = 100_000
                while left:
                    left -= len(connection.recv(left))
                assert none.moved([other.pid], PROC, behind=False) == 0
                assert 100_000 <= mine.moved([os.getpid()], PROC, behind=False) <= 210_000, "both ends are of this process"
                other.kill()


@pytest.mark.parametrize("reason", ["behind", "refused", "another namespace", "a new socket"])
def test_the_machines_traffic_counts_where_a_jobs_own_is_not_known(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter((1_000, 6_000))
    monkeypatch.setattr(procfs, "network_bytes", lambda _: next(counts))
    traffic, new = SocketTraffic(), socket.socket()
    with new:
        traffic.moved([os.getpid()], PROC, behind=False)
        if reason == "refused":
            monkeypatch.setattr(sockets, "tcp_bytes", lambda: None)
        if reason == "another namespace":
            monkeypatch.setattr(sockets, "link_target", lambda path: path)
        if reason == "a new socket":
            new.bind(("127.0.0.1", 0))
            new.listen()
        assert traffic.moved([os.getpid()], PROC, behind=reason == "behind") == 5_000


def test_a_wait_for_a_socket_is_told_from_one_for_a_terminal() -> None:
    script = "import socket; one, two = socket.socketpair(); {}; print(1, flush=True); {}"
    tcp = "server = socket.create_server(('127.0.0.1', 0)); one = socket.create_connection(server.getsockname())"
    command = [sys.executable, "-S", "-c", script.format(tcp, "one.recv(1)")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        worker_of(process)
        end_s = time.monotonic() + 5
        while not (found := standstill._waits_in(f"/proc/{process.pid}")) and time.monotonic() < end_s:
            time.sleep(0.02)
        process.kill()
    if not found:
        pytest.skip("untested: this kernel does not say what a process waits in")
    assert found.startswith("sk_")


@pytest.mark.parametrize(
    "handler",
    [
        pytest.param(f"import signal; signal.signal({int(SIGNAL)}, lambda *_: None)", id="of the script"),
        pytest.param(f"import faulthandler; faulthandler.register({int(SIGNAL)})", id="of native code"),
    ],
)
def test_a_handler_that_is_there_stays(handler: str) -> None:
    script = (
        f"import sys; sys.path.insert(0, {PACKAGE!r})\n{handler}\n"
        "from headrace.attach.record import open_step\nprint(open_step.install())\n"
    )
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"the script or a library has a handler for signal {int(SIGNAL)}\n"


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
            ("step", "/work/train.py", 3),
            ("_worker_loop", "torch/utils/data/worker.py", 5),
            ("wait", "threading.py", 331),
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


def test_a_line_of_a_file_that_a_process_names_takes_no_time_and_no_memory(tmp_path: Path) -> None:
    """The process may belong to another user, and names any path: the sampler read `/dev/zero` for ever."""
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "long").write_text("a" * 200_000 + "\nwith lock:\n")
    began_s = time.process_time()
    for name in ("/dev/zero", str(tmp_path / "pipe"), str(tmp_path / "sparse"), str(tmp_path), f"{tmp_path}/a\0b"):
        assert lock_name(name, 1) is None
    assert lock_name(str(tmp_path / "long"), 1) is None
    assert lock_name(str(tmp_path / "long"), 2) == "lock"
    assert lock_name(str(tmp_path / "long"), 0) is None and lock_name(str(tmp_path / "long"), 9) is None
    assert parse_stack(f'  File "/x.py", line {"9" * 5000} in f\n')["frames"] == []
    assert time.process_time() - began_s < 3
