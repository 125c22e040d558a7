"""SageMaker's Pipe mode: a channel arrives as a stream in a named pipe, CHANNEL_0 in the first epoch, CHANNEL_1 in the next.

The first stream is written to the cache as it comes and then read like any file, so that later epochs are shuffled anew
and need no second stream. A pipe has one reader: where several processes of a host need the data, use FastFile mode.
Streams are tar archives or RecordIO, one after the other as SageMaker sends a prefix's objects, or tar archives that
SageMaker wrapped (RecordWrapperType RecordIO: each object is one record).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from headrace.errors import FormatError, SourceError
from headrace.records import Dataset
from headrace.sources.cache import cache_folder
from headrace.sources.recordio import open_recordio
from headrace.sources.tar import open_tar

__all__ = ["open_pipe", "pipe_of"]

_WAIT_S = 300.0  # for the first byte: SageMaker begins to send when the pipe is opened
_READ = 1 << 20  # bytes
_MAGIC = 0xCED7230A
_USTAR = slice(257, 262)  # where a tar header says what it is
_copies: dict[tuple[str, int, int], tuple[str, Path]] = {}  # pipe -> kind and copy, of this process


def pipe_of(path: Path) -> Path | None:
    """The named pipe that `path` is, or the first one of the channel `path`; None when it is neither."""
    for candidate in (path, path.with_name(f"{path.name}_0")):
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(candidate.stat().st_mode):
                return candidate
    return None


def open_pipe(path: Path) -> Dataset:
    """Reads the named pipe to its end, then opens what came.

    Raises SourceError when nothing is sent or the cache has no room, FormatError for a stream that is neither tar nor RecordIO.
    """
    facts = path.stat()
    key = (str(path), facts.st_dev, facts.st_ino)
    if key in _copies:
        kind, copy = _copies[key]
        return (open_tar if kind == ".tar" else open_recordio)(path, [copy])
    folder = _own_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _stream(path) as source:
            kind, copy = _copies[key] = _copied(path, source, folder / f"{len(_copies)}-{path.name}")
    except OSError as error:
        raise SourceError(
            f"cannot keep the stream of {path} in {folder}: {error.strerror}",
            hint="Pipe mode needs a volume as large as the data: raise VolumeSizeInGB or set HEADRACE_CACHE, or use FastFile",
        ) from error
    return (open_tar if kind == ".tar" else open_recordio)(path, [copy])


def _own_folder() -> Path:
    """This process's folder for streams. Nothing on disk says whether a pipe is the one of an earlier job, so copies are not
    shared or kept: they go when the process ends, or when the next one finds those of a process that was killed."""
    base = cache_folder() / "pipe"
    own = base / str(os.getpid())
    with contextlib.suppress(FileNotFoundError):
        for other in base.iterdir():
            if other != own and not Path(f"/proc/{other.name}").exists():
                shutil.rmtree(other, ignore_errors=True)
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own


def _copied(path: Path, source: BinaryIO, target: Path) -> tuple[str, Path]:
    """Writes the stream to a file; its kind and place."""
    head = source.read(8 + 512)
    wrapped = len(head) >= 8 and struct.unpack_from("<I", head)[0] == _MAGIC
    if (head[8:] if wrapped else head)[_USTAR] == b"ustar":
        kind, pieces = ".tar", _unwrapped(path, head, source) if wrapped else _rest(head, source)
    elif wrapped:
        kind, pieces = ".rec", _rest(head, source)
    else:
        raise FormatError(
            f"{path} begins with {head[:8]!r}: neither a tar archive nor RecordIO",
            hint="send tar shards (headrace pack) or .rec files, or use FastFile mode",
        )
    part = target.with_name(target.name + ".part")
    with open(part, "wb") as file:
        for piece in pieces:
            file.write(piece)
    return kind, part.replace(target.with_name(target.name + kind))


def _rest(head: bytes, source: BinaryIO) -> Iterator[bytes]:
    yield head
    while piece := source.read(_READ):
        yield piece


def _unwrapped(path: Path, head: bytes, source: BinaryIO) -> Iterator[bytes]:
    """The payloads of a stream of RecordIO records (dmlc-core `recordio.h`), parts of a record joined by the magic number."""
    buffered = head

    def take(count: int) -> bytes:
        nonlocal buffered
        data, buffered = buffered[:count], buffered[count:]
        data += source.read(count - len(data))
        return data

    while words := take(8):
        magic, word = struct.unpack("<II", words) if len(words) == 8 else (0, 0)
        flag, length = word >> 29, word & ((1 << 29) - 1)
        if magic != _MAGIC or flag > 3:
            raise FormatError(f"{path}: the stream of records is damaged or cut off")
        if flag in (2, 3):
            yield _MAGIC.to_bytes(4, "little")
        left = length + -length % 4
        padding = left - length
        while left > 0:
            piece = take(min(left, _READ))
            if not piece:
                raise FormatError(f"{path}: the stream ended inside a record")
            left -= len(piece)
            yield piece[: len(piece) - padding] if left == 0 and padding else piece


@contextlib.contextmanager
def _stream(path: Path) -> Iterator[BinaryIO]:
    """The pipe, once something is in it. Opened without blocking first: a plain open would wait for a sender for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        waiter = select.poll()
        waiter.register(descriptor, select.POLLIN)
        deadline_s = time.monotonic() + _WAIT_S
        while not any(event & select.POLLIN for _, event in waiter.poll(200)):
            if time.monotonic() > deadline_s:
                raise SourceError(f"nothing came through {path} in {_WAIT_S:.0f} s", hint="is another process reading it?")
            time.sleep(0.01)  # a pipe whose sender left reports itself at once
        os.set_blocking(descriptor, True)
        with os.fdopen(descriptor, "rb", buffering=_READ, closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)
