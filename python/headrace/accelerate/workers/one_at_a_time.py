"""Let one thread at a time put this process in the place of a worker.

Where the script's code runs here in place of a worker, settings, variables and generators of the process are exchanged, and put
back afterwards. Two threads of the script may iterate over two loaders. One would take what the other has put there for the
script's own, and leave it there for good.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["one_at_a_time"]

_lock = threading.RLock()


def one_at_a_time() -> AbstractContextManager[Any]:
    """Return the lock that a thread holds while it has exchanged something. It may be taken again by the same thread."""
    return _lock


def _renew() -> None:
    """Make a new lock in a forked child: another thread of the parent may have held the old one."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew)
