"""Checkpoints in an object store: uploaded in the background, read back and compared, and loaded from there.

`URL/step-NNNNNNNNN/` holds the files of the local folder of that name. `state.json` is uploaded last, after everything else was
read back: a checkpoint that has it is whole. `_send_file` sends a file again if it reads back differently. Below that, each
single request is retried by `headrace/datasets/sources/remote/retry.py`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.datasets.sources.remote.store import Bucket, open_bucket
from headrace.errors import HeadraceError, SourceError, StateError
from headrace.system.text.size_limits import larger_than
from headrace.training.weights import checkpoint
from headrace.training.weights.checkpoint import STATE, TENSORS, Checkpoint

__all__ = ["Uploads", "check_writable", "load_remote_checkpoint", "remote_names"]

PIECE_BYTES = 8 << 20
CONNECTIONS = 4
ATTEMPTS = 2  # upload a file at most this often if its bytes come back different


class Uploads:
    """Uploads checkpoints to `url` in a background thread, and keeps the newest `keep` there.

    A newer checkpoint replaces one that still waits, so a slow link delays nothing. A failure is stored in `problem` and raised
    by `close`; the next checkpoint is uploaded all the same. `last` is the newest that was uploaded and read back.
    """

    def __init__(self, url: str, *, keep: int) -> None:
        self.bucket, self.keep = open_bucket(url), keep
        self.problem: HeadraceError | None = None
        self.last: str | None = None
        self._lock = threading.Lock()
        self._waiting: Path | None = None
        self._sending: Path | None = None
        self._thread: threading.Thread | None = None

    def submit(self, path: Path) -> None:
        """Upload the checkpoint in the folder `path` as soon as the current upload is done."""
        with self._lock:
            self._waiting = path
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headrace-upload")
                self._thread.start()

    def held(self) -> set[Path]:
        """Return the checkpoint folders that are still being uploaded or waiting, and must not be removed yet."""
        with self._lock:
            return {path for path in (self._waiting, self._sending) if path is not None}

    def _run(self) -> None:
        while True:
            with self._lock:
                path, self._waiting = self._waiting, None
                self._sending = path
                if path is None:
                    self._thread = None
                    return
            try:
                self._send(path)
                self.problem = None
            except (HeadraceError, OSError) as error:
                what = f"checkpoint {path} is whole, but is not in {self.bucket.url}: {error}"
                before = f"the newest one there is {self.last.rpartition('/')[2]}" if self.last else "there is none there yet"
                self.problem = HeadraceError(f"{what}; {before}", hint=getattr(error, "hint", None))

    def _send(self, path: Path) -> None:
        for name in (TENSORS, STATE):
            _send_file(self.bucket, f"{path.name}/{name}", path / name)
        self.last = f"{self.bucket.url}/{path.name}"
        older = [name for name in remote_names(self.bucket) if name <= path.name]
        whole = [name for name in older if self.bucket.size(f"{name}/{STATE}") is not None]
        for name in set(older) - set(whole[: self.keep]):  # the oldest, and those uploaded in part
            self.bucket.delete(f"{name}/{STATE}")
            self.bucket.delete(f"{name}/{TENSORS}")

    def wait(self) -> None:
        """Wait for all uploads."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Wait for all uploads, and raise the problem of the last one if it had one."""
        self.wait()
        if self.problem is not None:
            raise self.problem


def check_writable(bucket: Bucket) -> None:
    """Write, read and remove a small object, so that missing rights show before training.

    Raises SourceError if one of the requests fails, or if other bytes come back.
    """
    name, text = "headrace-may-write", b"headrace train tests here whether it can write; this object may be removed"
    bucket.write(name, text)
    if bucket.read(name, limit=2 * len(text)) != text:
        raise SourceError(
            f"{bucket.url}/{name} was written, but different bytes came back", hint="choose another --checkpoint-url"
        )
    bucket.delete(name)


def remote_names(bucket: Bucket) -> list[str]:
    """List the checkpoints in the store, newest first, incomplete ones too."""
    found = {entry.path.partition("/")[0] for entry in bucket.list() if entry.path.endswith((f"/{STATE}", f"/{TENSORS}"))}
    return sorted((name for name in found if name.startswith(checkpoint.PREFIX)), reverse=True)


def load_remote_checkpoint(bucket: Bucket, name: str) -> Checkpoint:
    """Load the checkpoint `name` and check every byte. Raise StateError naming the file that is missing or damaged."""
    where = f"{bucket.url}/{name}".rstrip("/")

    def read(file: str) -> bytes:
        path = f"{name}/{file}".lstrip("/")
        size = bucket.size(path)
        if size is None:
            raise StateError(f"{where} is incomplete: {file} is missing", hint="its upload was interrupted, or it was removed")
        if size > (limit := checkpoint.largest(file)):
            raise StateError(f"{where}: {file} {larger_than(size, limit)}", hint="choose another checkpoint")
        return b"".join(_pieces(bucket, path, size))

    return checkpoint.parse(where, read)


def _send_file(bucket: Bucket, path: str, file: Path) -> None:
    """Upload a file, read it back, and compare size and digest. Raises SourceError if they differ."""
    size = file.stat().st_size
    with open(file, "rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    there: int | None = None
    for _ in range(ATTEMPTS):
        bucket.write(path, file)
        there = bucket.size(path)
        if there == size and _digest(bucket, path, size) == digest:
            return
    raise SourceError(f"{bucket.url}/{path} reads differently ({there} bytes) than what was sent ({size} bytes)")


def _digest(bucket: Bucket, path: str, size: int) -> str:
    total = hashlib.sha256()
    for piece in _pieces(bucket, path, size):
        total.update(piece)
    return total.hexdigest()


def _pieces(bucket: Bucket, path: str, size: int) -> Iterator[bytes]:
    """Yield the bytes of an object in order, reading several pieces at a time."""
    with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="headrace-download") as pool:
        for begin in range(0, size, CONNECTIONS * PIECE_BYTES):
            starts = range(begin, min(size, begin + CONNECTIONS * PIECE_BYTES), PIECE_BYTES)
            yield from pool.map(lambda start: bucket.read_range(path, start, min(PIECE_BYTES, size - start)), starts)
