"""Bounds on what is read into memory at once, for files and servers of strangers (docs/reference/limits.md).

A claimed size costs nothing: a sparse file of 200 GB takes no disk, and a server may announce any length. So what is read whole
has a bound, and memory is asked for as bytes arrive.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, AnyStr

from headrace.errors import FormatError, UsageError
from headrace.system.text.sizes import parse_size, size_text

__all__ = [
    "DOCUMENT_BYTES",
    "LONGEST_LINE",
    "PIXEL_LIMIT",
    "RECORD_LIMIT",
    "larger_than",
    "lines_of",
    "max_pixels",
    "record_limit",
    "too_large",
]

RECORD_LIMIT = "HEADRACE_RECORD_LIMIT"
"""Environment variable with the largest accepted size of a record, such as 4GiB."""

_RECORD_BYTES = 1 << 30
"""Default largest size of a record's image, JSON and each sidecar file. The largest image of ImageNet-21k has 50 MB."""

PIXEL_LIMIT = "HEADRACE_MAX_PIXELS"
"""Environment variable with the largest accepted number of pixels of an image. Read once, before the first image."""

_PIXELS = 178_956_970
"""Default bound of an image's pixels, for which Pillow raises an error (twice 1024³/4/3); that of headrace-core's limits.rs."""

_LARGEST_PIXELS = 1 << 31

DOCUMENT_BYTES = 256 << 20
"""Largest manifest that is read: that of 14 million images in 21,841 classes has 1 MB."""

LONGEST_LINE = 1 << 16
"""Longest line of a list or an index, in characters; longer ones are refused. A path has at most 4,096."""


def record_limit() -> int:
    """Return the most bytes of a record's image, JSON or sidecar file. Raise UsageError for a setting that is no size."""
    text = os.environ.get(RECORD_LIMIT)
    if not text:
        return _RECORD_BYTES
    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(f"{RECORD_LIMIT}={text!r}: {error}", hint=f"for example {RECORD_LIMIT}=4GiB") from error


def max_pixels() -> int:
    """Return the most pixels that an image may have. Raise UsageError for a setting that is no number of pixels."""
    text = os.environ.get(PIXEL_LIMIT)
    if not text:
        return _PIXELS
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= _LARGEST_PIXELS):
        raise UsageError(
            f"{PIXEL_LIMIT}={text!r} is not a number of pixels from 1 to {_LARGEST_PIXELS:,}",
            hint=f"for example {PIXEL_LIMIT}=400000000",
        )
    return int(text)


def too_large(size: int, limit: int) -> str:
    """Return the clause of an error about `size` bytes above `limit`, and how to raise the limit."""
    return f"{larger_than(size, limit)} ({RECORD_LIMIT}=SIZE raises it)"


def larger_than(size: int, limit: int) -> str:
    """Return the clause of an error about `size` bytes above a `limit` that is fixed."""
    return f"has {size_text(size)}, more than the limit of {size_text(limit)}"


def lines_of(file: IO[AnyStr]) -> Iterator[AnyStr]:
    """Yield the lines of a file. Raise FormatError for one longer than LONGEST_LINE, such as the zeros of a sparse file."""
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE:
            raise FormatError(f"{file.name}, line {number} is longer than {LONGEST_LINE:,} characters", hint="check the file")
        yield line
