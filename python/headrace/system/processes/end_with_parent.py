"""Make child processes end with their parent, even if the parent is killed.

The kernel sends the signal (prctl(2), PR_SET_PDEATHSIG), so nothing has to watch. The setting outlives `exec`, but a process
does not inherit it: each process of a chain needs its own.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

__all__ = ["end_with_parent", "started_to_end_with_parent"]

PR_SET_PDEATHSIG = 1  # prctl's option "signal at the parent's death", from linux/prctl.h

# Source of the process that becomes the command. The parent may have ended before prctl was called: then it exits.
_PRELUDE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl({option}, int(sys.argv[1]))
if os.getppid() != int(sys.argv[2]):
    sys.exit(1)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def end_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process the signal `by` when its parent ends, or the parent's thread that started it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(by))


def started_to_end_with_parent(command: Sequence[str], by: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return a command line that runs `command` so that the kernel sends it the signal `by` when this process ends.

    subprocess.Popen(started_to_end_with_parent([sys.executable, "train.py"]))
    """
    prelude = _PRELUDE.format(option=PR_SET_PDEATHSIG)
    return [sys.executable, "-I", "-S", "-c", prelude, str(int(by)), str(os.getpid()), *command]
