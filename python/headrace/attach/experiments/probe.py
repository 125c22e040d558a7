"""A short experiment in the workers: whether reading is faster while the other workers pause.

The experiment compares how long a batch is blocked (by storage or network) while its worker reads alone and while all workers
read. Equal times mean that storage serves each reader independently: more workers help. With n workers, a time that is n times
shorter alone means that storage already delivers all it can. Worker 0 asks the
others to pause before their next batch, finishes its current batch, makes one batch alone, and lets the others continue. That
costs the job about the time of one batch, once.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from headrace.attach.record.load_hooks import SESSION_VARIABLE
from headrace.attach.record.recorder import Recorder

__all__ = ["Probe"]

FIRST_BATCH = 5
"""Begin after this many batches of a worker: earlier ones are slow because of start-up."""

LEAST_BLOCKED_SHARE = 0.2
LONGEST_PAUSE_S = 5.0
TRIES, UNSETTLED = 3, 3.0
"""Repeat the experiment, at most `TRIES` times, if its batch took `UNSETTLED` times as long as the batch before.

Storage has then just changed, for example from cached to cold, or the other workers did not pause for so long.
"""

POLL_S = 0.002

MOST_LOADERS = 4
"""Experiment with at most this many loaders of a process: a script may make a new DataLoader for each epoch."""


class Probe:
    """One worker's part in the experiment. Worker 0 leads it; the other workers pause while its flag file exists."""

    def __init__(self, recorder: Recorder, loader: int, worker: int, workers: int) -> None:
        folder = Path(os.environ[SESSION_VARIABLE])
        self._recorder = recorder
        self._flag = str(folder / f"probe-{os.getppid()}-{loader}.flag")
        self._done = str(folder / f"probe-{os.getppid()}-{loader}.done")
        self._leader = worker == 0
        self._possible = workers >= 2 and loader < MOST_LOADERS
        self._batches = 0
        self._wall_s = 0.0
        self._stage = 0
        self._pauses = self._begun = 0

    def before_batch(self) -> None:
        """Pause while the flag file exists, for at most the time of three batches of this worker."""
        if self._leader or self._pauses >= TRIES or not self._possible or not os.access(self._flag, os.F_OK):
            return
        self._pauses += 1  # a leader that has died must not slow the job down for ever
        begin_s = time.monotonic()
        limit_s = min(LONGEST_PAUSE_S, 3 * self._wall_s + 0.05)
        while os.access(self._flag, os.F_OK) and time.monotonic() - begin_s < limit_s:
            time.sleep(POLL_S)
        self._recorder.event("probe", begin_s, time.monotonic() - begin_s)

    def after_batch(self, wall_s: float, cpu_s: float, queue_s: float | None) -> int:
        """Take the next step of the experiment, if this is worker 0. Return 1 if the batch was made while the others paused."""
        self._batches += 1
        self._wall_s = wall_s
        if not self._leader or not self._possible:
            return 0
        if self._stage == 0 and self._batches >= FIRST_BATCH:
            blocked_s = wall_s - cpu_s - (queue_s or 0.0)
            if queue_s is not None and blocked_s > LEAST_BLOCKED_SHARE * wall_s and wall_s < LONGEST_PAUSE_S / 3:
                self._begin()
        elif self._stage == 1:
            self._stage = 2  # during this batch the others were still finishing theirs
        elif self._stage == 2:
            self._stage = 3
            self._end(wall_s)
            return 1
        return 0

    def _begin(self) -> None:
        """Begin, unless workers of an earlier epoch have made this experiment with this loader."""
        try:
            os.close(os.open(f"{self._done}{self._begun}", os.O_CREAT | os.O_EXCL, 0o600))
        except OSError:
            self._stage = 3
            return
        os.close(os.open(self._flag, os.O_CREAT | os.O_WRONLY, 0o600))
        self._began_s, self._begin_wall_s = time.monotonic(), self._wall_s
        self._begun += 1
        self._stage = 1

    def _end(self, wall_s: float) -> None:
        os.unlink(self._flag)  # noqa: PTH108
        self._recorder.event("probe", self._began_s, time.monotonic() - self._began_s)
        if wall_s > UNSETTLED * self._begin_wall_s and self._begun < TRIES:
            self._stage, self._batches = 0, 0
