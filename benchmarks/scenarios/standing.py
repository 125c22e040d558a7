"""Jobs that stand still after a while, jobs that die, and healthy jobs that look like the former for minutes."""

from __future__ import annotations

import argparse
import os
import queue
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from job import Job, RealModel, burn, sleeping

FROM = 400
"""The item from which on the fault acts: steps come before."""


def _until(fault: Callable[[], Any]) -> Callable[[int], Any]:
    """An item that is quick, and from item `FROM` on meets the fault."""

    def make(index: int) -> Any:
        if index >= FROM:
            fault()
        return torch.zeros(16)

    return make


def hang_lock(options: argparse.Namespace) -> Job:
    """28: a lock that another thread held when the workers were forked."""
    cache_lock = threading.Lock()

    def fault() -> None:
        with cache_lock:
            pass

    cache_lock.acquire()
    return Job(num_workers=2, sample=_until(fault), compute=sleeping(0.02))


def hang_store(options: argparse.Namespace) -> Job:
    """28: a store that accepts the connection and does not answer."""
    server = socket.create_server(("127.0.0.1", 0))

    def fault() -> None:
        with socket.create_connection(server.getsockname()) as connection:
            connection.recv(1)

    return Job(num_workers=2, sample=_until(fault), compute=sleeping(0.02))


def hang_queue(options: argparse.Namespace) -> Job:
    """28: a queue of logged values that nobody empties any more."""
    logged: queue.Queue[int] = queue.Queue(50)

    def compute(batch: Any, step: int) -> None:
        time.sleep(0.02)
        logged.put(step)

    return Job(num_workers=1, compute=compute)


def hang_rank(options: argparse.Namespace) -> Job:
    """28: two ranks; rank 1 waits for a tracker that is gone, and rank 0 in all-reduce for rank 1."""
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    gone = threading.Event()

    def compute(batch: Any, step: int) -> None:
        time.sleep(0.02)
        if step == 60 and torch.distributed.get_rank() == 1:
            gone.wait()
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return Job(num_workers=1, compute=compute, model=model)


def killed_worker(options: argparse.Namespace) -> Job:
    """29: a worker is killed in the middle of the training."""

    def fault() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return Job(num_workers=2, sample=_until(fault), compute=sleeping(0.02))


def bad_record(options: argparse.Namespace) -> Job:
    """29: an item raises in the middle of the training."""

    def fault() -> None:
        raise ValueError("record 400 has no label")

    return Job(num_workers=2, sample=_until(fault), compute=sleeping(0.02))


def nan_loss(options: argparse.Namespace) -> Job:
    """29: the loss is NaN from step 50 on, and the training goes on."""
    layer = torch.nn.Linear(16, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)

    def compute(batch: Any, step: int) -> None:
        time.sleep(0.02)
        optimizer.zero_grad()
        loss = layer(batch).square().mean() * (float("nan") if step >= 50 else 1.0)
        loss.backward()
        optimizer.step()
        float(loss)

    return Job(num_workers=1, compute=compute)


def _pausing(pause: Callable[[], None]) -> Callable[[Any, int], None]:
    """Real training steps, and one long pause in the middle."""
    model = RealModel(0.02)

    def compute(batch: Any, step: int) -> None:
        model(batch, step)
        if step == 150:
            pause()

    return compute


def _slowly(seconds: float) -> None:
    """Work for that long with a seventh of a core, as a validation does whose images come slowly."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        burn(0.01)
        time.sleep(0.06)


def long_validation(options: argparse.Namespace) -> Job:
    """30, healthy: a validation of three minutes between two steps."""

    def validate() -> None:
        _slowly(180.0)

    return Job(num_workers=1, compute=_pausing(validate))


def long_first_step(options: argparse.Namespace) -> Job:
    """30, healthy: the first step compiles for three minutes."""
    model = RealModel(0.02)

    def compute(batch: Any, step: int) -> None:
        if step == 0:
            _slowly(180.0)
        model(batch, step)

    return Job(num_workers=1, compute=compute, steps=200)


def slow_checkpoint(options: argparse.Namespace) -> Job:
    """30, healthy: a checkpoint is written for two minutes, 200 kB a second."""

    def save() -> None:
        with tempfile.TemporaryFile() as file:
            for _ in range(600):
                file.write(bytes(40_000))
                file.flush()
                os.fsync(file.fileno())
                time.sleep(0.2)

    return Job(num_workers=1, compute=_pausing(save))


def cold_store(options: argparse.Namespace) -> Job:
    """30, healthy: the first batches come from a store that sends 300 kB a second to each worker, one in half a minute."""
    server = socket.create_server(("127.0.0.1", 0), backlog=64)

    def serve() -> None:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=send, args=(connection,), daemon=True).start()

    def send(connection: socket.socket) -> None:
        with connection:
            for _ in range(40):
                connection.sendall(bytes(30_000))
                time.sleep(0.1)

    threading.Thread(target=serve, daemon=True).start()

    def make(index: int) -> Any:
        if index < 64:
            with socket.create_connection(server.getsockname()) as connection:
                while connection.recv(1 << 16):
                    pass
        return torch.zeros(16)

    return Job(num_workers=2, sample=make, compute=sleeping(0.02), steps=250)
