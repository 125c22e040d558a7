"""SageMaker's Pipe mode: a channel arrives as a stream in a named pipe, CHANNEL_0 for the first pass, CHANNEL_1 for the next.

A stream is read once, in order, and not stored. A pipe has one reader: if several processes of a host need the data, use
FastFile mode. `copy_pipe` copies the first stream to the cache for callers that need any order (pack, inspect, train).
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import re
import select
import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from headrace.datasets.records.dataset import Dataset, fingerprint
from headrace.datasets.records.table import RecordTable, StreamRecord
from headrace.datasets.sources.archives.container_index_cache import cache_folder
from headrace.datasets.sources.archives.containers import numbered
from headrace.datasets.sources.fifo import check_pipe
from headrace.datasets.sources.stream import ByteStream, stream_records
from headrace.errors import SourceError, UnknownLengthError
from headrace.system.files.private_cache import make_cache_folder
from headrace.system.files.scratch_folder import scratch_folder
from headrace.system.text.printable import printable

__all__ = ["PipeStream", "copy_pipe", "open_pipe"]

_WAIT_S = 300.0  # wait this long for a pipe to appear and for the next bytes; SageMaker sends after the pipe is opened
_SENDER_S = 2.5  # outside a SageMaker job: refuse a pipe that no process has opened for writing after this time
_NOTICE_S = 3.0  # say what is awaited after this time
_POLL_MS = 100
_READ = 1 << 20  # bytes; also the size set for the pipe's buffer
_copies: dict[tuple[str, int, int], Dataset] = {}  # of this process


class PipeStream:
    """The passes over a channel. Each pass reads the next pipe; `pipe` is the first one."""

    def __init__(self, pipe: Path, records: int | None = None) -> None:
        name = re.fullmatch(r"(.*_)(\d+)", pipe.name)
        self._stem, self._next = (name[1], int(name[2])) if name else ("", 0)
        self._pipe, self._records = pipe, records
        self._begun: PipePass | None = None  # a pass that `records` has begun
        self.name = str(pipe)

    def records(self) -> int:
        """Return the number of records of one pass: as given, or from the manifest at the head of a packed dataset's stream.

        Raises UnknownLengthError if neither states it before the data.
        """
        if self._records is None and self._begun is None:
            self._begun = self.read()
            self._begun.begin()
        if self._records is None:
            raise UnknownLengthError(
                f"{self.name}: how many records the stream has is not known before its end",
                hint="headrace.open(path, records=N), or send a packed dataset with its headrace.json",
            )
        return self._records

    def read(self) -> PipePass:
        """Return the next pass. It raises SourceError if no pipe or no byte arrives, FormatError for a damaged stream."""
        if self._begun is not None:
            reading, self._begun = self._begun, None
            return reading
        pipe = self._pipe.with_name(f"{self._stem}{self._next}") if self._stem else self._pipe
        self._next += 1
        return PipePass(pipe, self)

    def set_records(self, records: int) -> None:
        """Set the number of records that a manifest in the stream states."""
        if self._records is None:
            self._records = records

    def check(self, pipe: Path, count: int) -> None:
        """Raise SourceError if a pass ended after another number of records than stated."""
        if self._records is not None and count != self._records:
            raise SourceError(
                f"{pipe} ended after {count} records; {self._records} were expected",
                hint="check that the manifest (or records=) belongs to these data",
            )


class PipePass:
    """One pass: the records that arrive through one pipe."""

    def __init__(self, pipe: Path, stream: PipeStream) -> None:
        self._stop = threading.Event()
        self._records = self._counted(pipe, stream)

    def __iter__(self) -> Iterator[StreamRecord]:
        return self._records

    def begin(self) -> None:
        """Read up to the first record and hold it for the iteration."""
        first = next(self._records, None)
        self._records = chain([] if first is None else [first], self._records)

    def stop(self) -> None:
        """End the pass, even if another thread waits for its next record."""
        self._stop.set()

    def _counted(self, pipe: Path, stream: PipeStream) -> Iterator[StreamRecord]:
        count = 0
        for record in stream_records(ByteStream(_pieces(pipe, self._stop), pipe), stream.set_records):
            count += 1
            yield record
        if not self._stop.is_set():
            stream.check(pipe, count)


def open_pipe(pipe: Path, records: int | None = None) -> Dataset:
    """Return a dataset that is read in order, once an epoch. Nothing is read yet."""
    none = np.zeros(0, dtype=np.int64)
    table = RecordTable((), none.astype(np.int32), none, none, none, [])
    # The content is unknown before it is read: the fingerprint is the pipe's name.
    return Dataset(str(pipe), "pipe", table, (), f"pipe:{pipe.name}", stream=PipeStream(pipe, records))


def copy_pipe(pipe: Path) -> Dataset:
    """Copy the stream of a named pipe into the cache, and open the copy.

    Raises SourceError if nothing is sent or the cache has no room, FormatError for a damaged stream.
    """
    facts = pipe.stat()
    key = (str(pipe), facts.st_dev, facts.st_ino)
    if key not in _copies:
        folder = cache_folder() / "pipe"
        try:
            make_cache_folder(folder)
            _copies[key] = _stored(pipe, _own_folder(folder, os.getpid()) / f"{len(_copies)}-{pipe.name}")
        except OSError as error:
            raise SourceError(
                f"cannot keep the stream of {pipe} in {folder}: {error.strerror}",
                hint="this needs a volume as large as the data: raise VolumeSizeInGB or set HEADRACE_CACHE, or use FastFile",
            ) from error
    return _copies[key]


def _stored(pipe: Path, target: Path) -> Dataset:
    keys, labels, places = list[str](), list[int | str | None](), list[tuple[int, int, int]]()
    at = 0
    with open(target, "wb") as file:
        for record in PipeStream(pipe).read():
            keys.append(record.key)
            labels.append(record.label)
            places.append((at, len(record.data), len(record.json)))
            at += file.write(record.data) + file.write(record.json)
    if not keys:
        raise SourceError(f"no images came through {pipe}")
    offset, size, json_size = np.array(places, dtype=np.int64).T.copy()
    label, classes = numbered(labels, {})
    table = RecordTable(
        files=(str(target),),
        file=np.zeros(len(keys), dtype=np.int32),
        offset=offset,
        size=size,
        label=label,
        keys=keys,
        json_offset=offset + size,
        json_size=json_size,
    )
    return Dataset(str(pipe), "pipe", table, classes, fingerprint(keys, size, label))


@functools.cache
def _own_folder(base: Path, process: int) -> Path:
    """Return the folder in `base` for the copies of this process, which has the number `process`.

    Nothing on disk tells a pipe from the one of an earlier job, so copies are not shared and are deleted at exit. Two
    containers with one cache have processes of the same number, so a lock, not the number, says which folder is in use.
    """
    stack = contextlib.ExitStack()
    atexit.register(lambda: stack.close() if os.getpid() == process else None)  # not in a fork, whose parent goes on
    return stack.enter_context(scratch_folder("pipe", base))


def _pieces(pipe: Path, stop: threading.Event) -> Iterator[bytes]:
    """Yield the bytes of the pipe until its sender closes it or `stop` is set. Raise SourceError after a silence of _WAIT_S."""
    descriptor = _opened(pipe, stop)
    if descriptor is None:
        return
    try:
        with contextlib.suppress(OSError):  # larger than the system allows: the buffer stays at 64 KiB
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _READ)
        waiter = select.poll()
        waiter.register(descriptor, select.POLLIN)
        came, wait = False, _Wait(f"the first bytes of {pipe}")
        while not stop.is_set():
            events = [event for _, event in waiter.poll(_POLL_MS)]
            piece = None
            if any(event & select.POLLIN for event in events):
                piece = os.read(descriptor, _READ)
                if not piece:
                    return
            elif came and events:  # the sender has closed the pipe and all of it is read
                return
            elif wait.seconds() > _WAIT_S:
                raise SourceError(f"nothing came through {pipe} in {_WAIT_S:.0f} s", hint="is another process reading it?")
            elif not came and wait.seconds() > _SENDER_S and not _in_training_job():
                piece = _read_from_sender(descriptor, pipe)
            if piece:
                yield piece
                came, wait = True, _Wait(f"the next bytes of {pipe}")
                continue
            wait.say_once()
            if events:
                stop.wait(0.01)  # poll returns at once for a pipe without a sender
    finally:
        os.close(descriptor)


class _Wait:
    """A wait that begins now. `say_once` prints what is awaited, once the wait has taken more than `_NOTICE_S` seconds."""

    def __init__(self, awaited: str) -> None:
        self._awaited, self._began_s, self._is_said = awaited, time.monotonic(), False

    def seconds(self) -> float:
        return time.monotonic() - self._began_s

    def say_once(self) -> None:
        if not self._is_said and self.seconds() > _NOTICE_S:
            self._is_said = True
            print(f"headrace: waiting for {printable(self._awaited)}, at most {_WAIT_S:.0f} s", file=sys.stderr, flush=True)


def _in_training_job() -> bool:
    """Return whether SageMaker, or `headrace launch local`, runs this process: its sender comes when the pipe is opened."""
    return "TRAINING_JOB_NAME" in os.environ


def _read_from_sender(descriptor: int, pipe: Path) -> bytes | None:
    """Return the bytes that have come since the last call; None if none. Raise SourceError if no process has the pipe open."""
    try:
        piece = os.read(descriptor, _READ)  # without a sender it ends at once
    except BlockingIOError:
        return None
    if piece:
        return piece
    raise SourceError(
        f"{pipe} is a named pipe, and no process writes to it",
        hint="name the folder or the file of the images; if they come through this pipe, start its sender first",
    )


def _opened(pipe: Path, stop: threading.Event) -> int | None:
    """Wait for the pipe and return its descriptor; None if `stop` was set. A blocking open would wait for a sender for ever."""
    wait = _Wait(f"the pipe {pipe}: each pass over a channel takes the next one")
    while not stop.is_set():
        try:
            descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            if wait.seconds() > _WAIT_S:
                raise SourceError(
                    f"there is no pipe {pipe} after {_WAIT_S:.0f} s; each pass over a channel takes the next one"
                ) from error
        except OSError as error:
            raise SourceError(f"cannot read {pipe}: {error.strerror}") from error
        else:
            try:
                check_pipe(pipe, os.fstat(descriptor))
            except SourceError:
                os.close(descriptor)
                raise
            return descriptor
        wait.say_once()
        stop.wait(0.1)
    return None
