"""A short experiment inside the workers: does a read take less time when no other worker reads?

If a batch blocks (storage, network) for about as long alone as it does beside the others, storage answers each reader
as if it were the only one, and more workers will help. If it is n times faster alone, storage delivers all it can
already. The experiment costs the job about one batch time, once: worker 0 asks the others to pause before their next
batch, finishes the batch at hand, makes the next one alone, and lets the others go on.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from headrace.attach.load_hooks import SESSION_VARIABLE
from headrace.attach.recorder import Recorder

__all__ = ["Probe"]

FIRST_BATCH = 5
"""Batches a worker has made before the experiment: the first ones are slowed by start-up."""

LEAST_BLOCKED_SHARE = 0.2
LONGEST_PAUSE_S = 5.0
TRIES, UNSETTLED = 3, 3.0
"""Another experiment is made where this one's batch took three times as long as the one before it: storage has just changed,
from cached to cold for example, and the others may not have waited for so long."""

POLL_S = 0.002

MOST_LOADERS = 4
"""A script that makes its DataLoader anew for each epoch is not slowed down in each of them."""


class Probe:
    """One worker's part in the experiment. Worker 0 leads; the others pause while its flag file exists."""

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
        """Pause while the leader wants to be alone, for no longer than three of one's own batches."""
        if self._leader or self._pauses >= TRIES or not self._possible or not os.access(self._flag, os.F_OK):
            return
        self._pauses += 1  # a leader that died must not slow the job down for ever
        begin_s = time.monotonic()
        limit_s = min(LONGEST_PAUSE_S, 3 * self._wall_s + 0.05)
        while os.access(self._flag, os.F_OK) and time.monotonic() - begin_s < limit_s:
            time.sleep(POLL_S)
        self._recorder.event("probe", begin_s, time.monotonic() - begin_s)

    def after_batch(self, wall_s: float, cpu_s: float, queue_s: float | None) -> int:
        """Lead the experiment one step further. Returns 1 when the batch just made was made alone."""
        self._batches += 1
        self._wall_s = wall_s
        if not self._leader or not self._possible:
            return 0
        if self._stage == 0 and self._batches >= FIRST_BATCH:
            blocked_s = wall_s - cpu_s - (queue_s or 0.0)
            if queue_s is not None and blocked_s > LEAST_BLOCKED_SHARE * wall_s and wall_s < LONGEST_PAUSE_S / 3:
                self._begin()
        elif self._stage == 1:
            self._stage = 2  # the others were still finishing their batches during this one
        elif self._stage == 2:
            self._stage = 3
            self._end(wall_s)
            return 1
        return 0

    def _begin(self) -> None:
        """The same experiment only once per loader of a process, so a new epoch's workers do not repeat it."""
        try:
            os.close(os.open(f"{self._done}{self._begun}", os.O_CREAT | os.O_EXCL))
        except OSError:
            self._stage = 3
            return
        os.close(os.open(self._flag, os.O_CREAT | os.O_WRONLY))
        self._began_s, self._begin_wall_s = time.monotonic(), self._wall_s
        self._begun += 1
        self._stage = 1

    def _end(self, wall_s: float) -> None:
        os.unlink(self._flag)  # noqa: PTH108
        self._recorder.event("probe", self._began_s, time.monotonic() - self._began_s)
        if wall_s > UNSETTLED * self._begin_wall_s and self._begun < TRIES:
            self._stage, self._batches = 0, 0
