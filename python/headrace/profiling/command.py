"""Run a command under the hooks and the sampler, which record its session in a folder."""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from headrace.attach import sampler
from headrace.attach.launch import FinishedCommand, spawn
from headrace.errors import CommandError, SessionError, UsageError
from headrace.session.model import SESSION_VERSION
from headrace.system.files.private_files import check_unnamed_folder, make_private_folder, private_opener
from headrace.system.text.redaction import redact_words

__all__ = [
    "HOOK",
    "HOOKS",
    "add_fact",
    "begin_session",
    "default_session_folder",
    "end_sampler",
    "end_session",
    "make_session_folder",
    "sessions_folder",
    "watch",
]

HOOK = "headrace.attach.torch_hooks"
RECOGNITION_HOOK = "headrace.accelerate.recognition_hook"
HOOKS = (HOOK, RECOGNITION_HOOK, "tensorflow:headrace.attach.batches.tensorflow_hooks")

SAMPLER_END_S = 3.0


def watch(
    command: Sequence[str],
    folder: Path,
    *,
    hooks: Sequence[str] = HOOKS,
    env: Mapping[str, str] | None = None,
    time_limit_s: float | None = None,
    log: IO[bytes] | None = None,
    has_ended: Callable[[], bool] | None = None,
) -> FinishedCommand:
    """Run `command` to its end and write its session to `folder`.

    `hooks`: modules that attach to the command's Python processes. `env`: further environment variables. `time_limit_s`:
    stop the command after this many seconds (default: never). `log`: file for the command's output (default: pass it on).
    `has_ended`: as in `spawn`.

    Raises `UsageError` when the folder already holds a session, `SessionError` when it cannot be written, `CommandError` when
    the command cannot be started. A folder that cannot be written any more while the command runs ends the recording only.
    """
    folder = folder.absolute()
    begin_session(folder, command)
    samplers: list[subprocess.Popen[bytes]] = []
    try:
        finished = spawn(
            command,
            session_dir=folder,
            hooks=hooks,
            env=env,
            time_limit_s=time_limit_s,
            has_ended=has_ended,
            stdout=log,
            stderr=None if log is None else subprocess.STDOUT,
            on_start=lambda child: samplers.append(sampler.start(folder, child.pid)),
        )
    except (CommandError, UsageError):  # the command never began, so there is no session
        with suppress(OSError):
            (folder / "launch.jsonl").unlink()
            folder.rmdir()
        raise
    finally:
        for process in samplers:
            end_sampler(process, patience_s=SAMPLER_END_S)
    with suppress(SessionError):  # on a full disk, the command's exit code and what was recorded are still worth having
        if finished.timed_out:
            add_fact(folder, "time_limit_s", time_limit_s)
        if finished.stopped_by is not None:
            add_fact(folder, "stopped_by", finished.stopped_by)
        end_session(folder, finished.returncode, finished.ended_s)
    return finished


def default_session_folder() -> Path:
    """Return the folder of a new session, named after the time: `headrace-sessions/2026-11-20-141205`.

    Of several in one second, the later ones get a number: `…-141205-2`. Raises `SessionError` as `sessions_folder`.
    """
    first = sessions_folder() / time.strftime("%Y-%m-%d-%H%M%S")
    return next(
        folder
        for number in itertools.count(1)
        if not (folder := first if number == 1 else first.with_name(f"{first.name}-{number}")).exists()
    )


def sessions_folder() -> Path:
    """Return the folder below the current one for sessions whose place the user has not named; it need not exist.

    Raises `SessionError` if it is a link, or another user's in a folder such as /tmp: the current folder may be a stranger's.
    """
    folder = Path("headrace-sessions")
    try:
        check_unnamed_folder(folder)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return folder


def make_session_folder(folder: Path) -> None:
    """Make the folder of a session, for its owner only. Raise `SessionError` if it cannot be made."""
    try:
        make_private_folder(folder)
    except OSError as error:
        raise _unwritable(folder, error) from error


def begin_session(folder: Path, command: Sequence[str]) -> None:
    """Make the folder and write the first line of a session, with the command less its secrets.

    Raises `UsageError` when the folder already holds a session, `SessionError` when it cannot be written.
    """
    make_session_folder(folder)
    if any(folder.glob("*.jsonl")):
        raise UsageError(f"{folder} already holds a session", hint="give another folder with --out, or remove that one")
    _write(
        folder,
        kind="session",
        version=SESSION_VERSION,
        command=redact_words(command),
        cwd=os.getcwd(),  # noqa: PTH109
        started_at=time.time(),
        monotonic_s=time.monotonic(),
    )


def end_session(folder: Path, code: int, ended_s: float) -> None:
    """Write the exit code of the command and its end on the monotonic clock, in seconds.

    Raises `SessionError` if the session folder cannot be written.
    """
    _write(folder, kind="exit", code=code, monotonic_s=ended_s)


def add_fact(folder: Path, name: str, value: Any) -> None:
    """Add a later measurement to the session. `Session.facts[name]` holds it.

    Raises `SessionError` if the session folder cannot be written.
    """
    _write(folder, kind="fact", name=name, value=value)


def _write(folder: Path, **line: Any) -> None:
    try:
        with open(folder / "launch.jsonl", "a", encoding="utf-8", opener=private_opener) as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> SessionError:
    hint = (
        "free some space, or give another folder with --out"
        if error.errno == errno.ENOSPC
        else "give another folder with --out"
    )
    return SessionError(f"cannot write the session {folder}: {error.strerror or error}", hint=hint)


def end_sampler(process: subprocess.Popen[bytes], *, patience_s: float) -> None:
    """Wait `patience_s` seconds for the sampler, which ends by itself after the process it follows; then tell it to end."""
    for ask, wait_s in ((process.terminate, patience_s), (process.kill, SAMPLER_END_S)):
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
            return
        ask()
    process.wait()
