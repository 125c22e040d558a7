"""Scalars in the event files that TensorBoard reads, written without TensorFlow or the tensorboard package.

The file is a TFRecord of `Event` messages (tensorflow/core/util/event.proto): 1 wall_time, 2 step, 3 file_version,
5 summary; `Summary` holds values of 1 tag and 2 simple_value.
"""

from __future__ import annotations

import struct

from headrace.datasets.sources.archives.tfrecord_writer import field, record, varint

__all__ = ["head", "scalar"]


def head(wall_time_s: float) -> bytes:
    """Return the first record of an event file, with its version. wall_time_s: seconds since 1970."""
    return record(_event(wall_time_s, 0, field(3, b"brain.Event:2")))


def scalar(wall_time_s: float, step: int, tag: str, value: float) -> bytes:
    """Return the event-file record of one value. wall_time_s: seconds since 1970."""
    return record(_event(wall_time_s, step, field(5, field(1, field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)))))


def _event(wall_time_s: float, step: int, rest: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", wall_time_s) + b"\x10" + varint(step) + rest
