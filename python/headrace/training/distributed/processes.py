"""Our launcher: start one process for each GPU of this machine, forward signals, and end all processes when one fails.

With it, plain `headrace train` uses all GPUs, waits for the last checkpoint after a signal, and returns the exit code of its
processes. torchrun works as well, and also covers several machines and restarts.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from headrace.errors import UsageError
from headrace.system.files.scratch_folder import scratch_folder
from headrace.system.hardware.nvml import find_driver
from headrace.training.distributed.ranks import SECRET, SPAWNED

__all__ = ["rank_count", "run_processes"]

LOOPBACK = "lo"
POLL_S = 0.05
RANKS_ANYWHERE = 16  # ranks that a machine of any size may run: each takes the memory of a Python with torch
GRACE_S = 20.0  # seconds that the other processes have to end after one has failed
FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


def rank_count(wanted: int | None, device: str | None) -> int:
    """Return how many ranks this machine runs: `wanted`, else one for each visible GPU.

    Raises UsageError if `wanted` < 1, or far more than the machine has cores: a stranger's file of options may ask for any.
    """
    if wanted is not None:
        most = max(RANKS_ANYWHERE, os.cpu_count() or 1)
        if not 1 <= wanted <= most:
            raise UsageError(f"--processes must be from 1 to {most} on this machine, not {wanted}", hint="one for each GPU")
        return wanted
    if device not in (None, "cuda"):
        return 1
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return max(1, len([entry for entry in visible.split(",") if entry.strip() not in ("", "-1")]))
    driver, _ = find_driver()
    return max(1, len(driver.gpus)) if driver else 1


def run_processes(count: int, command: Sequence[str]) -> tuple[int, str]:
    """Run `command` in `count` processes, as ranks of one run on this machine; return (exit code, stdout of rank 0).

    The ranks meet in a folder that only this user may read, and talk over the loopback interface only. The exit code is that
    of the first process that failed, else 0.

        code, printed = run_processes(2, own_module("headrace", "train", "--config", "run.toml"))
    """
    with scratch_folder("ranks") as meeting:
        (meeting / SECRET).write_bytes(secrets.token_bytes(32))
        own = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), SPAWNED: str(meeting)}
        # Without these names gloo and NCCL listen on the address of the network.
        own |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), LOOPBACK)
        return _run_ranks(count, command, os.environ | own)


def _run_ranks(count: int, command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    processes: list[subprocess.Popen[str]] = []
    before = {number: signal.signal(number, lambda n, f: _forward(processes, n, f)) for number in FORWARDED}
    try:
        for rank in range(count):
            process = subprocess.Popen(
                command,
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
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
