"""The rule of every folder that headrace writes: whose state is used there, and that no link is followed.

Sessions are private as well, mode 0700 and 0600: they hold commands, paths and output of the user's jobs. Outputs (a packed
dataset, the folder of a training) have the usual mode, for colleagues who read them.

In a folder such as /tmp everybody makes files, and nobody may replace another user's (the sticky bit). Another user can be
there first: with a folder, a link or a pipe under a name that headrace is about to use. So in such folders only what this user
or root made is used, as the kernel does for links (fs.protected_symlinks). What is this user's own there stays so: a check of
the owner is not out of date when the file is opened.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "PRIVATE_FILE",
    "PRIVATE_FOLDER",
    "ForeignPart",
    "check_below",
    "check_output_folder",
    "check_own_state",
    "check_unnamed_folder",
    "foreign_part",
    "make_output_folder",
    "make_private_folder",
    "new_file",
    "output_opener",
    "private_opener",
    "user_text",
    "writable_by_others",
]

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700


@dataclass(frozen=True, slots=True)
class ForeignPart:
    """A component of a path that another user made in a folder where everybody may make files. user: that user's uid."""

    path: Path
    user: int


def foreign_part(path: Path) -> ForeignPart | None:
    """Return the first component of `path` that another user made in a shared folder such as /tmp, or None.

    A relative path is checked from the current folder on, which the user has chosen. Parts that do not exist are nobody's.
    """
    part = Path()
    for name in path.parts:
        part /= name
        try:
            owner = os.lstat(part).st_uid
        except FileNotFoundError:
            return None
        if not _trusted(owner) and _is_shared(part.parent):
            return ForeignPart(part, owner)
    return None


def make_private_folder(folder: Path) -> None:
    """Make `folder` with mode 0700, and its missing parents with the usual mode. A folder that exists keeps its mode.

    Raises `OSError`, also for another user's link, and for a folder that another user has made in one such as /tmp.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    check_output_folder(folder)


def make_output_folder(folder: Path) -> None:
    """Make `folder` and its missing parents with the usual mode. It may be the user's own link to a folder.

    Raises `OSError`, also for another user's link, and for a folder that another user has made in one such as /tmp.
    """
    folder.mkdir(parents=True, exist_ok=True)
    check_output_folder(folder)


def check_output_folder(folder: Path) -> None:
    """Raise `OSError` if another user made `folder`, a link in its place, or a part of its path in a shared folder.

    A missing folder is accepted.
    """
    found = foreign_part(folder)
    if found is not None:
        raise _foreign(found.user, found.path)
    try:
        facts = os.lstat(folder)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(facts.st_mode) and not _trusted(facts.st_uid):
        raise PermissionError(errno.EACCES, f"is a link made by {user_text(facts.st_uid)}", os.fspath(folder))


def check_unnamed_folder(folder: Path) -> None:
    """Raise `OSError` for what `check_output_folder` refuses, and for any link in the place of `folder`.

    For folders in the current folder that headrace names itself, and those inside a folder of results: what came with somebody
    else's files may lead anywhere, and is this user's own once it was unpacked. The user did not choose where it leads.
    """
    check_output_folder(folder)
    _refuse_link(folder)


def check_below(root: Path, path: Path) -> None:
    """Raise `OSError` for a link in the place of `path` or of a folder between `root` and it. `root` itself may be one."""
    for part in (path, *path.parents):
        if part == root:
            return
        _refuse_link(part)


def check_own_state(path: Path) -> None:
    """Raise `OSError` unless the saved state at `path` can be trusted: this user's or root's, no link, not writable by others.

    path: a file or a folder; a missing one is accepted. The error's `strerror` says what is wrong.
    """
    try:
        facts = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISLNK(facts.st_mode):
        raise _followed_link(path)
    if not _trusted(facts.st_uid) and not _maps_all_users(path if path.is_dir() else path.parent, facts.st_uid):
        raise PermissionError(errno.EACCES, f"belongs to {user_text(facts.st_uid)}", os.fspath(path))
    if stat.S_ISDIR(facts.st_mode) and writable_by_others(facts):
        mode = f"may be written by other users (mode {stat.S_IMODE(facts.st_mode):04o})"
        raise PermissionError(errno.EACCES, mode, os.fspath(path))


def writable_by_others(facts: os.stat_result) -> bool:
    """Return whether users other than the owner may write. A group with the owner's number counts as the owner alone."""
    return bool(facts.st_mode & (stat.S_IWOTH | (0 if facts.st_gid == facts.st_uid else stat.S_IWGRP)))


def user_text(number: int) -> str:
    """Return "user NAME", or "user NUMBER" if it has no name here."""
    import pwd

    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"


def output_opener(path: str, flags: int) -> int:
    """Open an output file for `open(..., opener=output_opener)`: as `private_opener`, but a new file gets the usual mode."""
    return _open_own(path, flags, 0o666)


def private_opener(path: str, flags: int) -> int:
    """Open a file for `open(..., opener=private_opener)`: a new file gets mode 0600, an old one keeps its mode.

    Links at the end of the path are not followed, and nothing but a regular file is opened. Raises `OSError`, also for a file
    that another user has made in a folder such as /tmp.
    """
    return _open_own(path, flags, PRIVATE_FILE)


def _open_own(path: str, flags: int, mode: int) -> int:
    # O_TRUNC waits for the checks.
    wanted = flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, wanted, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _followed_link(path) from error
        raise
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if not _trusted(facts.st_uid) and _is_shared(Path(path).parent):
            raise _foreign(facts.st_uid, Path(path))
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def new_file(path: Path, *, private: bool = False) -> None:
    """Create an empty file that no other user can have prepared; a file of that name left by a killed process is replaced.

    `private`: with mode 0600. Raises `OSError`.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    mode = PRIVATE_FILE if private else 0o666
    try:
        descriptor = os.open(path, flags, mode)
    except FileExistsError:
        path.unlink()  # another user's, in a folder such as /tmp: not permitted
        descriptor = os.open(path, flags, mode)
    os.close(descriptor)


def _maps_all_users(folder: Path, owner: int) -> bool:
    """Return whether a new file in `folder` belongs to `owner`: file systems over a network may give all files to one user."""
    probe = folder / f".headrace-owner-{os.getpid()}"
    try:
        new_file(probe, private=True)
        try:
            return os.lstat(probe).st_uid == owner
        finally:
            probe.unlink(missing_ok=True)
    except OSError:
        return False


def _trusted(user: int) -> bool:
    return user in (os.geteuid(), 0)


def _is_shared(folder: Path) -> bool:
    """Return whether other users may make files in `folder`, and none may replace those of others."""
    mode = folder.stat().st_mode
    return bool(mode & stat.S_ISVTX and mode & (stat.S_IWOTH | stat.S_IWGRP))


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise _followed_link(path)


def _followed_link(path: str | Path) -> OSError:
    return OSError(errno.ELOOP, "is a link, which is not followed", os.fspath(path))


def _foreign(user: int, path: Path) -> OSError:
    return PermissionError(errno.EACCES, f"belongs to user {user}, in a folder that several users may write", os.fspath(path))
