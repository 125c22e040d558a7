"""Print headrace's lines on stderr from inside the user's process, also while the script draws a progress bar."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress

from headrace.system.text.printable import printable_lines

__all__ = ["log_line", "print_by"]

_process = os.getpid()
_hand_over: Callable[[str], None] | None = None


def print_by(hand_over: Callable[[str], None]) -> None:
    """Let another process print this process's log lines, by `hand_over`: a worker does not know the open progress bars."""
    global _hand_over
    _hand_over = hand_over


def log_line(words: str) -> None:
    """Print one or more whole lines on stderr, above open progress bars of tqdm.

    Control characters of names appear as escapes. tqdm is used only if the script has imported it. Nothing is raised: a script
    may have closed stderr, or whoever reads it may be gone.
    """
    words = printable_lines(words)
    if _hand_over is not None:
        _hand_over(words)
        return
    if sys.stderr is not None and not _print_above_bars(words):
        with suppress(OSError, ValueError):  # not by `print`, which the script may have replaced
            sys.stderr.write(f"{words}\n")
            sys.stderr.flush()


def _print_above_bars(words: str) -> bool:
    """Print by tqdm, which clears its bars and draws them again below. Return False if there is no bar."""
    bars = getattr(sys.modules.get("tqdm"), "tqdm", None)
    # A forked child has copies of its parent's bars. Another thread may have held tqdm's lock at the fork.
    if os.getpid() != _process or not getattr(bars, "_instances", None):
        return False
    try:
        bars.write(words, file=sys.stderr)  # type: ignore[union-attr]
    except Exception:  # an unknown version of tqdm: print without it
        return False
    return True
