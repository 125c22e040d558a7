"""The options of `headrace run`, passed to the script's processes as environment variables.

This module must not import torch: the command line uses it too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.loading.feeding.jpeg_index_cache import INDEX_FOLDER

__all__ = ["HOOK", "WAITS", "Settings"]

#: The hook module that `headrace.attach` loads in the script's process.
HOOK = "headrace.accelerate.hook"

SWITCH = "HEADRACE"
THREADS = "HEADRACE_THREADS"
CHECK = "HEADRACE_RUN_CHECK"
EXPLAIN = "HEADRACE_RUN_EXPLAIN"
FOLDER = "HEADRACE_RUN_DIR"

WAITS = "waits-{}.json"
"""Name of the file, by process id, to which a process of the script writes how long its loops waited."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one `headrace run`.

    `threads`: native threads for each loader; None: as many as the loader has workers. `check`: number of images to compare
    before a loader is taken over; 0: none. `explain`: print the stages of each loader. `folder`: where each process writes its
    decisions (`loaders-PID.jsonl`), or None. `index_cache`: the folder of JPEG indexes, "off", or None for the default folder
    (headrace.loading.feeding.jpeg_index_cache).
    """

    off: bool = False
    threads: int | None = None
    check: int = 0
    explain: bool = False
    folder: Path | None = None
    index_cache: str | None = None

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the options from environment variables. A value that is not a number counts as absent."""
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
        """Return the options as environment variables, for `read`."""
        return {
            CHECK: str(self.check),
            EXPLAIN: "1" if self.explain else "0",
            FOLDER: str(self.folder) if self.folder else "",
            **({THREADS: str(self.threads)} if self.threads else {}),
            **({INDEX_FOLDER: self.index_cache} if self.index_cache else {}),
        }


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else 0
