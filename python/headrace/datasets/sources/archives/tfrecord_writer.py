"""Write TFRecord files of protobuf messages, without TensorFlow: framing, fields and numbers of variable length."""

from __future__ import annotations

import struct

from headrace.datasets.sources.archives.tfrecord import masked_crc32c

__all__ = ["field", "record", "varint"]


def record(data: bytes) -> bytes:
    """Return one record: the length of the data, its masked CRC-32C, the data, its masked CRC-32C."""
    length = struct.pack("<Q", len(data))
    length_crc, data_crc = (struct.pack("<I", masked_crc32c(part)) for part in (length, data))
    return length + length_crc + data + data_crc


def field(number: int, data: bytes) -> bytes:
    """Return a protobuf field of wire type 2: bytes with their length."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """Return a protobuf integer of variable length. `value`: 0 or more."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))
