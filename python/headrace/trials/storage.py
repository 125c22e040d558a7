"""A packed dataset in other places than a local folder: an S3 server on this machine, and a pipe as SageMaker makes it."""

from __future__ import annotations

import atexit
import os
import re
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from headrace.datasets.open import open as open_dataset
from headrace.datasets.records import Dataset
from headrace.errors import HeadraceError
from headrace.system.scratch_folder import scratch_folder

__all__ = ["open_stored"]

BUCKET = "headrace-trials"
_SERVER: list[str] = []


def open_stored(folder: Path, form: str) -> Dataset:
    """Return the packed dataset in `folder` as it is read from `form`: "s3" or "pipe".

    Server, writers of pipes, and their folders end with this process. Raises `HeadraceError` where the server does not start.
    """
    return _in_s3(folder) if form == "s3" else _as_pipe(folder)


def _scratch() -> Path:
    """Return a folder that is removed when this process ends."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(scratch_folder("trials"))


def _in_s3(folder: Path) -> Dataset:
    import boto3

    if not _SERVER:
        _SERVER.append(_start_server())
        os.environ |= {
            "AWS_ENDPOINT_URL": _SERVER[0],
            "AWS_ACCESS_KEY_ID": "trials",
            "AWS_SECRET_ACCESS_KEY": "trials",
            "AWS_DEFAULT_REGION": "us-east-1",
            "HEADRACE_CACHE": str(_scratch()),
        }
    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    for file in sorted(entry for entry in folder.iterdir() if entry.is_file()):
        client.upload_file(str(file), BUCKET, f"{folder.name}/{file.name}")
    return open_dataset(f"s3://{BUCKET}/{folder.name}")


def _start_server() -> str:
    """Start moto's server on a free port and return its address."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    atexit.register(server.kill)
    assert server.stdout is not None
    for line in server.stdout:
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        if found:
            threading.Thread(target=server.stdout.read, daemon=True).start()  # a full pipe would stop the server
            return found[0]
    raise HeadraceError("moto's S3 server did not start", hint="pip install 'moto[server]'")


def _as_pipe(folder: Path) -> Dataset:
    """Make `train_0`, `train_1`, … as they are read, each with all shards one after the other."""
    channel = _scratch() / "train"
    shards = sorted(folder.glob("*.tar"))
    os.mkfifo(f"{channel}_0")
    threading.Thread(target=_write_passes, args=(channel, shards), daemon=True).start()
    return open_dataset(channel, records=len(open_dataset(folder)))


def _write_passes(channel: Path, shards: list[Path]) -> None:
    number = 0
    while True:
        path = f"{channel}_{number}"
        with open(path, "wb") as pipe:  # waits for the reader
            os.mkfifo(f"{channel}_{number + 1}")
            try:
                for shard in shards:
                    pipe.write(shard.read_bytes())
            except BrokenPipeError:
                pass  # the reader left its pass early
        number += 1
