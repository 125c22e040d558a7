"""A link to a server on loopback with latency, a bandwidth limit, and faults in the middle of answers on demand.

It forwards HTTP/1.1 connections unchanged and detects only the beginning of each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Fault = Literal["reset", "500", "cut", "wrong", "stall"]
Plan = Callable[[int, str], Fault | None]  # (number of the request, "GET /path HTTP/1.1 bytes=0-99") -> its fault

_CHUNK = 1 << 14
_METHODS = (b"GET ", b"PUT ", b"HEAD ", b"POST ", b"DELETE ")
_AFTER = 2000  # bytes of an answer before its fault: headers and a part of the body
_ERROR = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 8\r\n\r\n<Error/>"


@dataclass
class Link:
    """The link's behaviour, and counts of what it forwarded."""

    port: int  # of the server
    latency_s: float = 0.0  # added to each request
    bytes_s: float | None = None  # downstream limit over all connections
    stall_s: float = 1.0
    plan: Plan = lambda number, line: None
    requests: list[str] = field(default_factory=list)
    down_bytes: int = 0
    begun_s: float | None = None  # time of the first byte downstream; below of the last
    ended_s: float = 0.0
    _free_s: float = 0.0

    def reset(self) -> None:
        """Reset the counts."""
        self.requests.clear()
        self.down_bytes, self.begun_s, self.ended_s = 0, None, 0.0

    async def turn(self, size: int) -> None:
        """Wait until `size` bytes have passed the link."""
        self.down_bytes += size
        now_s = time.monotonic()
        self.begun_s = self.begun_s if self.begun_s is not None else now_s
        if self.bytes_s is not None:
            self._free_s = max(self._free_s, now_s) + size / self.bytes_s
            await asyncio.sleep(self._free_s - now_s)
        self.ended_s = time.monotonic()


class _Connection:
    def __init__(self, link: Link, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.link, self.client, self.to_client = link, client, to_client
        self.to_server: asyncio.StreamWriter | None = None
        self.fault: Fault | None = None
        self.answered = 0  # bytes of the current answer

    async def run(self) -> None:
        try:
            server, self.to_server = await asyncio.open_connection("127.0.0.1", self.link.port)
            await asyncio.gather(self._up(self.to_server), self._down(server))
        except (OSError, EOFError, asyncio.IncompleteReadError):
            pass
        finally:
            if self.to_server is not None:
                self.to_server.close()
            self.to_client.close()

    def abort(self) -> None:
        """Close both ends at once and drop unsent bytes."""
        for writer in (self.to_client, self.to_server):
            if writer is not None:
                writer.transport.abort()

    async def _up(self, to_server: asyncio.StreamWriter) -> None:
        while data := await self.client.read(_CHUNK):
            if data.startswith(_METHODS):
                line, *headers = data.split(b"\r\n\r\n", 1)[0].decode().split("\r\n")
                line += "".join(header[len("range:") :] for header in headers if header.lower().startswith("range:"))
                self.fault = self.link.plan(len(self.link.requests), line)
                self.link.requests.append(line)
                self.answered = 0
                await asyncio.sleep(self.link.latency_s)
                if self.fault == "500":
                    self.to_client.write(_ERROR)
                    continue
            to_server.write(data)
            await to_server.drain()
        to_server.close()

    async def _down(self, server: asyncio.StreamReader) -> None:
        while data := await server.read(_CHUNK):
            await self.link.turn(len(data))
            before, self.answered = self.answered, self.answered + len(data)
            if self.fault in ("reset", "cut") and self.answered > _AFTER:
                self._end(data[: max(0, _AFTER - before)])
                raise EOFError
            if self.fault == "stall" and before <= _AFTER < self.answered:
                await asyncio.sleep(self.link.stall_s)
            if self.fault == "wrong" and self.answered > _AFTER:
                keep = max(0, _AFTER - before)
                data = data[:keep] + bytes(byte ^ 0xFF for byte in data[keep:])
            self.to_client.write(data)
            await self.to_client.drain()
        self.to_client.close()

    def _end(self, data: bytes) -> None:
        self.to_client.write(data)
        if self.fault == "reset":
            raw: socket.socket = self.to_client.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.to_client.transport.abort()


@contextlib.contextmanager
def slow_link(port: int, **behaviour: Any) -> Iterator[tuple[Link, str]]:
    """Make a link to 127.0.0.1:`port`; yield it and the URL of its near end."""
    link = Link(port, **behaviour)
    started: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = []
    ready = threading.Event()

    connections: list[_Connection] = []
    forwarding: set[asyncio.Task[None]] = set()

    def connected(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        connections.append(_Connection(link, client, to_client))
        forwarding.add(asyncio.create_task(connections[-1].run()))

    async def serve() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=512)
        over = asyncio.Event()
        started.append((server.sockets[0].getsockname()[1], asyncio.get_running_loop(), over))
        ready.set()
        await over.wait()
        server.close()
        # Not asyncio's own tasks: one that has just accepted a connection would leave its socket open.
        while rest := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in rest & forwarding:
                task.cancel()
            for connection in connections:
                connection.abort()
            await asyncio.gather(*rest, return_exceptions=True)
        for connection in connections:
            connection.abort()
        await asyncio.sleep(0)  # sockets are closed by the loop

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    ready.wait(30)
    near, loop, over = started[0]
    try:
        yield link, f"http://127.0.0.1:{near}"
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)
