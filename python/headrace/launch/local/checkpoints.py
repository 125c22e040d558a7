"""Copy a host's checkpoints to the store while it trains, and back from the store before a restart.

As on SageMaker, a file that the host removes is removed in the store too, and all hosts share one prefix.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from headrace.errors import SourceError
from headrace.launch.local.places import Place

__all__ = ["CheckpointCopy"]

EVERY_S = 0.5


class CheckpointCopy:
    """Copies new files of `folder` to `store` in a background thread, until `close` makes the last copy.

    First the content of the store is copied to `folder`; raises `SourceError` or `OSError` if that fails. Later failures do not
    end the training: `problem` is the error of the latest copy in words, or None.
    """

    def __init__(self, folder: Path, store: Place) -> None:
        self._folder, self._store = folder, store
        self.problem: str | None = None
        self._sent: dict[str, tuple[int, int]] = {}
        self._stopped, self._lock = threading.Event(), threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._restore()
        self._thread = threading.Thread(target=self._run, name="headrace-checkpoints", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the copying thread, and copy the last new files."""
        self._stopped.set()
        self._thread.join()
        self.copy()

    def copy(self) -> None:
        """Copy new and changed files to the store now, and remove those that the host has removed."""
        with self._lock:
            try:
                self._copy()
                self.problem = None
            except (SourceError, OSError) as error:
                self.problem = str(error)

    def _copy(self) -> None:
        present = {}
        # os.walk passes over folders that the host renames or removes meanwhile; Path.rglob raises.
        for folder, _, names in os.walk(self._folder):
            for name in names:
                path = Path(folder) / name
                with contextlib.suppress(OSError):  # removed meanwhile: seen next time
                    found = path.stat()
                    present[path.relative_to(self._folder).as_posix()] = (found.st_mtime_ns, found.st_size)
        for name, state in present.items():
            if self._sent.get(name) != state and self._send(name):
                self._sent[name] = state
        for name in set(self._sent) - set(present):
            self._store.remove(name)
            del self._sent[name]

    def _restore(self) -> None:
        for name in self._store.fetch(self._folder):
            state = (self._folder / name).stat()
            self._sent[name] = (state.st_mtime_ns, state.st_size)

    def _send(self, name: str) -> bool:
        file = self._folder / name
        try:
            self._store.put(file, name)
        except OSError:
            if file.exists():
                raise
            return False  # the host renamed or removed it meanwhile
        return True

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_S):
            self.copy()
