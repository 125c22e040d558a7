"""Run one command of the demo as a user would, show its output, and return its JSON document."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import CommandError
from headrace.system.processes.own_python import own_module

__all__ = ["headrace", "python", "run"]

TIMEOUT_S = 900.0
TAIL_LINES = 12


def headrace(verb: str, *arguments: str | Path) -> list[str]:
    """Return the command line of `headrace VERB --json …`, run by this Python interpreter."""
    return own_module("headrace", verb, "--json", *map(str, arguments))


def python(script: Path, *arguments: str | Path) -> list[str]:
    """Return the command line that runs a script by this Python interpreter."""
    return [sys.executable, str(script), *map(str, arguments)]


def typed_command(command: list[str]) -> str:
    """Return `command` as a user would type it: `headrace …` or `python …`, without paths and `--json`."""
    own = own_module("headrace")
    plain = ["python", *command[1:]]
    if command[: len(own)] == own:
        plain = ["headrace", *(word for word in command[len(own) :] if word != "--json")]
    return shlex.join("python" if word == sys.executable else word for word in plain)


def run(command: list[str], *, show: Callable[[str], None], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run `command` to its end and return the JSON document it printed, or {} without one.

    `show` receives every line of stderr, and those of stdout if that is not JSON. Raises CommandError with the last lines if
    the command fails or takes more than 15 minutes. No process of it is left running.
    """
    tail: deque[str] = deque(maxlen=TAIL_LINES)

    def pass_on(line: str) -> None:
        tail.append(line)
        show(line)

    # A process group of its own, so that its worker processes can be stopped with it.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1"},
    )
    printed: list[str] = []
    reader = threading.Thread(target=_drain, args=(process.stdout, printed.append if "--json" in command else pass_on))
    watchdog = threading.Timer(TIMEOUT_S, _stop, (process,))
    reader.start()
    watchdog.start()
    try:
        _drain(process.stderr, pass_on)
        code = process.wait()
    finally:
        watchdog.cancel()
        _stop(process)
        reader.join()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    if code != 0:
        raise CommandError(f"`{typed_command(command)}` failed with exit code {code}; its last lines:\n  " + "\n  ".join(tail))
    return _document(printed, command)


def _drain(stream: Any, take: Callable[[str], None]) -> None:
    for line in stream:
        take(line.rstrip("\n"))


def _stop(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _document(printed: list[str], command: list[str]) -> dict[str, Any]:
    if not printed:
        return {}
    try:
        document = json.loads("\n".join(printed))
    except ValueError as error:
        raise CommandError(f"`{typed_command(command)}` did not print one JSON document: {error}") from error
    return dict(document)
