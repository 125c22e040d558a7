"""The first process of a container: it starts one command, hands signals on, collects orphans, and keeps the end of stderr.

A container's first process gets SIGTERM when the job is stopped or a spot machine is taken, and nobody else does. Without a
handler the kernel ignores the signal for process 1, and a command under it never hears of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

__all__ = ["Ended", "run_first"]

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

KEPT_BYTES = 16_000
"""Keep the last this many bytes of the command's stderr for the failure file."""

LEFT_OVER_S = 5.0
"""Seconds between SIGTERM and SIGKILL for processes that the command left behind."""


class Ended:
    """How the command ended. code: as in a shell, 128 + signal number if killed. stderr: its end. signals: those passed on."""

    def __init__(self, code: int, stderr: str, signals: Sequence[int]) -> None:
        self.code, self.stderr, self.signals = code, stderr, tuple(signals)


def run_first(command: Sequence[str], environment: Mapping[str, str], *, folder: Path | None = None) -> Ended:
    """Run the command to its end and return how it ended. Signals that arrive are passed on to all processes of the command.

    folder: the current folder of the command (default: that of this process). Raises `OSError` if it cannot be started.
    """
    received: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        child = subprocess.Popen(command, env=dict(environment), cwd=folder, stderr=subprocess.PIPE, start_new_session=True)
        if received:  # it came while the command was being started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, received[-1])
        assert child.stderr is not None
        tail = _Tail(child.stderr)
        code = _collect(child.pid)
        child.returncode = code  # collected here, not by subprocess
        _end_left_over(child.pid)
        tail.join()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return Ended(128 - code if code < 0 else code, tail.text(), received)


def _collect(pid: int) -> int:
    """Wait for all children, the adopted ones too, until the command has ended; return its code, negative for a signal."""
    while True:
        try:
            ended, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return 1  # somebody else has collected the command
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _end_left_over(group: int) -> None:
    """End the processes that the command left in its group, and collect all that can be collected."""
    end_s = time.monotonic() + LEFT_OVER_S
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        while time.monotonic() < end_s:
            _collect_ended()
            os.killpg(group, 0)
            time.sleep(0.02)
        os.killpg(group, signal.SIGKILL)
    _collect_ended()


def _collect_ended() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class _Tail:
    """Copies the command's stderr to our own and keeps its end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._kept = stream, b""
        self._thread = threading.Thread(target=self._run, name="headrace-stderr", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        out = sys.__stderr__
        with self._stream:
            while data := os.read(self._stream.fileno(), 1 << 16):
                self._kept = (self._kept + data)[-KEPT_BYTES:]
                if out is not None:
                    with contextlib.suppress(OSError, ValueError):
                        out.buffer.write(data)
                        out.flush()

    def join(self) -> None:
        """Wait for the end of stderr; a process outside the group may hold it open, which ends the wait."""
        self._thread.join(LEFT_OVER_S)

    def text(self) -> str:
        """Return the end of stderr as text."""
        return self._kept.decode(errors="replace")
