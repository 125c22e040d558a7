"""A script and the folder that travels with it to a job: what is copied, and how it is started under headrace.

source = Source(Path("project"), "train.py", under="run")
source.check()
source.stage(Path("job/code"))  # with headrace_entry.py, the file to start there
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Literal

from headrace.errors import UsageError
from headrace.system.files.private_files import check_below
from headrace.system.text.sizes import count_text, size_text

__all__ = [
    "ENTRY",
    "KINDS",
    "LEFT_OUT",
    "MOST_BYTES",
    "PACKAGE",
    "SHELL_ENTRY",
    "Contents",
    "Member",
    "Source",
    "Under",
    "write_members",
]

Under = Literal["run", "diagnose", "plain"]
"""How the script is started: under `headrace run`, under `headrace diagnose`, or as it is."""

ENTRY = "headrace_entry.py"
"""The file that stands in the place of the script. The launcher starts it, and it starts the script."""

SHELL_ENTRY = "headrace_entry.sh"
"""The same for a shell script; it starts `ENTRY` beside it."""

LEFT_OUT = frozenset({".env", ".git", "__pycache__", ".DS_Store", ".cache", ".ipynb_checkpoints"})
"""Files and folders that do not travel: the default `ignore_patterns` of version 3 of SageMaker's SDK."""

PRIVATE = frozenset({".aws", ".ssh", ".netrc", ".pypirc", ".git-credentials", ".kaggle", "id_rsa*", "id_ed25519*", "*.pem"})
"""Files and folders that hold keys, and do not travel either."""

JOB_MARKS = (".headrace-local-job", "pyvenv.cfg")
"""Files that mark folders which are no source: those of local jobs, and virtual environments."""

MOST_BYTES = 1_000_000_000
"""Send no source of more bytes: data do not travel with the code."""

KINDS = (".py", ".sh")
"""Endings of the scripts that SageMaker's toolkit starts."""

PACKAGE = Path(__file__).parents[2]
"""The installed package of headrace."""

_NAME = re.compile(r"[A-Za-z0-9._+/][A-Za-z0-9._+/-]*")
"""Names of scripts that SageMaker's toolkit starts (5.1.4, `process.py`)."""

Member = tuple[str, Path | bytes]
"""A file that travels: its name in the copy, and the file or its content."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What travels of a source: names of files from its folder, their bytes together, and links that do not travel."""

    files: Sequence[Path]
    size_bytes: int
    links: Sequence[str] = ()


