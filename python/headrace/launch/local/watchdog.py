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

from headrace.system.processes.own_python import own_module

__all__ = ["MARKER", "Watchdog", "kill_marked", "main"]

MARKER = "HEADRACE_LOCAL_JOB"
"""Environment variable of all processes of a host, by which headrace finds them when it has to kill them."""

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
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if any(word.startswith(wanted) for word in (place / "environ").read_bytes().split(b"\0")):
                os.kill(int(place.name), signal.SIGKILL)
                found += 1
    return found


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
