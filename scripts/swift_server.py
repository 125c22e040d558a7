"""Starts OpenStack Swift with its S3 API on loopback, as an ordinary user, in a temporary folder: a real store for tests.

    python scripts/swift_server.py        # prints one line of JSON (endpoint, access key, secret) and runs until stdin ends

Needs Debian's packages:  apt install --no-install-recommends swift-proxy swift-account swift-container swift-object memcached
Nothing is installed or started as a service, and nothing outside the temporary folder is written. Layout of the
configuration: https://docs.openstack.org/swift/latest/development_saio.html and the proxy-server.conf manual page.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ACCESS, SECRET = "test:tester", "testing"
PROGRAMS = ("swift-proxy-server", "swift-ring-builder", "memcached")
_START_S = 60.0

_STORE = """
[DEFAULT]
devices = {folder}/node
swift_dir = {folder}
mount_check = false
bind_ip = 127.0.0.1
bind_port = {port}
workers = 1
user = {user}
log_level = WARNING
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""
_PROXY = """
[DEFAULT]
swift_dir = {folder}
bind_ip = 127.0.0.1
bind_port = {port}
workers = 1
user = {user}
log_level = WARNING
[pipeline:main]
pipeline = catch_errors proxy-logging cache s3api tempauth slo dlo proxy-logging proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:proxy-logging]
use = egg:swift#proxy_logging
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{memcached}
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = {secret} .admin
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
"""


def missing() -> list[str]:
    """Return the programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Run all servers in `folder`; yield the endpoint's URL. Raise RuntimeError when one does not start."""
    kinds = ("account", "container", "object")
    ports = {kind: free_port() for kind in (*kinds, "proxy", "memcached")}
    user = getpass.getuser()
    (folder / "node" / "disk").mkdir(parents=True)
    for kind in kinds:
        config = _STORE.format(folder=folder, port=ports[kind], user=user, kind=kind)
        (folder / f"{kind}-server.conf").write_text(config)
        _ring(folder, kind, ports[kind])
    proxy = _PROXY.format(folder=folder, port=ports["proxy"], user=user, memcached=ports["memcached"], secret=SECRET)
    (folder / "proxy-server.conf").write_text(proxy)
    cache = ["memcached", "-l", "127.0.0.1", "-p", str(ports["memcached"]), *(["-u", user] if os.getuid() == 0 else [])]
    commands = [cache, *([f"swift-{kind}-server", str(folder / f"{kind}-server.conf")] for kind in (*kinds, "proxy"))]
    running = []
    try:
        with open(folder / "log", "ab") as log:
            running = [subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL) for command in commands]
        for port in ports.values():
            _wait(port, running, folder / "log")
        yield f"http://127.0.0.1:{ports['proxy']}"
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(timeout=20)


def _ring(folder: Path, kind: str, port: int) -> None:
    """Write the ring: one device, one replica."""
    builder = str(folder / f"{kind}.builder")
    device = f"r1z1-127.0.0.1:{port}/disk"
    for arguments in (["create", "4", "1", "1"], ["add", device, "1"], ["rebalance"]):
        subprocess.run(["swift-ring-builder", builder, *arguments], check=True, stdout=subprocess.DEVNULL)


def _wait(port: int, running: list[subprocess.Popen[bytes]], log: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        if any(process.poll() is not None for process in running):
            raise RuntimeError(f"a server ended at once:\n{log.read_text()[-3000:]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"nothing listens on port {port} after {_START_S:.0f} s:\n{log.read_text()[-3000:]}")


def main() -> int:
    """Serve until stdin ends."""
    if missing():
        print(f"not installed: {', '.join(missing())}; see the head of {__file__}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="headrace-swift-") as folder, serving(Path(folder)) as endpoint:
        print(json.dumps({"endpoint": endpoint, "access_key": ACCESS, "secret_key": SECRET}), flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