@dataclass(frozen=True)
class Source:
    """A folder with a script. entry: the script, named from the folder. alone: only the script travels.

    arguments: of the script, beside the hyperparameters. torchrun: start it once for each GPU of a host. command: a line for
    bash in place of the script. left_out: patterns of names of files and folders that do not travel. follows_links: whether
    what links point to travels in their place; else links do not travel. shown: what messages call the folder (default: its
    path).
    """

    folder: Path
    entry: str
    under: Under = "plain"
    alone: bool = False
    arguments: Sequence[str] = ()
    torchrun: bool = False
    command: str | None = None
    left_out: frozenset[str] = LEFT_OUT | PRIVATE
    follows_links: bool = False
    shown: str = ""

    @classmethod
    def of_file(cls, script: Path, under: Under = "plain", arguments: Sequence[str] = (), *, torchrun: bool = False) -> Source:
        """Return the source that is one file."""
        return cls(script.parent, script.name, under, True, arguments, torchrun)

    def check(self) -> None:
        """Raise `UsageError` where the folder or the script is not there, or cannot be started."""
        if not self.folder.is_dir():
            raise UsageError(f"--source-dir: there is no folder {self.place}", hint="name the folder that holds the script")
        if self.command is None:
            self._check_entry()
        for name in (ENTRY, SHELL_ENTRY, ".headrace"):
            if self.under != "plain" and (self.folder / name).exists() and not self.alone:
                raise UsageError(f"{self.place} has a {name}, a name that headrace needs", hint="rename it, or move it out")

    def _check_entry(self) -> None:
        inside = PurePosixPath(self.entry)
        if _NAME.fullmatch(self.entry) is None:
            hint = "rename the script: letters, digits and . _ + - /, not - in front"
            raise UsageError(f"--entry {self.entry!r} is a name that SageMaker's toolkit refuses", hint=hint)
        if inside.is_absolute() or ".." in inside.parts:
            raise UsageError(f"--entry {self.entry} is not below {self.place}", hint="name the script from --source-dir")
        script = self.folder / self.entry
        if not script.is_file():
            there = sorted(path.name for path in self.folder.iterdir() if path.suffix in KINDS)
            hint = f"there: {', '.join(there[:8])}" if there else "name the script from --source-dir, which has none at its top"
            raise UsageError(f"--entry: there is no file {self.entry} in {self.place}", hint=hint)
        if self.under != "plain" and script.suffix not in KINDS:
            hint = "--under plain starts another file, if it is a script of Python"
            raise UsageError(f"--entry {self.entry}: only {' and '.join(KINDS)} files are started under headrace", hint=hint)
        if self.torchrun and script.suffix == ".sh":
            hint = "name the Python script, or let the shell script start torchrun itself"
            raise UsageError(f"--launcher torchrun: {self.entry} is a shell script, and torchrun starts Python", hint=hint)
        if any(map(self._is_left_out, inside.parts)) or (script.is_symlink() and not self.follows_links):
            raise UsageError(
                f"--entry {self.entry} does not travel", hint=f"links do not, nor {', '.join(sorted(self.left_out))}"
            )

    def stage(self, target: Path) -> None:
        """Write what travels into the folder `target`, with `program`, which finds headrace where it is installed here.

        The source stays as it is. Raises `OSError`, and `UsageError` as `contents`.
        """
        write_members(self.members(travels=False), target)

    @property
    def place(self) -> str:
        """What messages call the folder."""
        return self.shown or str(self.folder)

    def members(self, *, travels: bool) -> Iterator[Member]:
        """Yield the files that travel, then the entry files. travels: as for `entry_file`."""
        for path in self.contents.files:
            yield path.as_posix(), self.folder / path
        if (entry := self.entry_file(travels=travels)) is not None:
            yield ENTRY, entry
        if self.program == SHELL_ENTRY and self.under != "plain":
            yield SHELL_ENTRY, _template(SHELL_ENTRY).replace('"§script"', shlex.quote(self.entry)).encode()

    def variables(self) -> dict[str, str]:
        """Return the environment variables by which `headrace.launch.entry` starts the script."""
        found = {"HEADRACE_SCRIPT": self.program}
        if self.arguments:
            found["HEADRACE_ARGUMENTS"] = json.dumps(list(self.arguments))
        if self.torchrun:
            found["HEADRACE_TORCHRUN"] = "1"
        return found

    @property
    def program(self) -> str:
        """The file that is started: the script, or `ENTRY` or `SHELL_ENTRY` in its place."""
        if self.under == "plain":
            return self.entry
        return SHELL_ENTRY if self.command is None and self.entry.endswith(".sh") else ENTRY

    @cached_property
    def contents(self) -> Contents:
        """What travels, as one walk over the folder has found it. Raises `OSError`, `UsageError` for a file without rights."""
        if self.alone:
            return Contents([Path(self.entry)], (self.folder / self.entry).stat().st_size)
        files, links, size_bytes = [], [], 0
        for path in self._walk():
            file = self.folder / path
            if file.is_symlink() and not self.follows_links:
                links.append(path.as_posix())
            elif file.is_file():
                if not os.access(file, os.R_OK):
                    hint = f"chmod u+r {shlex.quote(str(file))}, or move it out"
                    raise UsageError(f"{path} of {self.place} travels, and cannot be read", hint=hint)
                files.append(path)
                size_bytes += file.stat().st_size
        return Contents(files, size_bytes, sorted(links))

    def _walk(self) -> Iterator[Path]:
        """Yield what is in the folder and is not left out: files, and the links to folders that are not followed."""
        seen: set[tuple[int, int]] = set()  # of folders: a link may lead to one above it
        for place, folders, names in os.walk(self.folder, followlinks=self.follows_links):
            here = Path(place)
            found = here.stat()
            if (found.st_dev, found.st_ino) in seen or (
                here != self.folder and any((here / mark).exists() for mark in JOB_MARKS)
            ):
                folders.clear()
                continue
            seen.add((found.st_dev, found.st_ino))
            folders[:] = sorted(name for name in folders if not self._is_left_out(name))
            linked = [name for name in folders if not self.follows_links and (here / name).is_symlink()]
            for name in [*linked, *sorted(name for name in names if not self._is_left_out(name))]:
                yield (here / name).relative_to(self.folder)

    def _is_left_out(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.left_out)

    def words(self) -> str:
        """Return what travels, in words: `source: 12 files, 340.0 KiB of project; train.py under headrace run`."""
        how = f" under headrace {self.under}" if self.under != "plain" else ""
        found, more = self.contents, ""
        if links := found.links:
            more = f"; {count_text(len(links), 'link')} left out ({', '.join(links[:3])}{', …' if links[3:] else ''})"
        size = f"{count_text(len(found.files), 'file')}, {size_text(found.size_bytes)}"
        return f"source: {size} of {self.place}{more}; {self.entry}{how}"

    def entry_file(self, *, travels: bool = False) -> bytes | None:
        """Return the text of the file that stands in the place of the script; None where it starts as it is.

        travels: whether headrace lies beside it; else the file names the package of this machine.
        """
        if self.under == "plain":
            return None
        values = {
            "§script": self.entry,
            "§command": self.command,
            "§under": self.under,
            "§package": "" if travels else str(PACKAGE.parent),
        }
        return re.sub(r'"(§\w+)"', lambda place: repr(values[place[1]]), _template(ENTRY)).encode()


def _template(name: str) -> str:
    return resources.files("headrace.launch.own_code").joinpath("templates", name).read_text(encoding="utf-8")


def write_members(members: Iterable[Member], target: Path) -> None:
    """Write files into a folder. All are known before the first is written: the folder may lie in the source.

    Raises `OSError`, also for a link below the folder: one that came with somebody else's files may lead anywhere.
    """
    for name, content in [*members]:
        copy = target / name
        check_below(target, copy)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            copy.write_bytes(content)
        else:
            shutil.copy(content, copy)
