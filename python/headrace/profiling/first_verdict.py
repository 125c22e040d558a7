"""A first verdict while the command still runs: after about 50 steady steps, or a minute after the first step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.measure.enough_steps import is_first_verdict_due
from headrace.diagnosis.result.model import Diagnosis
from headrace.errors import SessionError
from headrace.session.model import Session

__all__ = ["FirstVerdict"]

POLL_S = 1.0

IDLE_FACTOR = 20
"""After each reading of the session, wait this many times as long as the reading took, so that it uses under 5 % of a core."""


class FirstVerdict:
    """Context manager around a run that reads the growing session and calls `on_verdict` once, with the first diagnosis.

    `after_s`: seconds from the start of the command to that call; None before.

        with FirstVerdict(folder, print) as first:
            watch(command, folder)
    """

    def __init__(self, folder: Path, on_verdict: Callable[[Diagnosis], None]) -> None:
        self._folder = folder
        self._on_verdict = on_verdict
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="headrace-first-verdict", daemon=True)
        self.after_s: float | None = None

    def __enter__(self) -> FirstVerdict:
        self._began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        pause_s = POLL_S
        while not self._stop.wait(pause_s):
            began_s = time.monotonic()
            try:
                session = Session.load(self._folder)
            except SessionError:  # nothing written yet
                continue
            if self._due(session):
                diagnosis = diagnose(session)
                if diagnosis.verdict != "INSUFFICIENT_DATA":
                    self.after_s = time.monotonic() - self._began_s
                    self._on_verdict(diagnosis)
                    return
            pause_s = max(POLL_S, IDLE_FACTOR * (time.monotonic() - began_s))

    def _due(self, session: Session) -> bool:
        if not session.steps:
            return False
        ranks = len({step.pid for step in session.steps})
        passed_s = time.monotonic() - self._began_s - session.steps[0].start_s
        return is_first_verdict_due(len(session.steps), ranks, passed_s)
