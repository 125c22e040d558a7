"""Read the small files of counters below `/proc` and `/sys`, as the sampler of a watched job does dozens of times a second.

`open()` makes six system calls and three objects for a file that one read returns.
"""

from __future__ import annotations

import os

__all__ = ["read_counters"]

CHUNK_BYTES = 1 << 16
"""Bytes of one read. Nearly every such file is smaller."""


def read_counters(file: str | os.PathLike[str]) -> str | None:
    """Return the text of a file of counters, or None if it cannot be read. Bytes that are not UTF-8 are replaced.

    read_counters("/proc/self/schedstat")
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = chunk = os.read(descriptor, CHUNK_BYTES)
        while chunk:  # the kernel may return less than a file holds: only an empty read is its end
            chunk = os.read(descriptor, CHUNK_BYTES)
            content += chunk
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return content.decode("utf-8", "replace")
