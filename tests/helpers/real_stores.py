"""Real S3-compatible servers on loopback, each in processes of its own: moto's, and OpenStack Swift with its S3 API."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@dataclass(frozen=True)
class RealStore:
    """A running server: its endpoint and its keys."""

    endpoint: str
    access_key: str
    secret_key: str

    @property
    def port(self) -> int:
        return urlsplit(self.endpoint).port or 80

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """Return the variables that lead clients to the server, or to `endpoint`, the near end of a link before it."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
        }

    def upload(self, bucket: str, prefix: str, files: Iterable[Path]) -> None:
        """Create the bucket and upload files with boto3, which shares no code with the readers."""
        client = importlib.import_module("boto3").client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=bucket)
        for path in files:
            client.upload_file(str(path), bucket, f"{prefix}/{path.name}")


def missing(kind: str) -> str:
    """Return why a server cannot be started on this machine, or ""."""
    modules = ("obstore", "boto3") + (("moto.server",) if kind == "moto" else ())
    for name in modules:
        with contextlib.suppress(ImportError):
            if importlib.util.find_spec(name) is not None:
                continue
        return f"no {name}"
    if kind == "swift" and not all(map(shutil.which, ("swift-proxy-server", "swift-ring-builder", "memcached"))):
        return "no OpenStack Swift: see scripts/swift_server.py"
    return ""


@contextlib.contextmanager
def running(kind: str) -> Iterator[RealStore]:
    """Start a server, yield it, stop it."""
    with _moto() if kind == "moto" else _swift() as store:
        yield store


@contextlib.contextmanager
def _moto() -> Iterator[RealStore]:
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            log = ""
            while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", log)):
                line = process.stderr.readline()
                if not line:
                    raise RuntimeError(f"moto's server did not start: {log}")
                log += line
            drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)  # its log must not fill the pipe
            yield RealStore(found[0], "test", "testing")
        finally:
            process.terminate()
            process.wait(20)
    drain.wait(20)


@contextlib.contextmanager
def _swift() -> Iterator[RealStore]:
    command = [sys.executable, str(SCRIPTS / "swift_server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield RealStore(**json.loads(process.stdout.readline()))
        finally:
            process.stdin.close()
            process.wait(60)
