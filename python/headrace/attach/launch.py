"""Start the user's command, unmodified, with hooks in every Python process below it."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from headrace.attach.machine import procfs
from headrace.attach.record.load_hooks import HOOKS_VARIABLE, SESSION_VARIABLE
from headrace.errors import CommandError, UsageError

__all__ = ["GROUP_VARIABLE", "SITE_FOLDER", "FinishedCommand", "attached_environment", "attached_path", "spawn"]

SITE_FOLDER = Path(__file__).parent / "site"

PROC = Path("/proc")
PATIENCE_S = 10.0
"""Send SIGKILL to the command if it still runs this long after SIGTERM."""

GROUP_VARIABLE = "HEADRACE_GROUP_SIGNALS"
"""Environment variable: `1` where signals are sent to all processes of a group, as a container's first process sends them."""

ASKED_EACH_S = 0.1
"""Ask whether a command has done what it was for so often."""

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class FinishedCommand:
    """The exit code and times of a command that has ended.

    `returncode`: negative for a signal, as in `subprocess`. `started_s`, `ended_s`: monotonic seconds. `timed_out`: the time
    limit stopped the command. `stopped_by`: the first signal that asked this process to stop meanwhile (Ctrl-C), or None.
    """

    command: tuple[str, ...]
    returncode: int
    pid: int
    started_s: float
    ended_s: float
    timed_out: bool
    stopped_by: int | None = None

    @property
    def exit_code(self) -> int:
        """The exit code that a shell reports: 128 + n if signal n ended the command."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode


def attached_environment(
    session_dir: Path | None, hooks: Sequence[str], env: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return environment variables under which each Python process installs `hooks`: PYTHONPATH, and the hooks' names."""
    environment = {**os.environ, **(env or {})}
    environment["PYTHONPATH"] = attached_path(environment.get("PYTHONPATH"))
    # A command started below another attached one (`diagnose -- headrace run -- …`) keeps the outer one's hooks.
    outer = [name for name in environment.get(HOOKS_VARIABLE, "").split(",") if name and name not in hooks]
    environment[HOOKS_VARIABLE] = ",".join([*hooks, *outer])
    if session_dir is not None:
        environment[SESSION_VARIABLE] = str(session_dir)
    return environment


def attached_path(given: str | None) -> str:
    """Return PYTHONPATH with the site folder in front; `given` is its value so far, or None.

    Everything else stays as it is: an empty entry (`PYTHONPATH=:`) means the working directory, while an empty value means
    none. `site/sitecustomize.py` removes the site folder from `sys.path`, so the script imports what it imports without us.
    """
    if given and str(SITE_FOLDER) in given.split(os.pathsep):
        return given
    return f"{SITE_FOLDER}{os.pathsep}{given}" if given else str(SITE_FOLDER)


def spawn(
    command: Sequence[str],
    *,
    session_dir: Path | None = None,
    hooks: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    stdout: IO[bytes] | IO[str] | int | None = None,
    stderr: IO[bytes] | IO[str] | int | None = None,
    on_start: Callable[[subprocess.Popen[bytes]], None] | None = None,
    time_limit_s: float | None = None,
    has_ended: Callable[[], bool] | None = None,
) -> FinishedCommand:
    """Run `command` to its end, with `hooks` (names of modules with an `install()`) in each Python process that it starts.

    `session_dir`: the session that the hooks write to. `env`: further environment variables. `stdout`, `stderr`: as in
    `subprocess.Popen` (default: inherited, like stdin). `on_start` is called with the running process. `time_limit_s`: send
    SIGTERM, then SIGKILL, after this many seconds (default: never). `has_ended`: asked a few times a second; send SIGKILL to
    all processes of the command when it says so, or at the time limit, so that nothing of the script runs any more. SIGTERM,
    SIGHUP, SIGUSR1 and SIGUSR2 are passed on to the command; SIGINT too, unless the terminal has sent it to both. Raise
    `UsageError` for an empty command, `CommandError` if it cannot be started.
    """
    if not command:
        raise UsageError("no command given", hint="write it after --, for example: -- python train.py")
    if shutil.which(command[0]) is None:
        raise _not_a_command(command)
    started_s = time.monotonic()
    try:
        child = subprocess.Popen(
            list(command), env=attached_environment(session_dir, hooks, env), stdout=stdout, stderr=stderr, bufsize=0
        )
    except OSError as error:
        raise CommandError(f"cannot start {command[0]!r}: {error.strerror or error}") from error
    with _forward_signals(child) as received:
        if on_start is not None:
            on_start(child)
        returncode, timed_out = _wait(child, time_limit_s) if has_ended is None else _wait_until(child, time_limit_s, has_ended)
    stopped_by = next((number for number in received if number in STOPPING), None)
    return FinishedCommand(tuple(command), returncode, child.pid, started_s, time.monotonic(), timed_out, stopped_by)


