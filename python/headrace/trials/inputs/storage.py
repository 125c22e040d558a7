"""A packed dataset in other places than a local folder: an S3 server on this machine, and a pipe as SageMaker makes it."""

from __future__ import annotations

import atexit
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

from headrace.datasets.open import open as open_dataset
from headrace.datasets.records.dataset import Dataset
from headrace.errors import HeadraceError
from headrace.system.files.scratch_folder import scratch_folder
from headrace.system.processes.own_python import own_module

__all__ = ["open_stored"]

STORE_LATENCY_S = 0.02
"""Seconds that the simulated object store waits before it answers, as one in the same region; as in
`benchmarks/object_store.py`.
"""

_SERVERS: dict[Path, tuple[str, str]] = {}
_CACHE = ExitStack()
_SENDER = ExitStack()
atexit.register(_CACHE.close)
atexit.register(_SENDER.close)


def open_stored(folder: Path, form: str) -> Dataset:
    """Open the packed dataset in `folder` through another kind of storage. form: "s3" (a local server) or "pipe".

    Server, sender, and their folders end with this process. An object store's cache is empty at first.
    Raises `HeadraceError` where the server does not start.
    """
    return _in_s3(folder) if form == "s3" else _as_pipe(folder)


def _scratch() -> Path:
    """Return a folder that is removed when this process ends."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(scratch_folder("trials"))


def _in_s3(folder: Path) -> Dataset:
    """Open the folder through an S3 server on this machine, with an empty cache.

    The cache of the call before is removed, so each epoch reads every shard from the server.
    """
    _CACHE.close()
    cache = _CACHE.enter_context(scratch_folder("trials"))
    address, bucket = _server(folder.parent)
    os.environ |= {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "trials",
        "AWS_SECRET_ACCESS_KEY": "trials",
        "AWS_DEFAULT_REGION": "us-east-1",
        "HEADRACE_CACHE": str(cache),
    }
    return open_dataset(f"s3://{bucket}/{folder.name}")


def _server(folder: Path) -> tuple[str, str]:
    """Return the address and the bucket of the server of a folder's files; start it if need be."""
    if folder in _SERVERS:
        return _SERVERS[folder]
    command = own_module("headrace.trials.inputs.object_server", str(folder), str(STORE_LATENCY_S))
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    atexit.register(server.kill)
    assert server.stdout is not None
    address, _, bucket = server.stdout.readline().strip().partition(" ")
    if not bucket:
        raise HeadraceError("the object store of the trials did not start: see its output above")
    _SERVERS[folder] = address, bucket
    return _SERVERS[folder]


def _as_pipe(folder: Path) -> Dataset:
    """Make `train_0`, `train_1`, … as they are read, each with all shards one after the other.

    The sender of the call before ends.
    """
    _SENDER.close()
    channel = _scratch() / "train"
    shards = [str(shard) for shard in sorted(folder.glob("*.tar"))]
    os.mkfifo(f"{channel}_0")
    sender = subprocess.Popen(own_module("headrace.trials.inputs.pipe_sender", str(channel), *shards))
    _SENDER.callback(sender.wait)
    _SENDER.callback(sender.kill)
    return open_dataset(channel, records=len(open_dataset(folder)))
