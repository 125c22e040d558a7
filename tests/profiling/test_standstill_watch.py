"""A command that stands still under the sampler, from its page in memory to the verdict, without PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.attach import standstill
from headrace.diagnosis.diagnose import diagnose
from headrace.profiling.command import watch
from headrace.profiling.standstill_notice import StandstillNotice
from headrace.session.model import Session

PACKAGE = str(Path(standstill.__file__).parents[2])

JOB = f"""
import os, sys, threading, time
sys.path.insert(0, {PACKAGE!r})
from headrace.attach.record import open_step

def save(path):
    os.mkfifo(path)
    open(path, "wb")  # no one reads

def end_when_told():
    while not os.path.exists(sys.argv[1]): time.sleep(0.1)
    os._exit(3)

open_step.install()
threading.Thread(target=end_when_told, daemon=True).start()
for number in range(5):
    open_step.wait_begun(0, 0, number, time.monotonic())
    open_step.step_begun(number + 1, time.monotonic())
open_step.epoch_ended(time.monotonic())
save(sys.argv[1] + ".fifo")
"""


def test_a_checkpoint_that_no_one_reads_is_a_hang_live_and_in_the_diagnosis(tmp_path: Path) -> None:
    script, enough = tmp_path / "train.py", tmp_path / "enough"
    script.write_text(JOB)
    told: list[str] = []

    def tell(words: str) -> None:
        told.append(words)
        if words.startswith("HANG"):
            enough.touch()

    command = [sys.executable, "-S", str(script), str(enough)]
    with StandstillNotice(tmp_path / "session", tell):
        finished = watch(command, tmp_path / "session", hooks=(), env={standstill.SCALE_VARIABLE: "0.02"}, time_limit_s=120)
    line = JOB.splitlines().index('    open(path, "wb")  # no one reads') + 1
    place = f"the training thread waits for the other end of a FIFO at {script}:{line} in save"
    assert finished.returncode == 3, told
    assert told[-1].startswith("HANG: no step for ") and place in told[-1]
    found = diagnose(Session.load(tmp_path / "session"))
    assert found.verdict == "HANG" and found.summary.endswith(place)
    assert found.share_of_step["standstill"] == 1