def _not_a_command(command: Sequence[str]) -> CommandError:
    """Return the error for a first word that cannot be started. Usually it is a script without `python` before it."""
    path = Path(command[0])
    what = "is a folder" if path.is_dir() else "is not executable" if path.exists() else "was not found"
    hint = "write it as you would type it in a shell, after --"
    if path.suffix == ".py":
        hint = f"a script is started by Python: -- {shlex.join(['python', *command])}"
    return CommandError(f"the command {command[0]!r} {what}", hint=hint)


def _wait(child: subprocess.Popen[bytes], time_limit_s: float | None) -> tuple[int, bool]:
    """Return the exit code, and whether the time limit stopped the command.

    The time limit stops all processes of the command: the child of a shell would outlive the shell.
    """
    try:
        return child.wait(time_limit_s), False
    except subprocess.TimeoutExpired:
        family = {pid: procfs.start_ticks(pid, PROC) for pid in procfs.descendants(child.pid, PROC)}
        child.terminate()
    try:
        code = child.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        code = child.wait()
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = [pid for pid, started in family.items() if started is not None and procfs.start_ticks(pid, PROC) == started]
        if not left:
            break
        for pid in left:
            with suppress(OSError):
                os.kill(pid, number)
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s and any(procfs.start_ticks(pid, PROC) == family[pid] for pid in left):
            time.sleep(0.1)
    return code, True


def _wait_until(child: subprocess.Popen[bytes], time_limit_s: float | None, has_ended: Callable[[], bool]) -> tuple[int, bool]:
    """Return the exit code, and whether the time limit ended the command, which SIGKILL does."""
    end_s = math.inf if time_limit_s is None else time.monotonic() + time_limit_s
    while time.monotonic() < end_s and not has_ended():
        with suppress(subprocess.TimeoutExpired):
            return child.wait(ASKED_EACH_S), False
    family = {pid: procfs.start_ticks(pid, PROC) for pid in procfs.descendants(child.pid, PROC)}
    child.kill()  # first: it would act on the end of the others
    for pid, started in family.items():
        # Those that clean up behind the others end by themselves after them.
        if started is not None and procfs.start_ticks(pid, PROC) == started and not _cleans_up(pid):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    return child.wait(), not has_ended()


def _cleans_up(pid: int) -> bool:
    """Return whether a process removes the shared memory that others leave."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
    return b"multiprocessing.resource_tracker" in words or b"torch_shm_manager" in words


@contextmanager
def _forward_signals(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Pass signals on to the child, and yield the list of those that came.

    Outside the main thread none come here, because Python allows no handlers there.
    """
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if os.environ.get(GROUP_VARIABLE) == "1" and number in FORWARDED and os.getpgid(child.pid) == os.getpgrp():
            return  # whoever sent it has sent it to the command, too
        if number != signal.SIGINT or not _in_terminal_foreground():
            child.send_signal(number)

    with ExitStack() as stack:
        for number in (*FORWARDED, signal.SIGINT):
            try:
                previous = signal.signal(number, forward)
            except ValueError:  # not the main thread
                break
            stack.callback(signal.signal, number, previous)
        yield received


def _in_terminal_foreground() -> bool:
    """Return whether a Ctrl-C in the terminal reaches the child directly, because it is in the foreground process group."""
    try:
        with open("/dev/tty") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
