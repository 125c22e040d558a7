"""Append the measurements of the hooks in one process to that process's own file in the session."""

from __future__ import annotations

import atexit
import errno
import json
import multiprocessing
import os
import platform
import threading
import time
from collections.abc import Callable
from multiprocessing import util as multiprocessing_util
from pathlib import Path
from typing import Any

from headrace.attach.machine import procfs
from headrace.attach.record.load_hooks import SESSION_VARIABLE
from headrace.attach.record.log import log_line

__all__ = ["Recorder", "recorder", "writer_identity"]

FLUSH_INTERVAL_S = 0.5
IDLE_FLUSH_S = 1.0
"""Flush from the thread that samples stacks when no step or batch has flushed for this long: a job may stand still."""

PROC = Path("/proc")

MOST_ROWS = 50_000
THINNED_TO = 16
"""After the first `MOST_ROWS` rows of a table, record one row in this many: the session of a run of days must fit in memory."""


class Recorder:
    """Buffers rows in memory, and appends them to the file as whole lines, at most twice a second and at the end.

    A killed process loses at most the last half second. A forked child writes a file of its own. When the disk is full,
    recording ends and the job goes on.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.closed = False  # a process that is forked after the session records nothing either
        self.before_flush: list[Callable[..., None]] = []
        self._start_process()
        atexit.register(self.flush)
        os.register_at_fork(after_in_child=self._start_process)

    def _start_process(self) -> None:
        self._lock = threading.RLock()  # of a parent's lock, another thread may have been the owner at the fork
        self._rows: dict[tuple[str, int, int], list[list[Any]]] = {}
        self._lines: list[dict[str, Any]] = []
        self._counts: dict[tuple[str, int, int], int] = {}
        self._file: int | None = None
        self._flushed_s = time.monotonic()
        self._finalizer_pid: int | None = None
        self.pid = os.getpid()
        self.role: str | None = None

    def move(self, folder: Path) -> None:
        """Write to another session folder from now on."""
        self.flush()
        self._folder = folder
        if self._file is not None and self._is_own(self._file):
            os.close(self._file)
        self._start_process()
        self.closed = False

    def close(self) -> None:
        """Write the buffered rows. Later ones are dropped until `move`."""
        self.flush()
        self.closed = True

    def line(self, kind: str, **values: Any) -> None:
        """Add a JSON line to the buffer, which the next flush writes."""
        if not self.closed:
            with self._lock:
                self._lines.append({"kind": kind, "pid": self.pid, **values})

    def row(self, kind: str, loader: int, values: list[Any], *, worker: int = -1) -> None:
        """Add a row of a table to the buffer. The caller may change the list until the next flush."""
        if self._finalizer_pid != self.pid:
            # Children of multiprocessing end by os._exit, without atexit. Their finalizers run.
            self._finalizer_pid = self.pid
            multiprocessing_util.Finalize(None, self.flush, exitpriority=0)
        if self.closed:
            return
        table = (kind, loader, worker)
        with self._lock:
            count = self._counts[table] = self._counts.get(table, 0) + 1
            if count <= MOST_ROWS or count % THINNED_TO == 0:
                self._rows.setdefault(table, []).append(values)

    def event(self, name: str, start_s: float, duration_s: float, detail: str | None = None) -> None:
        """Record a named event, such as a pause of the training process. start_s: monotonic seconds."""
        self.line("event", name=name, start_s=start_s, duration_s=duration_s, detail=detail)

    def flush_when_due(self, now_s: float) -> None:
        """Flush if the last flush was at least half a second ago."""
        if now_s - self._flushed_s >= FLUSH_INTERVAL_S:
            self.flush(last=False)

    def flush_when_idle(self, now_s: float) -> None:
        """Flush, from a thread beside the training thread, if that has not flushed for a second."""
        if now_s - self._flushed_s >= IDLE_FLUSH_S:
            self.flush(last=False)

    def flush(self, *, last: bool = True) -> None:
        """Append the buffered rows to the file, in one write. last: also write counts that are still being collected."""
        with self._lock:
            self._flush(last)

    def _flush(self, last: bool) -> None:
        self._flushed_s = time.monotonic()
        for write in self.before_flush:
            write(last=last)
        lines, self._lines = self._lines, []
        rows, self._rows = self._rows, {}
        for (kind, loader, worker), values in rows.items():
            table = {"kind": kind, "pid": self.pid, "loader": loader, "rows": values}
            lines.append({**table, "worker": worker} if kind == "batches" else table)
        if not lines:
            return
        text = "".join(json.dumps(line, separators=(",", ":"), default=str) + "\n" for line in lines).encode()
        try:
            descriptor, is_new = self._descriptor()
            text = self._identity_line() + text if is_new else text
            if os.write(descriptor, text) < len(text):  # a line without its end must be the last one
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Record nothing more in this process, and say so once for a job: its workers write to the same disk."""
        self.closed = True
        if multiprocessing.parent_process() is None:
            why = error.strerror or error
            log_line(f"headrace: nothing more of this job is recorded: {self._folder} cannot be written: {why}")

    def _descriptor(self) -> tuple[int, bool]:
        """Return the descriptor of this process's file, and whether the file is new."""
        if self._file is not None and self._is_own(self._file):
            return self._file, False
        name = f"process-{self.pid}-{time.monotonic_ns()}.jsonl"
        self._file = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._identity = os.fstat(self._file)
        return self._file, True

    def _identity_line(self) -> bytes:
        """The first line of a file: which process writes it. A pid alone may be another machine's, or be used again."""
        line = {"kind": "recording", "pid": self.pid, **writer_identity(self.pid)}
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"

    def _is_own(self, descriptor: int) -> bool:
        """Whether the descriptor is still that of the file: a script that becomes a daemon closes all, and opens others."""
        try:
            return os.path.samestat(os.fstat(descriptor), self._identity)
        except OSError:
            return False


def writer_identity(pid: int) -> dict[str, Any]:
    """Return the machine's name and the process's start in ticks since boot, which identify a process together with its pid."""
    return {"hostname": platform.node(), "start_ticks": procfs.start_ticks(pid, PROC)}


_recorders: dict[str, Recorder] = {}


def recorder() -> Recorder:
    """Return the recorder of this process. Raise `KeyError` if the environment names no session folder."""
    folder = os.environ[SESSION_VARIABLE]
    if folder not in _recorders:
        _recorders[folder] = Recorder(Path(folder))
    return _recorders[folder]
