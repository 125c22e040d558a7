"""Tell while the command still runs that no training step comes any more, and where it stands."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from headrace.attach import standstill
from headrace.diagnosis.rules.standstill import OpenStandstill, open_standstill
from headrace.errors import SessionError
from headrace.session.model import Session

__all__ = ["StandstillNotice"]

POLL_S = 1.0


class StandstillNotice:
    """Context manager around a run that calls `tell` with a line when a standstill is seen, is a hang, and is over.

    The sampler writes a file at the first standstill only, so a run without one costs a look at a folder each second.

        with StandstillNotice(folder, print):
            watch(command, folder)
    """

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self._file = folder / standstill.FILE
        self._tell = tell
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="headrace-standstill", daemon=True)
        self._size = 0
        self._told: tuple[bool, bool] = (False, False)

    def __enter__(self) -> StandstillNotice:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to look, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join(timeout=10 * POLL_S)

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S):
            try:
                size = self._file.stat().st_size
            except OSError:  # no standstill yet
                continue
            if size != self._size:
                self._size = size
                try:
                    self._look(Session.load(self._file.parent))
                except SessionError:
                    continue
                except Exception:  # a fault of ours prints nothing into the terminal of the command
                    return

    def _look(self, session: Session) -> None:
        found = open_standstill(session)
        if found is None:
            if any(self._told):
                self._tell("steps come again")
            self._told = (False, False)
            return
        if found.hangs and not self._told[1]:
            self._tell(f"HANG: {found.words}{_confidence(found)}")
            self._told = (True, True)
        elif not any(self._told):
            self._tell(found.words)
            self._told = (True, False)


def _confidence(found: OpenStandstill) -> str:
    return f" (confidence {found.confidence:.2f}; the report follows when the command ends)"
