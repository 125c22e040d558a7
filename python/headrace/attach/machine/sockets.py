"""The sockets of processes: their TCP connections, and the bytes that they have moved.

The kernel has no counter of socket bytes for each process. Its socket diagnosis (`sock_diag(7)`) lists the TCP sockets of the
network namespace with the bytes of each, and needs no privilege. `/proc/PID/fd` lists the sockets that a process holds.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from headrace.attach.machine import procfs

__all__ = ["SocketTraffic", "link_target", "tcp_bytes", "tcp_connections"]

SOCK_DIAG, BY_FAMILY, DUMP = 4, 20, 0x301
"""NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, and the flags NLM_F_REQUEST and NLM_F_DUMP (linux/netlink.h, linux/sock_diag.h)."""

ENDED, FAILED = 3, 2
"""NLMSG_DONE and NLMSG_ERROR."""

INFO = 2
"""INET_DIAG_INFO, the attribute of a socket that holds its `struct tcp_info` (linux/inet_diag.h)."""

HEADER = struct.Struct("=IHHII")
"""`struct nlmsghdr`: length, type, flags, number, port."""

INODE_AT, ATTRIBUTES_AT = 68, 72
"""Where `struct inet_diag_msg` has the inode of the socket, and where its attributes begin."""

COUNTERS = struct.Struct("=QQ")
COUNTERS_AT = 120
"""Where `struct tcp_info` has `tcpi_bytes_acked` and `tcpi_bytes_received` (Linux 4.1)."""

ANSWER_S = 1.0
"""Wait this long at most for the kernel's list."""

MOST_CONNECTIONS_BYTES = 1 << 20
ESTABLISHED = b"01"


@dataclass(slots=True)
class SocketTraffic:
    """What processes received and sent since the first call of `moved`, or the machine where theirs is not known."""

    _total: int = 0
    _sockets: dict[bytes, int] = field(default_factory=dict)
    _machine: int | None = None

    def moved(self, pids: Iterable[int], proc: Path, *, behind: bool) -> int:
        """Return the bytes that their sockets moved so far.

        behind: whether somebody else may receive for them, such as the kernel for a network file system. Then, and where a
        socket is new or gone, whose earlier bytes are not known, the machine's traffic since the last call counts.
        """
        machine, sockets = procfs.network_bytes(proc), _bytes_of(pids, proc)
        if self._machine is not None:
            if sockets is None or behind or sockets.keys() != self._sockets.keys():
                self._total += max(0, machine - self._machine)
            else:
                self._total += sum(max(0, moved - self._sockets[inode]) for inode, moved in sockets.items())
        self._machine, self._sockets = machine, sockets or {}
        return self._total


def _bytes_of(pids: Iterable[int], proc: Path) -> dict[bytes, int] | None:
    """Return the bytes of each TCP socket that the processes hold, by its inode. None: not known of all."""
    held: set[bytes] = set()
    namespace = link_target(f"{proc}/self/ns/net")
    for pid in pids:
        sockets = _sockets_of(str(pid))
        if sockets is None or link_target(f"{proc}/{pid}/ns/net") != namespace:
            return None
        held |= sockets
    known = tcp_bytes()
    return None if known is None else {inode: moved for inode, moved in known.items() if inode in held}


def tcp_bytes() -> dict[bytes, int] | None:
    """Return the bytes received and sent by each TCP socket of this network namespace, by its inode. None: refused."""
    found: dict[bytes, int] = {}
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            for message in _messages(family):
                _add(found, message)
    except (OSError, struct.error):
        return None
    return found


def _messages(family: int) -> list[bytes]:
    """Return one `struct inet_diag_msg` with its attributes for each TCP socket. Raises `OSError` where the kernel refuses."""
    request = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 1 << (INFO - 1), 0xFFFFFFFF) + bytes(48)
    found: list[bytes] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as kernel:
        kernel.settimeout(ANSWER_S)
        kernel.send(HEADER.pack(HEADER.size + len(request), BY_FAMILY, DUMP, 1, 0) + request)
        while True:
            data, at = kernel.recv(1 << 16), 0
            while at + HEADER.size <= len(data):
                length, kind, *_ = HEADER.unpack_from(data, at)
                if kind == ENDED:
                    return found
                if kind == FAILED or length < HEADER.size:
                    raise OSError("the kernel lists no sockets")
                found.append(data[at + HEADER.size : at + length])
                at += (length + 3) & ~3


def _add(found: dict[bytes, int], message: bytes) -> None:
    (inode,) = struct.unpack_from("=I", message, INODE_AT)
    at = ATTRIBUTES_AT
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == INFO and length >= 4 + COUNTERS_AT + COUNTERS.size:
            found[b"%d" % inode] = sum(COUNTERS.unpack_from(message, at + 4 + COUNTERS_AT))
        at += max(4, (length + 3) & ~3)


def tcp_connections() -> int | None:
    """Count the established TCP connections of this process, by its descriptors and `/proc/self/net/tcp`. None: unknown.

    Sockets of the parent, for example to other ranks, do not count: a forked worker holds them too.
    """
    own = _sockets_of("self")
    if own is None:
        return None
    own -= _sockets_of(str(os.getppid())) or set()
    try:
        found = 0
        for name in ("tcp", "tcp6"):
            with open(f"/proc/self/net/{name}", "rb") as file:
                rows = [line.split() for line in file.read(MOST_CONNECTIONS_BYTES).splitlines()[1:]]
            found += sum(len(row) > 9 and row[3] == ESTABLISHED and row[9] in own for row in rows)
    except OSError:
        return None
    return found


def _sockets_of(process: str) -> set[bytes] | None:
    """Return the inode numbers of a process's open sockets, or None if its descriptors cannot be listed."""
    folder = f"/proc/{process}/fd"
    try:
        targets = [link_target(f"{folder}/{number}") for number in os.listdir(folder)]  # noqa: PTH208 -- as below
    except OSError:
        return None
    return {target[8:-1].encode() for target in targets if target.startswith("socket:[")}


def link_target(path: str) -> str:
    """Return what a link points to; an empty text where it cannot be read."""
    try:
        return os.readlink(path)  # noqa: PTH115 -- pathlib would cost the worker's start
    except OSError:
        return ""  # closed meanwhile, like the descriptor of the listing itself
