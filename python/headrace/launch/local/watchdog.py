"""Ends the hosts of a local job whose launcher was killed: `python -m headrace.launch.local.watchdog MARKER` behind a pipe.

The launcher holds the other end. SIGKILL leaves it no time to end its hosts, but closes the pipe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from headrace.system.hardware.counter_files import read_counters
from headrace.system.processes.own_python import own_module

__all__ = ["MARKER", "Watchdog", "kill_marked", "main"]

MARKER = "HEADRACE_LOCAL_JOB"
"""Environment variable of all processes of a host, by which headrace finds them when it has to kill them."""

PROC = Path("/proc")

ROUNDS, PAUSE_S = 3, 0.2
"""How often to look for marked processes, and seconds between: one may start another while it is being looked for."""


class Watchdog:
    """Context manager: a second process that kills a job's hosts if this process dies. marker: start of the hosts' markers."""

    def __init__(self, marker: str) -> None:
        # A session of its own: neither Ctrl-C nor the end of the terminal reaches it.
        self._process = subprocess.Popen(
            own_module("headrace.launch.local.watchdog", marker),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def kill_marked(marker: str) -> int:
    """Kill every process whose marker begins with this text; return how many there were."""
    wanted = f"{MARKER}={marker}".encode()
    found = 0
    for place in PROC.iterdir():
        with contextlib.suppress(OSError, ValueError):
            if _is_ours(place) and any(word.startswith(wanted) for word in (place / "environ").read_bytes().split(b"\0")):
                os.kill(int(place.name), signal.SIGKILL)
                found += 1
    return found


def _is_ours(process: Path) -> bool:
    """Return whether the process runs as this user. Another user's process can block whoever reads its environment.

    The owner of its files in /proc does not tell: root owns them where a process hides its memory.
    """
    fields = (read_counters(process / "status") or "").partition("\nUid:")[2].split(maxsplit=1)
    return bool(fields) and int(fields[0]) == os.getuid()


def main() -> int:
    """Wait until standard input closes (the launcher ended), then kill the processes with the marker. Return 0."""
    marker = sys.argv[1]
    while os.read(0, 1024):
        pass
    for _ in range(ROUNDS):
        if not kill_marked(marker):
            break
        time.sleep(PAUSE_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
