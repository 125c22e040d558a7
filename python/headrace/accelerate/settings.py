"""How `headrace run` tells the processes it starts what to do: the names of environment variables, and their values.

Standard library only: read by the command line, which must not load torch, and inside the script's process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.loading.jpeg_index_cache import INDEX_FOLDER

__all__ = ["HOOK", "Settings"]

#: The module that `headrace.attach` loads in the script's process.
HOOK = "headrace.accelerate.hook"

SWITCH = "HEADRACE"
THREADS = "HEADRACE_THREADS"
CHECK = "HEADRACE_RUN_CHECK"
EXPLAIN = "HEADRACE_RUN_EXPLAIN"
FOLDER = "HEADRACE_RUN_DIR"


@dataclass(frozen=True, slots=True)
class Settings:
    """What to do in the script's process.

    `threads` None means the loader's own number of workers. `check` is the number of images to compare before a loader is
    taken over (0: none). `folder` is where each process writes what it did (`loaders-PID.jsonl`), or None. `index_cache` is the
    folder of checkpoint indexes, "off", or None for the usual one (headrace.loading.jpeg_index_cache).
    """

    off: bool = False
    threads: int | None = None
    check: int = 0
    explain: bool = False
    folder: Path | None = None
    index_cache: str | None = None

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """The settings in an environment; a number that is none counts as not given."""
        folder = environment.get(FOLDER)
        return cls(
            off=environment.get(SWITCH, "").lower() in ("off", "0", "false", "no"),
            threads=_number(environment.get(THREADS)) or None,
            check=_number(environment.get(CHECK)),
            explain=environment.get(EXPLAIN) == "1",
            folder=Path(folder) if folder else None,
            index_cache=environment.get(INDEX_FOLDER) or None,
        )

    def variables(self) -> dict[str, str]:
        """The environment variables that `read` turns into these settings."""
        return {
            CHECK: str(self.check),
            EXPLAIN: "1" if self.explain else "0",
            FOLDER: str(self.folder) if self.folder else "",
            **({THREADS: str(self.threads)} if self.threads else {}),
            **({INDEX_FOLDER: self.index_cache} if self.index_cache else {}),
        }


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else 0
