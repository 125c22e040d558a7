"""A small S3-compatible server on loopback with latency, a bandwidth limit, errors, truncated and wrong bodies on demand."""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

needs_obstore = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", "import obstore"], capture_output=True).returncode != 0, reason="no obstore"
)

Fault = Callable[[int, str, str], str | None]
"""(number of the request, key, range that is asked for or "") -> "500", "reset", "cut", "wrong" or None;
"huge": a length of 1 TiB is announced; "more": a page of a listing without objects, which names the next one."""


@dataclass
class Bucket:
    """The server's state: objects by key, requests so far, and faults."""

    objects: dict[str, bytes] = field(default_factory=dict)
    written: dict[str, datetime.datetime] = field(default_factory=dict)  # time of change by key; default: 1 January 2024
    requests: list[str] = field(default_factory=list)
    fault: Fault = lambda number, key, part: None
    latency_s: float = 0.0
    bytes_s: float | None = None  # over all connections
    free_at_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fill(self, folder: Path, prefix: str) -> None:
        """Store every file below `folder` under `prefix`."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.objects[f"{prefix}/{path.relative_to(folder)}"] = path.read_bytes()

    def wait_for_bandwidth(self, size: int) -> None:
        """Sleep until `size` bytes have passed the shared link."""
        if self.bytes_s is None:
            return
        with self.lock:
            start_s = max(self.free_at_s, time.monotonic())
            self.free_at_s = start_s + size / self.bytes_s
        time.sleep(max(0.0, self.free_at_s - time.monotonic()))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the body waits 40 ms for the client's delayed acknowledgement of the headers
    bucket: Bucket

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        key = unquote(parts.path).lstrip("/").partition("/")[2]  # /BUCKET/KEY
        with self.bucket.lock:
            number = len(self.bucket.requests)
            self.bucket.requests.append(key or "list")
        time.sleep(self.bucket.latency_s)
        fault = self.bucket.fault(number, key, self.headers.get("Range", ""))
        if fault == "500":
            return self._answer(500, b"<Error/>")
        if fault == "reset":
            self.close_connection = True
            self.connection.close()
            return None
        if "list-type" in query and fault == "more":
            token = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{number}</NextContinuationToken>"
            return self._answer(200, f'<?xml version="1.0"?><ListBucketResult>{token}</ListBucketResult>'.encode())
        if "list-type" in query:
            return self._answer(200, self._listing(query.get("prefix", [""])[0]))
        data = self.bucket.objects.get(key)
        if data is None:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        return self._object(key, data, fault)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]
        self.bucket.objects[key] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"")

    def _object(self, key: str, data: bytes, fault: str | None) -> None:
        begin, end, status = 0, len(data), 200
        if "Range" in self.headers:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            begin, end, status = int(first), min(int(last) + 1 if last else len(data), len(data)), 206
        body = data[begin:end]
        if fault == "wrong":
            body = bytes(255 - byte for byte in body)
        self.bucket.wait_for_bandwidth(len(body))
        tag, date = self._facts(key)
        date_text = email.utils.format_datetime(date, usegmt=True)
        headers = {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}", "ETag": tag, "Last-Modified": date_text}
        self._answer(status, body, headers, cut=fault == "cut", announced=1 << 40 if fault == "huge" else len(body))

    def _answer(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        *,
        cut: bool = False,
        announced: int | None = None,
    ) -> None:
        with contextlib.suppress(OSError):  # a client that gave up
            self.send_response(status)
            for name, value in (headers or {"ETag": '"x"'}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body) if announced is None else announced))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[: len(body) // 2] if cut else body)
            self.wfile.flush()
            if cut or announced not in (None, len(body)):
                self.close_connection = True
                self.connection.close()

    def _facts(self, key: str) -> tuple[str, datetime.datetime]:
        """Return the object's tag and time of change."""
        date = self.bucket.written.get(key, _DATE)
        return f'"{date.timestamp():.0f}"', date

    def _listing(self, prefix: str) -> bytes:
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{date:%Y-%m-%dT%H:%M:%S}.000Z</LastModified>"
            f"<ETag>{tag}</ETag><Size>{len(data)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for key, data in sorted(self.bucket.objects.items())
            if key.startswith(prefix)
            for tag, date in [self._facts(key)]
        )
        return f'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>'.encode()

    def log_message(self, format: str, *args: object) -> None:
        pass


_DATE = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # errors of connections that a fault has closed


class TestCertificate:
    """A certificate for 127.0.0.1, signed by an authority that exists for one test."""

    __test__ = False  # pytest: not a test class

    def __init__(self, folder: Path) -> None:
        self.authority, self.chain, self.key = folder / "authority.pem", folder / "chain.pem", folder / "key.pem"
        request, extensions = folder / "request.pem", folder / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
        new_key = ("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=headrace test", "-keyout")
        authority_key = folder / "authority-key.pem"
        _openssl(*new_key, authority_key, "-x509", "-days", "2", "-out", self.authority)
        _openssl(*new_key, self.key, "-out", request)
        signed_by = ("-CA", self.authority, "-CAkey", authority_key, "-CAcreateserial")
        _openssl("x509", "-req", "-in", request, *signed_by, "-days", "2", "-extfile", extensions, "-out", self.chain)


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@contextlib.contextmanager
def serving(bucket: Bucket, certificate: TestCertificate | None = None) -> Iterator[str]:
    """Serve the bucket, over TLS if there is a certificate; yield the endpoint's URL."""
    handler = type("Handler", (_Handler,), {"bucket": bucket})
    with _Server(("127.0.0.1", 0), handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.chain, certificate.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def disk_bytes(cache: Path) -> int:
    """Return the size of the remote cache on disk."""
    return sum(file.stat().st_blocks * 512 for file in (cache / "remote").rglob("*") if file.is_file())
