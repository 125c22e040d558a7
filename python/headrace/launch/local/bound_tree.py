"""Start a command that sees a folder as `/opt/ml`, where the system lets a user have mounts of his own.

Scripts for SageMaker often have paths such as `/opt/ml/input/data/training` as constants. A user namespace with its own mounts
gives them this tree, and nobody else sees it. The process is replaced by the command: its number and its signals stay.
Where the system forbids such namespaces, the command is started without one and finds its tree by SAGEMAKER_BASE_DIR.

    python -P -m headrace.launch.local.bound_tree job/hosts/algo-1 python train.py
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.launch.in_container.container import BASE_VARIABLE, CONTAINER_BASE

__all__ = ["bind_tree", "main"]

NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000
"""CLONE_NEWNS and CLONE_NEWUSER of Linux."""

BIND, RECURSIVE, PRIVATE = 0x1000, 0x4000, 0x40000
"""MS_BIND, MS_REC and MS_PRIVATE of Linux."""


def main(words: Sequence[str]) -> int:
    """Bind the tree if that is possible, then become the command."""
    base, *command = words
    try:
        _try_in_child(Path(base))
        bind_tree(Path(base))
        os.environ[BASE_VARIABLE] = str(CONTAINER_BASE)
        os.chdir(CONTAINER_BASE / "tmp")
    except OSError as error:
        print(f"headrace: {CONTAINER_BASE} is {base} here, by {BASE_VARIABLE}: {error}", file=sys.stderr, flush=True)
    os.execvp(command[0], command)


def _try_in_child(base: Path) -> None:
    """Raise `OSError` where a child process cannot bind the tree: half of the steps take its user away."""
    if CONTAINER_BASE.is_dir() and any(CONTAINER_BASE.iterdir()):
        raise OSError(f"{CONTAINER_BASE} is there, and is not empty")  # a channel's data may lie in it
    child = os.fork()
    if child == 0:
        try:
            bind_tree(base)
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


def bind_tree(base: Path, at: Path = CONTAINER_BASE) -> None:
    """Let this process and its children see `base` at the path `at`. Raises `OSError` where the system does not allow it.

    If `at` does not exist, its parent is covered by a folder in memory that holds all that the parent holds, and `at`.
    """
    base = base.resolve(strict=True)
    user, group = os.getuid(), os.getgid()
    _call("unshare", ctypes.c_int(NEW_USER | NEW_MOUNTS))
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    _mount(None, Path("/"), PRIVATE | RECURSIVE)
    if at.is_dir():
        _mount(base, at, BIND | RECURSIVE)
        return
    cover = base.with_name(f".{base.name}-parent")
    cover.mkdir(exist_ok=True)
    _mount("tmpfs", cover, 0, kind="tmpfs")
    for entry in at.parent.iterdir():
        _repeat(entry, cover / entry.name)
    (cover / at.name).mkdir()
    _mount(base, cover / at.name, BIND)
    _mount(cover, at.parent, BIND | RECURSIVE)


def _repeat(entry: Path, copy: Path) -> None:
    """Show a file, folder or link at another place too."""
    if entry.is_symlink():
        copy.symlink_to(entry.readlink())
        return
    if entry.is_dir():
        copy.mkdir()
    else:
        copy.touch()
    _mount(entry, copy, BIND | RECURSIVE)


def _mount(source: Path | str | None, target: Path, flags: int, *, kind: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    _call("mount", *map(ctypes.c_char_p, words), ctypes.c_ulong(flags), None)


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
