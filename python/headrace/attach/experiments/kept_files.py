"""Keeps the user's files while a run is made only to measure: the run ends before it changes a file that was there before.

The hook is installed as the interpreter starts (`sys:headrace.attach.experiments.kept_files`), in each Python process of the
command. It sees what Python code opens, renames, removes and truncates, of any library. Compiled code that opens a file by its
path is not seen, nor are other programs that the script starts.

A run ends in one way: `end` writes the reason to `ENDED` in the session's folder and waits. Whoever started the command sees
the file (`has_ended`) and kills all its processes at once: no rank waits for another, and no `atexit` or `finally` saves.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from headrace.attach.record.load_hooks import SESSION_VARIABLE

__all__ = ["ENDED", "before_end", "end", "has_ended", "install", "reason", "wait_for_end"]

ENDED = "ended.txt"
"""Name of the file in the session's folder that ends the run. It holds the reason, or nothing if the run is complete."""

PATIENCE_S = 30.0
"""A process that nobody kills after this time ends itself."""

WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC

before_end: list[Callable[[], None]] = []
"""Functions that write what this process has measured, before the run ends."""

_made: set[str] = set()
"""Real paths of files and folders that this process made. What lies in such a folder was not there before either."""


def install() -> None:
    """End the run from now on before this process changes a file that it did not make. Raise `KeyError` without a session."""
    if not _made:
        _made.add(os.path.realpath(os.environ[SESSION_VARIABLE]))
        sys.addaudithook(_seen)


def end(why: str = "") -> NoReturn:
    """End the whole run here and now: nothing of the script runs in this thread any more. why: where it ends early."""
    for write in before_end:
        with suppress(Exception):
            write()
    ended = Path(os.environ[SESSION_VARIABLE], ENDED)
    with suppress(OSError):
        if not ended.exists():  # the first reason counts
            written = ended.with_name(f"{ENDED}-{os.getpid()}")
            written.write_text(why, encoding="utf-8", errors="replace")
            written.replace(ended)
    wait_for_end()


def wait_for_end() -> NoReturn:
    """Wait until all processes of the run are killed."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        time.sleep(0.1)
    os._exit(0)


def has_ended(folder: Path) -> bool:
    """Return whether a process of the run whose session is in `folder` has called `end`."""
    return (folder / ENDED).exists()


def reason(folder: Path) -> str:
    """Return why the run ended early, or an empty text."""
    try:
        return (folder / ENDED).read_text(encoding="utf-8")
    except OSError:
        return ""


def _seen(event: str, args: tuple[Any, ...]) -> None:
    check = _CHECKS.get(event)
    if check is None:
        return
    try:
        changed = check(*args)
    except Exception:  # a path that Python itself is about to refuse
        return
    if changed is not None:
        end(f"the script was about to change {changed}, which was there before (let it write to a new folder)")


def _changed_by_open(path: Any, _: Any, flags: int) -> str | None:
    if isinstance(path, int) or not flags & (WRITES | os.O_CREAT):
        return None
    place = os.path.realpath(os.fsdecode(path))
    try:
        found = os.stat(place)  # noqa: PTH116 -- each open of the script comes here
    except FileNotFoundError:
        _made.add(place)
        return None
    if not stat.S_ISREG(found.st_mode) or not flags & WRITES or flags & os.O_EXCL:
        return None
    if found.st_size == 0:  # a lock, or one that has nothing to lose
        _made.add(place)
    return None if _is_made(place) else place


def _changed_by_remove(path: Any, folder: int = -1) -> str | None:
    return _there_before(_place(path, folder))


def _changed_by_rename(old: Any, new: Any, old_folder: int = -1, new_folder: int = -1) -> str | None:
    target = _place(new, new_folder)
    changed = _there_before(_place(old, old_folder)) or (None if target.endswith(".pyc") else _there_before(target))
    if changed is None:
        _made.add(target)
    return changed


def _changed_by_truncate(path: Any, _: int) -> str | None:
    return None if isinstance(path, int) else _there_before(os.path.realpath(os.fsdecode(path)))


def _note_folder(path: Any, _: int, folder: int = -1) -> str | None:
    place = _place(path, folder)
    if not os.path.lexists(place):
        _made.add(place)
    return None


def _changed_by_database(path: Any) -> str | None:
    return _changed_by_open(path, None, os.O_RDWR)


_CHECKS: dict[str, Callable[..., str | None]] = {
    "open": _changed_by_open,
    "os.remove": _changed_by_remove,
    "os.rename": _changed_by_rename,
    "os.truncate": _changed_by_truncate,
    "os.mkdir": _note_folder,
    "sqlite3.connect": _changed_by_database,
}


def _place(path: Any, folder: int) -> str:
    """Return the real path of what a name stands for; of a link, that of the link itself. folder: a descriptor, or -1."""
    text = os.fsdecode(path)
    if folder >= 0:
        text = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)  # noqa: PTH115, PTH118
    parent, name = os.path.split(text.rstrip("/"))
    return os.path.join(os.path.realpath(parent), name)  # noqa: PTH118


def _there_before(place: str) -> str | None:
    """Return the file or link at this path, or one in the folder at this path, that this process did not make."""
    try:
        mode = os.lstat(place).st_mode
    except FileNotFoundError:
        return None
    if _is_made(place):
        return None
    if stat.S_ISDIR(mode):
        inside = (_there_before(f"{place}/{name}") for name in os.listdir(place))  # noqa: PTH208
        return next((found for found in inside if found is not None), None)
    return place if stat.S_ISREG(mode) or stat.S_ISLNK(mode) else None


def _is_made(place: str) -> bool:
    while place not in _made:
        place, last = os.path.dirname(place), place  # noqa: PTH120
        if place == last:
            return False
    return True
