"""Why a script of a job ran plain, in whole or in part: what the entry file and the hooks left in the job's output."""

from __future__ import annotations

from pathlib import Path

from headrace.system.text.printable import printable

__all__ = ["plain_reasons"]

BEFORE, AFTER = "headrace-plain-", ".txt"
"""A file's name begins and ends so, around the name of the host (`templates/headrace_entry.py`)."""

MOST_BYTES, MOST_REASONS, MOST_CHARACTERS = 1 << 16, 8, 300
"""The script writes to the same folder: so much is read of a file and shown of all."""


def plain_reasons(output: Path) -> list[str]:
    """Return the reasons in a folder of a job's output, each once: `algo-1: train.py: Python 3.10, and headrace needs 3.11`."""
    found: dict[str, None] = {}
    for path in sorted(output.glob(f"{BEFORE}*{AFTER}")):
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            text = file.read(MOST_BYTES).decode(errors="replace")
        host = path.name.removeprefix(BEFORE).removesuffix(AFTER)
        found.update(
            dict.fromkeys(printable(f"{host}: {line}")[:MOST_CHARACTERS] for line in text.splitlines() if line.strip())
        )
    return list(found)[:MOST_REASONS]
