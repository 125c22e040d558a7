"""How fast a folder's storage reads, with the page cache emptied of what is read.

Two numbers matter to training: large sequential reads (packed shards) and whole small files at random (image folders).
The cache is emptied per file with posix_fadvise(DONTNEED), which needs no privileges; whether that worked is
checked (mincore), not assumed.
A cache below this machine (a hypervisor's, a disk's own) cannot be seen and may flatter the numbers.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import stat
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from headrace.errors import SourceError

__all__ = ["DiskSpeed", "file_system", "measure"]

BLOCK_BYTES = 1 << 20
SMALL_READ_BYTES = 128 << 10  # about one ImageNet JPEG (110 kB on average)
PROBE_FILE_BYTES = 192 << 20
MOST_FILES = 5_000
MOST_SMALL_READS = 400
IN_MEMORY = ("tmpfs", "ramfs")

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """Read speed at `path`. `cold` is False where the reads came from memory after all, None where that is unknown.

    Small reads are one at a time: `small_read_p50_s` is the median time to open and read one,
    `small_reads_per_s` their rate. Several readers at once usually get more.
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
    """Measures reads of the files under `path`, or of one temporary file there if it holds too little.

    Takes at most about `budget_s` seconds, plus the writing of the temporary file. Raises SourceError.
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
    """The kind of file system `path` lies on (`ext4`, `tmpfs`, `fuse.…`), by the longest matching mount point."""
    best, kind = "", "unknown"
    where = str(path.resolve())
    for line in mounts.read_text().splitlines():
        _, point, this_kind = line.split()[:3]
        point = point.replace("\\040", " ")
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
            except FileNotFoundError:  # gone since the folder was listed
                continue
            if stat.S_ISREG(facts.st_mode) and os.access(file, os.R_OK):
                yield file, facts.st_size


def _fill(descriptor: int) -> None:
    """Writes bytes that do not compress, and waits until they are on the disk (only then can they leave memory)."""
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
    """True when at least 95 % of the files had left memory (one that another process holds does not spoil the rest)."""
    known = [cold for cold in colds if cold is not None]
    return None if not known else sum(known) >= 0.95 * len(known)


def _sequential(files: list[tuple[Path, int]], budget_s: float, colds: list[bool | None]) -> float:
    """Bytes a second over the largest files, one after the other."""
    buffer = bytearray(BLOCK_BYTES)
    total, spent_s = 0, 0.0
    for file, _ in files:
        with contextlib.suppress(FileNotFoundError), _cold(file, colds) as descriptor:
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
    """Seconds of each small read (whole files, or pieces of larger ones), and the bytes read in all."""
    times_s: list[float] = []
    total = 0
    deadline_s = time.perf_counter() + budget_s
    for _ in range(MOST_SMALL_READS):
        if times_s and time.perf_counter() > deadline_s:
            break
        file, size = dice.choice(files)
        offset = dice.randrange(size // SMALL_READ_BYTES) * SMALL_READ_BYTES if size > 2 * SMALL_READ_BYTES else 0
        with contextlib.suppress(FileNotFoundError):
            with _cold(file, colds):
                pass
            started_s = time.perf_counter()
            with open(file, "rb", buffering=0) as stream:
                total += len(os.pread(stream.fileno(), SMALL_READ_BYTES, offset))
            times_s.append(time.perf_counter() - started_s)
    if not times_s:
        raise SourceError("the files to read have all disappeared meanwhile", hint="give --path a folder at rest")
    return times_s, total


class _cold:
    """Opens a file with its pages dropped from memory, and notes whether they really left."""

    def __init__(self, file: Path, colds: list[bool | None]) -> None:
        self.file, self.colds = file, colds

    def __enter__(self) -> int:
        self.descriptor = os.open(self.file, os.O_RDONLY)
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self.colds.append(_left_memory(self.descriptor))
        return self.descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)


def _left_memory(descriptor: int) -> bool | None:
    """Whether none of the file's pages is in memory, by mincore(2); None where the kernel does not tell.

    mincore is asked rather than a read that must not wait (RWF_NOWAIT), because such a read starts read-ahead.
    """
    facts = os.fstat(descriptor)
    size = facts.st_size
    if size == 0:
        return True
    if facts.st_uid != os.geteuid() and os.geteuid() != 0:  # for another's file the kernel answers "all in memory"
        return None
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as view:
        anchor = ctypes.c_char.from_buffer(view)  # its address is the mapping's; it must be gone before the mapping is
        failed = _libc.mincore(ctypes.c_void_p(ctypes.addressof(anchor)), ctypes.c_size_t(size), pages)
        del anchor
    return None if failed else not any(page & 1 for page in bytes(pages))
