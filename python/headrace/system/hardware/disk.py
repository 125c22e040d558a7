"""Measure how fast the storage of a folder reads, without the page cache.

Two numbers matter to training: large sequential reads (packed shards), and whole small files in random order (image folders).
posix_fadvise(DONTNEED) removes each file from the page cache without privileges, and mincore(2) checks that it did. A cache of
the hypervisor or of the disk cannot be seen, and may make the results too good.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import re
import stat
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from headrace.errors import SourceError
from headrace.system.files.regular_file import open_regular, regular_opener

__all__ = ["DiskSpeed", "file_system", "measure"]

BLOCK_BYTES = 1 << 20
SMALL_READ_BYTES = 128 << 10  # size of a small read: about one ImageNet JPEG (mean: 110 kB)
PROBE_FILE_BYTES = 192 << 20
MOST_FILES = 5_000
MOST_SMALL_READS = 400
MOST_LOOKED_BYTES = (
    1 << 30
)  # of a file, to see whether it has left memory: its size may be anything, and each page takes a byte
IN_MEMORY = ("tmpfs", "ramfs")

_OCTAL = re.compile(r"\\([0-7]{3})")  # how the kernel writes spaces, tabs, line feeds and backslashes of a mount point
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """The read speed at `path`.

    Small reads are made one at a time; several readers at once usually get more. `small_read_p50_s`: the median time to open
    and read one. `files`: what was read, in words. `cold`: False if the reads came from memory after all, None if unknown.
    """

    path: str
    file_system: str
    sequential_bytes_per_s: float
    small_reads_per_s: float
    small_read_p50_s: float
    small_read_bytes: float
    files: str
    cold: bool | None


def measure(path: Path, *, budget_s: float = 3.0, seed: int = 0) -> DiskSpeed:
    """Return the measured read speed of the files under `path`, or of a temporary file there if they are too few.

    `budget_s`: the time in seconds, without the time for writing the temporary file. `seed`: for the choice of small reads.
    Raise `SourceError` if there is nothing to read.
    """
    if not path.exists():
        raise SourceError(f"{path} does not exist", hint="give --path a folder or file on the storage to measure")
    files = _files(path)
    if sum(size for _, size in files) >= PROBE_FILE_BYTES // 8 or path.is_file():
        return _measure(path, files, budget_s, seed, f"{len(files):,} files found there")
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix=".headrace-disk-") as probe:
            _fill(probe.fileno())
            size = PROBE_FILE_BYTES
            return _measure(path, [(Path(probe.name), size)], budget_s, seed, "a temporary file")
    except OSError as error:
        raise SourceError(
            f"{path}: holds too few files to measure, and a test file cannot be written ({error.strerror})",
            hint="give --path a folder that holds the training data, or one that can be written to",
        ) from error


def file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Return the file system of `path` (`ext4`, `tmpfs`, `fuse.…`), by the longest mount point that matches."""
    best, kind = "", "unknown"
    where = str(path.resolve())
    # Other users mount, too: a name may hold whatever is no space and no line feed.
    for line in filter(None, os.fsdecode(mounts.read_bytes()).split("\n")):
        _, point, this_kind = line.split(" ")[:3]
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), point)
        if (where == point or where.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, this_kind
    return kind


def _files(path: Path) -> list[tuple[Path, int]]:
    if path.is_file():
        return [(path, path.stat().st_size)]
    return list(islice(_readable_files(path), MOST_FILES))


def _readable_files(folder: Path) -> Iterator[tuple[Path, int]]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            file = Path(parent, name)
            try:
                facts = file.lstat()
            except OSError:  # removed since the folder was listed, or in a folder that may be listed and not entered
                continue
            if stat.S_ISREG(facts.st_mode) and os.access(file, os.R_OK):
                yield file, facts.st_size


def _fill(descriptor: int) -> None:
    """Write bytes that do not compress, and wait until they are on the disk: only then can they leave the page cache."""
    block = random.Random(0).randbytes(BLOCK_BYTES)
    for _ in range(PROBE_FILE_BYTES // BLOCK_BYTES):
        os.write(descriptor, block)
    os.fsync(descriptor)


def _measure(path: Path, files: list[tuple[Path, int]], budget_s: float, seed: int, words: str) -> DiskSpeed:
    colds: list[bool | None] = []
    sequential = _sequential(sorted(files, key=lambda file: -file[1]), budget_s / 2, colds)
    times_s, read_bytes = _small_reads(files, budget_s / 2, random.Random(seed), colds)
    kind = file_system(path)
    return DiskSpeed(
        path=str(path),
        file_system=kind,
        sequential_bytes_per_s=sequential,
        small_reads_per_s=len(times_s) / sum(times_s),
        small_read_p50_s=statistics.median(times_s),
        small_read_bytes=read_bytes / len(times_s),
        files=words,
        cold=False if kind in IN_MEMORY else _mostly(colds),
    )


def _mostly(colds: list[bool | None]) -> bool | None:
    """Return whether at least 95 % of the files had left memory. A file that another process uses does not spoil the result."""
    known = [cold for cold in colds if cold is not None]
    return None if not known else sum(known) >= 0.95 * len(known)


def _sequential(files: list[tuple[Path, int]], budget_s: float, colds: list[bool | None]) -> float:
    """Return the rate in bytes per second over the largest files, read one after the other."""
    buffer = bytearray(BLOCK_BYTES)
    total, spent_s = 0, 0.0
    for file, _ in files:
        with contextlib.suppress(FileNotFoundError), _ColdFile(file, colds) as descriptor:
            started_s = time.perf_counter()
            while got := os.readv(descriptor, [buffer]):
                total += got
                if spent_s + time.perf_counter() - started_s > budget_s:
                    break
            spent_s += time.perf_counter() - started_s
        if spent_s > budget_s:
            break
    return total / max(spent_s, 1e-9)


def _small_reads(
    files: list[tuple[Path, int]], budget_s: float, dice: random.Random, colds: list[bool | None]
) -> tuple[list[float], int]:
    """Return the seconds of each small read (a whole file, or a piece of a larger one), and the number of bytes read."""
    times_s: list[float] = []
    total = 0
    deadline_s = time.perf_counter() + budget_s
    for _ in range(MOST_SMALL_READS):
        if times_s and time.perf_counter() > deadline_s:
            break
        file, size = dice.choice(files)
        offset = dice.randrange(size // SMALL_READ_BYTES) * SMALL_READ_BYTES if size > 2 * SMALL_READ_BYTES else 0
        with contextlib.suppress(FileNotFoundError):
            with _ColdFile(file, colds):
                pass
            started_s = time.perf_counter()
            with open(file, "rb", buffering=0, opener=regular_opener) as stream:
                total += len(os.pread(stream.fileno(), SMALL_READ_BYTES, offset))
            times_s.append(time.perf_counter() - started_s)
    if not times_s:
        raise SourceError("all files to read were removed meanwhile", hint="give --path a folder that no program changes")
    return times_s, total


class _ColdFile:
    """Opens a file, removes its pages from memory, and notes in `colds` whether they have left."""

    def __init__(self, file: Path, colds: list[bool | None]) -> None:
        self.file, self.colds = file, colds

    def __enter__(self) -> int:
        self.descriptor = open_regular(self.file)  # another user may have put a pipe in its place
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self.colds.append(_left_memory(self.descriptor))
        return self.descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)


def _left_memory(descriptor: int) -> bool | None:
    """Return whether no page of the file's begin is in memory, by mincore(2). None: the kernel does not report it.

    A non-blocking read (RWF_NOWAIT) would start read-ahead, so it is not used.
    """
    facts = os.fstat(descriptor)
    size = min(facts.st_size, MOST_LOOKED_BYTES)
    if size == 0:
        return True
    if facts.st_uid != os.geteuid() and os.geteuid() != 0:  # for files of other users the kernel reports "all in memory"
        return None
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as view:
        anchor = ctypes.c_char.from_buffer(view)  # has the address of the mapping; must be deleted before it
        failed = _libc.mincore(ctypes.c_void_p(ctypes.addressof(anchor)), ctypes.c_size_t(size), pages)
        del anchor
    return None if failed else not any(page & 1 for page in bytes(pages))
