"""Our launcher: start one process for each GPU of this machine, forward signals, and end all processes when one fails.

With it, plain `headrace train` uses all GPUs, waits for the last checkpoint after a signal, and returns the exit code of its
processes. torchrun works as well, and also covers several machines and restarts.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from headrace.errors import UsageError
from headrace.system.nvml import find_driver
from headrace.training.distributed.ranks import SPAWNED

__all__ = ["rank_count", "run_processes"]

POLL_S = 0.05
GRACE_S = 20.0  # time for the other processes to end after one has failed
FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


def rank_count(wanted: int | None, device: str | None) -> int:
    """Return how many ranks this machine runs: `wanted`, else one for each visible GPU. Raises UsageError."""
    if wanted is not None:
        if wanted < 1:
            raise UsageError(f"--processes must be at least 1, not {wanted}")
        return wanted
    if device not in (None, "cuda"):
        return 1
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return max(1, len([entry for entry in visible.split(",") if entry.strip() not in ("", "-1")]))
    driver, _ = find_driver()
    return max(1, len(driver.gpus)) if driver else 1


def run_processes(count: int, arguments: Sequence[str]) -> tuple[int, str]:
    """Run `python -m headrace ARGUMENTS` in `count` processes, as ranks of one run; return (exit code, stdout of rank 0).

    The exit code is that of the first process that failed, else 0.
    """
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        SPAWNED: "1",
    }
    command = [sys.executable, "-m", "headrace", *arguments]
    processes: list[subprocess.Popen[str]] = []
    before = {number: signal.signal(number, lambda n, f: _forward(processes, n, f)) for number in FORWARDED}
    try:
        for rank in range(count):
            process = subprocess.Popen(
                command,
                env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # else Ctrl-C would reach them twice: from the terminal and from us
            )
            processes.append(process)  # before the next start: a signal must reach every process
        code = _wait(processes)
        assert processes[0].stdout is not None
        return code, processes[0].stdout.read()
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _forward(processes: list[subprocess.Popen[str]], number: int, frame: FrameType | None) -> None:
    for process in processes:
        process.send_signal(number)


def _wait(processes: list[subprocess.Popen[str]]) -> int:
    """Wait for all processes. Once one has failed, the others get GRACE_S to end, and are then killed."""
    failed_s: float | None = None
    code = 0
    while True:
        codes = [process.poll() for process in processes]
        if code == 0:
            code = next((one for one in codes if one), 0)
        if all(one is not None for one in codes):
            return code if code >= 0 else 128 - code
        # An exit code of 128 + signal is a requested stop: the others stop by themselves, each after its checkpoint.
        if code != 0 and code < 128:
            if failed_s is None:  # the others may be waiting for the one that failed
                failed_s = time.monotonic()
                _forward(processes, signal.SIGTERM, None)
            elif time.monotonic() - failed_s > GRACE_S:
                for process in processes:
                    process.kill()
        time.sleep(POLL_S)
