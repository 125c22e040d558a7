"""A script and the folder that travels with it to a job: what is copied, and how it is started under headrace.

source = Source(Path("project"), "train.py", under="run")
source.check()
source.stage(Path("job/code"))  # with headrace_entry.py, the file to start there
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Literal, get_args

from headrace.errors import UsageError
from headrace.system.text.sizes import count_text, size_text

__all__ = ["ENTRY", "Source", "Under"]

Under = Literal["run", "diagnose", "plain"]
"""How the script is started: under `headrace run`, under `headrace diagnose`, or as it is."""

ENTRY = "headrace_entry.py"
"""The file that stands in the place of the script. The launcher starts it, and it starts the script."""

LEFT_OUT = frozenset({".env", ".git", "__pycache__", ".DS_Store", ".cache", ".ipynb_checkpoints"})
"""Files and folders that do not travel: the default `ignore_patterns` of version 3 of SageMaker's SDK."""

KINDS = (".py", ".sh")
"""Endings of the scripts that SageMaker's toolkit starts."""


@dataclass(frozen=True, slots=True)
class Source:
    """A folder with a script. entry: the script, named from the folder. alone: only the script travels.

    arguments: of the script, beside the hyperparameters. torchrun: start it once for each GPU of a host. command: a line for
    bash in place of the script. left_out: names of files and folders that do not travel.
    """

    folder: Path
    entry: str
    under: Under = "plain"
    alone: bool = False
    arguments: Sequence[str] = ()
    torchrun: bool = False
    command: str | None = None
    left_out: frozenset[str] = LEFT_OUT

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
        if not self.left_out.isdisjoint(inside.parts) or script.is_symlink():
            raise UsageError(
                f"--entry {self.entry} does not travel", hint=f"links do not, nor {', '.join(sorted(self.left_out))}"
            )
        if self.under != "plain" and (self.folder / ENTRY).exists() and not self.alone:
            raise UsageError(f"{self.folder} has a file {ENTRY}, a name that headrace needs", hint="rename it")

    def stage(self, target: Path) -> None:
        """Copy the source into the folder `target`, with `program`. The source stays as it is.

        Links do not travel, nor do `LEFT_OUT`. Raises `OSError`.
        """
        for path in self.files():
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
        for place, folders, names in os.walk(self.folder):
            folders[:] = sorted(name for name in folders if name not in self.left_out)
            here = Path(place)
            for name in sorted(names):
                file = here / name
                if name not in self.left_out and not file.is_symlink() and file.is_file():
                    yield file.relative_to(self.folder)

    def size(self) -> int:
        """Return the bytes of the files that travel."""
        return sum((self.folder / path).stat().st_size for path in self.files())

    def words(self) -> str:
        """Return what travels, in words: `source: 12 files, 340.0 KiB of project; train.py under headrace run`."""
        how = f" under headrace {self.under}" if self.under != "plain" else ""
        count = sum(1 for _ in self.files())
        return f"source: {count_text(count, 'file')}, {size_text(self.size())} of {self.folder}; {self.entry}{how}"

    def entry_file(self) -> bytes | None:
        """Return the text of the file that stands in the place of the script; None where it starts as it is."""
        if self.under == "plain":
            return None
        text = resources.files("headrace.launch.own_code").joinpath("templates", ENTRY).read_text(encoding="utf-8")
        values = {"§script": self.entry, "§command": self.command, "§under": self.under, "§package": str(_package().parent)}
        for place, value in values.items():
            text = text.replace(f'"{place}"', repr(value))
        return text.encode()


def _package() -> Path:
    """Return the folder of the installed package."""
    return Path(__file__).parents[2]
