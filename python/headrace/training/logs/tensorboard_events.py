"""Scalars in the event files that TensorBoard reads, written without TensorFlow or the tensorboard package.

The file is a TFRecord of `Event` messages (tensorflow/core/util/event.proto): 1 wall_time, 2 step, 3 file_version,
5 summary; `Summary` holds values of 1 tag and 2 simple_value.
"""

from __future__ import annotations

import struct

from headrace.datasets.sources.archives.tfrecord import masked_crc32c

__all__ = ["head", "scalar"]


def head(wall_time_s: float) -> bytes:
    """Return the first record of a file."""
    return _record(_event(wall_time_s, 0, _bytes(3, b"brain.Event:2")))


def scalar(wall_time_s: float, step: int, tag: str, value: float) -> bytes:
    """Return the record of one value. `wall_time_s`: seconds since 1970."""
    return _record(
        _event(wall_time_s, step, _bytes(5, _bytes(1, _bytes(1, tag.encode()) + b"\x15" + struct.pack("<f", value))))
    )


def _record(data: bytes) -> bytes:
    """One TFRecord: length, its masked CRC-32C, the data, its masked CRC-32C."""
    length = struct.pack("<Q", len(data))
    length_crc, data_crc = (struct.pack("<I", masked_crc32c(part)) for part in (length, data))
    return length + length_crc + data + data_crc


def _event(wall_time_s: float, step: int, rest: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", wall_time_s) + b"\x10" + _varint(step) + rest


def _bytes(field: int, data: bytes) -> bytes:
    """Return a length-delimited protobuf field."""
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
