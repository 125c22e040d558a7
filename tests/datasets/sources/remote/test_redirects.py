"""Redirects of a store to another host: no secret and no query arrives there."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import headrace
import pytest
from headrace.datasets.sources.remote import retry
from headrace.datasets.sources.remote.redirects import redirect_guard
from headrace.datasets.sources.remote.store import open_bucket
from headrace.errors import SourceError
from object_store import Bucket, TestCertificate, needs_obstore, serving

SECRET = "plantedQ7x"
STATIC = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1"}
AZURE = {"AZURE_STORAGE_ACCOUNT_NAME": "acc"}
SECRETS = {
    "session token": ("s3://b/data", "AWS_ENDPOINT_URL", STATIC | {"AWS_SESSION_TOKEN": SECRET}),
    "session token, S3's own variable": ("s3://b/data", "AWS_ENDPOINT_URL_S3", STATIC | {"AWS_SESSION_TOKEN": SECRET}),
    "shared access signature": (
        "az://b/data",
        "AZURE_STORAGE_ENDPOINT",
        AZURE | {"AZURE_STORAGE_SAS_TOKEN": f"sv=2024-01-01&sig={SECRET}"},
    ),
    "query": ("{}/data?X-Amz-Security-Token=" + SECRET, "", {}),
}


@dataclass
class Redirector:
    """A server that redirects every request to `target`."""

    target: str
    status: int
    headers: list[dict[str, str]] = field(default_factory=list)


@contextlib.contextmanager
def redirecting(to: Redirector, address: str = "127.0.0.1") -> Iterator[str]:
    """Serve the redirects; yield the URL of the server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            to.headers.append(dict(self.headers))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(to.status)
            self.send_header("Location", to.target + urlsplit(self.path).path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_POST = do_DELETE = do_PUT = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer((address, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield f"http://{address}:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials and no proxies of the machine. A refused redirect is not asked for again: obstore waits seconds for it."""
    monkeypatch.setattr(retry, "DEFAULT", replace(retry.DEFAULT, client_retries=0))
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@needs_obstore
@pytest.mark.parametrize("status", [301, 307, 308])
@pytest.mark.parametrize("kind", SECRETS)
def test_secrets_do_not_follow_a_redirect_to_another_host(kind: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    url, variable, values = SECRETS[kind]
    other = Bucket()
    with serving(other) as there, redirecting(Redirector(there.replace("127.0.0.1", "localhost"), status)) as endpoint:
        for name, value in values.items() | {(variable or "UNUSED", endpoint)}:
            monkeypatch.setenv(name, value)
        bucket = open_bucket(url.format(endpoint))
        for request in (
            lambda: bucket.read("headrace.json"),
            lambda: bucket.find("a"),
            lambda: bucket.read_range("a", 0, 1),
            lambda: bucket.read_ranges("a", [(0, 1), (2, 3)]),
        ):
            with pytest.raises(SourceError, match="redirects to another host") as caught:
                request()
            assert SECRET not in str(caught.value) and "name it in place" in (caught.value.hint or "")
        if not url.startswith("{}"):
            with pytest.raises(SourceError, match="redirects to another host"):
                bucket.list()
            with pytest.raises(SourceError):  # what has a body is not redirected
                bucket.write("a", b"x")
        with pytest.raises(SourceError, match="redirects to another host"):
            headrace.open(url.format(endpoint))
    assert other.requests == []


@needs_obstore
def test_a_redirect_within_the_host_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Bucket(objects={"data/a": b"bytes"})
    with serving(other) as there, redirecting(Redirector(there, 307)) as endpoint:
        for name, value in (STATIC | {"AWS_SESSION_TOKEN": SECRET, "AWS_ENDPOINT_URL": endpoint}).items():
            monkeypatch.setenv(name, value)
        assert open_bucket("s3://b/data").read("a") == b"bytes"


@needs_obstore
def test_a_redirect_to_another_host_is_followed_where_no_secret_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Web servers redirect to the hosts of their files, and some stores to their nodes; obstore removes `Authorization`."""
    seen = Redirector("http://127.0.0.1:1", 307)
    other = Bucket(objects={"data/a": b"bytes"})
    with (
        serving(other) as there,
        redirecting(seen, "127.0.0.2") as middle,
        redirecting(Redirector(middle, 307)) as endpoint,
    ):
        seen.target = there
        for name, value in (STATIC | {"AWS_ENDPOINT_URL": endpoint}).items():
            monkeypatch.setenv(name, value)
        assert open_bucket("s3://b/data").read("a") == b"bytes"
        assert open_bucket(f"{endpoint.replace('//', f'//me:{SECRET}@')}/b/data").read("a") == b"bytes"
    assert len(seen.headers) == 2
    assert not any(SECRET in value or name.lower() == "authorization" for one in seen.headers for name, value in one.items())


@needs_obstore
def test_a_guarded_store_is_reached_over_tls_and_by_other_spellings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Bucket(objects={"data/a": b"bytes"})
    certificate = TestCertificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
    for name, value in (STATIC | {"AWS_SESSION_TOKEN": SECRET}).items():
        monkeypatch.setenv(name, value)
    with serving(made, certificate) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        assert open_bucket("s3://b/data").read("a") == b"bytes"
        assert open_bucket(f"{endpoint}/b/data?sig={SECRET}").read("a") == b"bytes"
    with serving(made) as endpoint:
        for spelling in ("127.1", "0x7f000001", "LOCALHOST"):
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.replace("127.0.0.1", spelling))
            assert open_bucket("s3://b/data").read("a") == b"bytes", spelling


@pytest.mark.parametrize(
    ("values", "is_guarded"),
    [
        ({}, True),  # a role or a login gives the credentials
        ({"AWS_SKIP_SIGNATURE": "true"}, False),
        (STATIC, False),
        (STATIC | {"AWS_SESSION_TOKEN": SECRET}, True),
        (STATIC | {"AWS_SSE_CUSTOMER_KEY_BASE64": SECRET}, True),
        (STATIC | {"AWS_SESSION_TOKEN": SECRET, "AWS_PROXY_URL": "http://proxy"}, False),
        (STATIC | {"AWS_SESSION_TOKEN": SECRET, "https_proxy": "http://proxy"}, False),
        (STATIC | {"AWS_SESSION_TOKEN": SECRET, "https_proxy": "http://proxy", "no_proxy": "store.example"}, True),
        ({"https_proxy": "http://proxy", "no_proxy": "store.example"}, False),  # the role's server may need the proxy
    ],
)
def test_which_stores_are_guarded(values: dict[str, str], is_guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy takes the place of the guard: its rules decide which hosts are reached."""
    for name, value in (values | {"AWS_ENDPOINT_URL": "https://store.example:9000", "AWS_REGION": "eu-west-1"}).items():
        monkeypatch.setenv(name, value)
    hosts = redirect_guard("s3://b/data").get("proxy_excludes", "").split(",")
    assert ("store.example" in hosts) == is_guarded and ("sts.eu-west-1.amazonaws.com" in hosts) == is_guarded
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert redirect_guard("s3://b/data") == {}
