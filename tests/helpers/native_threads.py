"""The loader's own threads, as the system lists them; and patience, because it lists a joined thread for a moment longer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def native_threads() -> int:
    """How many of this process's threads are headrace's."""
    count = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it may end while it is looked at
            count += (task / "comm").read_text().startswith("headrace-")
    return count


def settled(look: Callable[[], T], expected: T) -> T:
    """What `look` sees, once it is `expected` or half a minute has passed."""
    deadline_s = time.monotonic() + 30
    while (seen := look()) != expected and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return seen
