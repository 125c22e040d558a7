"""A command ends with the process that started it, however that one ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PARENT = """
import subprocess, sys, time
from headrace.system.processes.end_with_parent import started_to_end_with_parent
program = "import time; print(1, flush=True); time.sleep(600)"
child = subprocess.Popen(started_to_end_with_parent([sys.executable, "-c", program]))
print(child.pid, flush=True)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_a_command_ends_when_its_parent_is_killed(by: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        said = {parent.stdout.readline(), parent.stdout.readline()}  # the child runs its own program now
        (child,) = (int(line) for line in said - {"1\n"})
        assert is_running(child)
        parent.send_signal(by)
        parent.wait()
        limit = time.monotonic() + 30
        while is_running(child) and time.monotonic() < limit:
            time.sleep(0.02)
        assert not is_running(child)
