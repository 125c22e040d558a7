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
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Literal, get_args

from headrace.errors import UsageError
from headrace.system.text.sizes import count_text, size_text

__all__ = ["ENTRY", "KINDS", "LEFT_OUT", "MOST_BYTES", "Source", "Under"]

Under = Literal["run", "diagnose", "plain"]
"""How the script is started: under `headrace run`, under `headrace diagnose`, or as it is."""

ENTRY = "headrace_entry.py"
"""The file that stands in the place of the script. The launcher starts it, and it starts the script."""

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


@dataclass(frozen=True, slots=True)
class Source:
    """A folder with a script. entry: the script, named from the folder. alone: only the script travels.

    arguments: of the script, beside the hyperparameters. torchrun: start it once for each GPU of a host. command: a line for
    bash in place of the script. left_out: patterns of names of files and folders that do not travel. follows_links: whether
    what links point to travels in their place; else links do not travel.
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

    @classmethod
    def of_file(cls, script: Path, under: Under = "plain", arguments: Sequence[str] = (), *, torchrun: bool = False) -> Source:
        """Return the source that is one file."""
        return cls(script.parent, script.name, under, True, arguments, torchrun)

    def check(self) -> None:
        """Raise `UsageError` where the folder or the script is not there, or cannot be started."""
        if not self.folder.is_dir():
            raise UsageError(f"--source-dir: there is no folder {self.folder}")
        inside = PurePosixPath(self.entry)
        if inside.is_absolute() or ".." in inside.parts:
            raise UsageError(f"--entry {self.entry} is not below {self.folder}", hint="name the script from --source-dir")
        script = self.folder / self.entry
        if not script.is_file():
            there = sorted(path.name for path in self.folder.iterdir() if path.suffix in KINDS)
            hint = f"there: {', '.join(there[:8])}" if there else "name the script from --source-dir"
            raise UsageError(f"--entry: there is no file {self.entry} in {self.folder}", hint=hint)
        if self.under not in get_args(Under):
            raise UsageError(f"--under {self.under}: {', '.join(get_args(Under))} are known")
        if self.under != "plain" and script.suffix not in KINDS:
            raise UsageError(f"--entry {self.entry}: only {' and '.join(KINDS)} files are started under headrace")
        if any(map(self._is_left_out, inside.parts)) or (script.is_symlink() and not self.follows_links):
            raise UsageError(
                f"--entry {self.entry} does not travel", hint=f"links do not, nor {', '.join(sorted(self.left_out))}"
            )
        for name in (ENTRY, ".headrace"):
            if self.under != "plain" and (self.folder / name).exists() and not self.alone:
                raise UsageError(f"{self.folder} has a {name}, a name that headrace needs", hint="rename it, or move it out")

    def stage(self, target: Path) -> None:
        """Copy the source into the folder `target`, with `program`. The source stays as it is.

        Links do not travel, nor do `LEFT_OUT`. Raises `OSError`.
        """
        for path in [*self.files()]:  # before a job's folder is made in the source
            copy = target / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.folder / path, copy)
        if (entry := self.entry_file()) is not None:
            (target / ENTRY).write_bytes(entry)

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
        """The file that is started: the script, or `ENTRY` in its place."""
        return self.entry if self.under == "plain" else ENTRY

    def files(self) -> Iterator[Path]:
        """Yield the files that travel, named from the folder."""
        if self.alone:
            yield Path(self.entry)
            return
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
            for name in sorted(names):
                file = here / name
                if not self._is_left_out(name) and (self.follows_links or not file.is_symlink()) and file.is_file():
                    yield file.relative_to(self.folder)

    def links(self) -> list[str]:
        """Return the names of the links that do not travel."""
        if self.follows_links or self.alone:
            return []
        walk = os.walk(self.folder)
        found = (Path(place) / name for place, folders, names in walk for name in (*folders, *names))
        return sorted(path.relative_to(self.folder).as_posix() for path in found if path.is_symlink())

    def _is_left_out(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.left_out)

    def size(self) -> int:
        """Return the bytes of the files that travel."""
        return sum((self.folder / path).stat().st_size for path in self.files())

    def words(self) -> str:
        """Return what travels, in words: `source: 12 files, 340.0 KiB of project; train.py under headrace run`."""
        how = f" under headrace {self.under}" if self.under != "plain" else ""
        count, links = sum(1 for _ in self.files()), self.links()
        more = (
            f"; {count_text(len(links), 'link')} left out ({', '.join(links[:3])}{', …' if links[3:] else ''})" if links else ""
        )
        return f"source: {count_text(count, 'file')}, {size_text(self.size())} of {self.folder}{more}; {self.entry}{how}"

    def entry_file(self, *, travels: bool = False) -> bytes | None:
        """Return the text of the file that stands in the place of the script; None where it starts as it is.

        travels: whether headrace lies beside it; else the file names the package of this machine.
        """
        if self.under == "plain":
            return None
        text = resources.files("headrace.launch.own_code").joinpath("templates", ENTRY).read_text(encoding="utf-8")
        values = {
            "§script": self.entry,
            "§command": self.command,
            "§under": self.under,
            "§package": "" if travels else str(_package().parent),
        }
        return re.sub(r'"(§\w+)"', lambda place: repr(values[place[1]]), text).encode()


def _package() -> Path:
    """Return the folder of the installed package."""
    return Path(__file__).parents[2]
