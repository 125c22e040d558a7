"""Writes docs/cli.md: the help of every verb, as the command prints it.   python scripts/document_cli.py"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"


def help_of(*words: str) -> str:
    """What `headrace WORDS -h` prints, at a fixed width."""
    command = [sys.executable, "-m", "headrace", *words, "-h"]
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "HOME": "/root", "XDG_CACHE_HOME": "/root/.cache"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.rstrip()


def page() -> str:
    from headrace.cli.main import VERBS

    parts = ["# The `headrace` command", "", "Made from the command itself by `make docs`.", "", "```", help_of(), "```", ""]
    for verb in VERBS:
        parts += [f"## headrace {verb}", "", "```", help_of(verb), "```", ""]
    return "\n".join(parts)


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
