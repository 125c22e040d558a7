"""What headrace says on stderr from inside the user's process: whole lines, also while the script draws a progress bar."""

from __future__ import annotations

import os
import sys

__all__ = ["log_line"]

_process = os.getpid()


def log_line(words: str) -> None:
    """Print one or more whole lines on stderr. An open bar of tqdm, where the script has imported it, moves below them.

    Never imports tqdm, and raises nothing of its.
    """
    if not _above_bars(words):
        print(words, file=sys.stderr, flush=True)


def _above_bars(words: str) -> bool:
    """Whether tqdm has written it: it wipes its bars, writes, and draws them again."""
    bars = getattr(sys.modules.get("tqdm"), "tqdm", None)
    # A forked child has its parent's bars, and perhaps tqdm's lock as another thread held it at that moment.
    if os.getpid() != _process or not getattr(bars, "_instances", None):
        return False
    try:
        bars.write(words, file=sys.stderr)  # type: ignore[union-attr]
    except Exception:  # a tqdm of another shape: the words count
        return False
    return True
