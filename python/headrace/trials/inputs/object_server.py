"""A read-only S3-compatible server for the files of one folder, on this machine: a process of its own.

    python -m headrace.trials.inputs.object_server FOLDER LATENCY_S

It prints its address and its bucket, answers `GET` and `HEAD` of `/BUCKET/PATH` with or without a range, and ends with the
process that started it. The name of the bucket is a secret, because any user of the machine may connect to the port.

A request waits for the latency of a store, then costs an open and a sendfile. Servers for tests of S3 clients do more: moto's
copies the whole object for each range, so that training on shards would measure that server.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import socketserver
import sys
import time
from email.utils import formatdate
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.system.processes.end_with_parent import end_with_parent

__all__ = ["ObjectServer", "main"]

_RANGE = re.compile(rb"\r\nrange:\s*bytes=(\d+)-(\d*)\s*\r\n", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"
_LONGEST_HEAD = 64 << 10  # largest request header that is read, in bytes


class _Connection(socketserver.StreamRequestHandler):
    """The requests of one connection, one after the other, with no more of HTTP than object stores' clients use."""

    disable_nagle_algorithm = True
    server: ObjectServer

    def handle(self) -> None:
        waiting = b""
        while True:
            while _HEAD_END not in waiting:
                data = self.connection.recv(1 << 16)
                if not data or len(waiting) > _LONGEST_HEAD:
                    return
                waiting += data
            head, _, waiting = waiting.partition(_HEAD_END)
            if not self._answer(head + b"\r\n"):
                return

    def _answer(self, head: bytes) -> bool:
        """Answer one request; return whether the connection stays open. A client that left is no error."""
        method, _, target = head.split(b"\r\n", 1)[0].decode("latin-1").rpartition(" ")[0].partition(" ")
        time.sleep(self.server.latency_s)
        try:
            if method not in ("GET", "HEAD"):
                return self._refuse(b"405 Method Not Allowed")
            file = self.server.file_of(target)
            if file is None:
                return self._refuse(b"404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>")
            with open(file, "rb") as opened:
                return self._send(opened.fileno(), method, _RANGE.search(head))
        except (ConnectionError, TimeoutError):
            return False

    def _send(self, file: int, method: str, wanted: re.Match[bytes] | None) -> bool:
        facts = os.fstat(file)
        begin, end, status = 0, facts.st_size, "200 OK"
        extra = ""
        if wanted is not None:
            begin, end = int(wanted[1]), min(facts.st_size, int(wanted[2]) + 1 if wanted[2] else facts.st_size)
            if begin >= end:
                return self._refuse(b"416 Range Not Satisfiable")
            status, extra = "206 Partial Content", f"Content-Range: bytes {begin}-{end - 1}/{facts.st_size}\r\n"
        head = (
            f"HTTP/1.1 {status}\r\nContent-Length: {end - begin}\r\n{extra}Accept-Ranges: bytes\r\n"
            f'ETag: "{facts.st_size:x}-{facts.st_mtime_ns:x}"\r\n'
            f"Last-Modified: {formatdate(facts.st_mtime, usegmt=True)}\r\n\r\n"
        )
        self.connection.sendall(head.encode())
        while method == "GET" and begin < end:
            sent = os.sendfile(self.connection.fileno(), file, begin, end - begin)
            if sent == 0:
                return False  # the file became shorter
            begin += sent
        return True

    def _refuse(self, status: bytes, body: bytes = b"") -> bool:
        self.connection.sendall(b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body))
        return False


class ObjectServer(socketserver.ThreadingTCPServer):
    """Serves the files below `folder` on a free port of the loopback address, each request after `latency_s`.

    with ObjectServer(folder, 0.02) as server:
        server.serve_forever()
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, latency_s: float) -> None:
        self.folder, self.latency_s = folder.resolve(), latency_s
        self.bucket = f"trials-{secrets.token_hex(16)}"
        super().__init__(("127.0.0.1", 0), _Connection)

    @property
    def address(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def file_of(self, target: str) -> Path | None:
        """Return the file below the folder that a request for `/BUCKET/PATH` means, or None if there is none."""
        bucket, _, name = unquote(urlsplit(target).path).lstrip("/").partition("/")
        if not hmac.compare_digest(bucket.encode(), self.bucket.encode()):
            return None
        file = self.folder / name
        inside = bool(name) and "\0" not in name and file.resolve().is_relative_to(self.folder)
        return file if inside and file.is_file() else None


def main(arguments: list[str]) -> int:
    """Print the server's address and bucket, then serve until the process that started it ends."""
    end_with_parent()
    with ObjectServer(Path(arguments[0]), float(arguments[1])) as server:
        print(server.address, server.bucket, flush=True)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
