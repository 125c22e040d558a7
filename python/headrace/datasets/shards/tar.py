"""Tar members of a packed dataset: POSIX ustar; every header field but name, size and checksum is constant.

The bytes are therefore the same on every machine and at every time. A name that does not fit into ustar's 100 ASCII bytes
gets a pax header (POSIX.1-2001) before it, which every tar since 2001 reads.
"""

from __future__ import annotations

import os

from headrace.errors import FormatError

__all__ = ["BLOCK", "END", "header", "member", "padding"]

BLOCK = 512
END = bytes(2 * BLOCK)  # two zero blocks end an archive
_NAME_BYTES = 100  # field `name` of a ustar header
_MAX_SIZE = 8**11 - 1  # 11 octal digits: 8 GiB - 1

# The constant fields between name and size, and after the checksum (POSIX.1-2017, pax, "ustar Interchange Format").
_BEFORE_SIZE = b"0000644\0" + b"0000000\0" + b"0000000\0"  # mode, uid, gid
_MTIME = b"00000000000\0"
_TAIL = bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2 + bytes(167)  # link, magic, users, devices, prefix


def header(name: str, size: int) -> bytes:
    """Return the header blocks of a regular file of `size` bytes. Raise FormatError if size or name cannot be stored."""
    if not 0 <= size <= _MAX_SIZE:
        raise FormatError(f"{name}: {size} bytes do not fit into a tar member (8 GiB - 1 at most)")
    raw = os.fsencode(name)
    if len(raw) <= _NAME_BYTES and raw.isascii():
        return _block(raw, size, b"0")
    try:
        record = _pax_record(name.encode())
    except UnicodeEncodeError as error:
        raise FormatError(f"the member name {name!r} is not valid Unicode; escape it first") from error
    extended = _block(b"PaxHeaders/path", len(record), b"x") + record + padding(len(record))
    return extended + _block(_short(raw), size, b"0")


def member(name: str, data: bytes) -> bytes:
    """Return one whole member: header, data, padding to the next block."""
    return header(name, len(data)) + data + padding(len(data))


def padding(size: int) -> bytes:
    """Return the zero bytes that fill the last block of `size` bytes."""
    return bytes(-size % BLOCK)


def _block(name: bytes, size: int, kind: bytes) -> bytes:
    before = name.ljust(_NAME_BYTES, b"\0") + _BEFORE_SIZE + b"%011o\0" % size + _MTIME
    after = kind + _TAIL
    total = sum(before) + sum(after) + 8 * ord(" ")  # the checksum counts its own eight bytes as spaces
    return before + b"%06o\0 " % total + after


def _pax_record(path: bytes) -> bytes:
    """Return `LENGTH path=NAME\\n`, where LENGTH counts its own digits."""
    body = b" path=" + path + b"\n"
    length = len(body)
    while len(b"%d" % length) + len(body) != length:
        length = len(b"%d" % length) + len(body)
    return b"%d" % length + body


def _short(raw: bytes) -> bytes:
    """Return the name for readers without pax support: its end, which holds the extension, in ASCII."""
    return bytes(byte if byte < 128 else ord("_") for byte in raw[-_NAME_BYTES:]).lstrip(b"/")
