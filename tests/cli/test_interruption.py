"""The first Ctrl-C is answered at once, also while the main thread is in a native call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

BUSY = """
import hashlib, os, signal, sys
from headrace.cli.interruption import answer_at_once, set_answer
answer_at_once()
set_answer(sys.argv[1])
{before}
signal.signal(signal.SIGINT, lambda number, frame: None)  # a signal just before the call would end this program
print("busy", flush=True)
hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)
"""


def started(answer: str, before: str = "", **environment: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", BUSY.format(before=before), answer]
    own = {name: value for name, value in os.environ.items() if name != "RANK"}
    job = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**own, **environment})
    assert job.stdout is not None and job.stdout.readline() == "busy\n"
    return job


def test_a_long_native_call_does_not_delay_the_answer() -> None:
    job = started("finishing this step")
    assert job.stderr is not None
    try:
        job.send_signal(signal.SIGINT)
        assert job.stderr.readline() == "headrace: finishing this step\n"
        assert job.poll() is None, "the call goes on"
    finally:
        job.kill()
        job.communicate()


@pytest.mark.parametrize(("answer", "environment"), [("", {}), ("words", {"RANK": "0"})])
def test_who_starts_a_command_and_a_rank_stay_silent(answer: str, environment: dict[str, str]) -> None:
    job = started(answer, "import headrace.cli.interruption as found\nfound.PATIENCE_S = 0", **environment)
    job.send_signal(signal.SIGINT)
    try:
        job.communicate(timeout=2)
    except subprocess.TimeoutExpired:
        job.kill()
        assert job.communicate()[1] == ""


def test_the_signal_of_a_forked_child_is_no_ctrl_c_here() -> None:
    child = """
ready, said = os.pipe()
child = os.fork()
if child == 0:
    signal.signal(signal.SIGINT, lambda number, frame: None)
    os.write(said, b".")
    signal.pause()
    os._exit(0)
os.read(ready, 1)
os.kill(child, signal.SIGINT)
os.waitpid(child, 0)
"""
    job = started("words", child)
    with pytest.raises(subprocess.TimeoutExpired):
        job.communicate(timeout=2)
    job.kill()
    assert "words" not in job.communicate()[1]
