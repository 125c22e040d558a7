"""The inputs of a host: folders for File and FastFile, named pipes for Pipe mode, shares of the objects.

In Pipe mode CHANNEL_0 holds the first pass, CHANNEL_1 the next, each made when its predecessor is opened. A pipe carries the
bytes of all objects one after another, or each object as an MXNet RecordIO record.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, SourceError
from headrace.launch.local.store import LocalStore

__all__ = ["Input", "PipeFeeder", "inputs_of"]

CODE = "code"
DRIVERS = "sm_drivers"
"""Channel of SageMaker's SDK 3 with the commands that start the script in `CODE`."""

RECORD_MAGIC = 0xCED7230A
LONGEST_RECORD = (1 << 29) - 1
PIECE = 1 << 16
WAIT_S = 0.02


@dataclass(frozen=True, slots=True)
class Input:
    """A channel of one host. objects: (name, path) of all objects of the channel, in the store's order, for all hosts."""

    name: str
    mode: str
    objects: Sequence[tuple[str, Path]]
    sharded: bool
    place: int
    hosts: int
    shuffle_seed: int | None
    record_io: bool
    content_type: str | None

    def share(self, epoch: int = 0) -> list[tuple[str, Path]]:
        """Return the objects that this host gets, in the epoch's order; with sharding by key, every n-th object for n hosts."""
        found = list(self.objects)
        if self.shuffle_seed is not None:
            random.Random(f"{self.shuffle_seed}:{epoch}").shuffle(found)
        return found[self.place :: self.hosts] if self.sharded else found

    def configuration(self) -> dict[str, str]:
        """Return the channel's entry of inputdataconfig.json."""
        found = {
            "TrainingInputMode": self.mode,
            "S3DistributionType": "ShardedByS3Key" if self.sharded else "FullyReplicated",
            "RecordWrapperType": "RecordIO" if self.record_io else "None",
        }
        return found if self.content_type is None else {**found, "ContentType": self.content_type}

    def fill(self, folder: Path) -> None:
        """Make the channel's folder: copies in File mode, links in FastFile mode, which reads in place."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in self.share():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if self.mode == "FastFile":
                target.symlink_to(path.absolute())
            else:
                shutil.copyfile(path, target)


def inputs_of(request: Mapping[str, Any], store: LocalStore, host: str, groups: Mapping[str, Sequence[str]]) -> list[Input]:
    """Return the channels that a host gets. `groups`: hosts by the name of their group.

    Raises `SourceError` for a channel without objects, `HeadraceError` for a source that cannot be had here.
    """
    default = request["AlgorithmSpecification"]["TrainingInputMode"]
    found = []
    names = [channel["ChannelName"] for channel in request.get("InputDataConfig") or []]
    for channel in request.get("InputDataConfig") or []:
        source = channel["DataSource"].get("S3DataSource")
        name = channel["ChannelName"]
        if source is None or source["S3DataType"] != "S3Prefix":
            raise HeadraceError(f"channel {name}: a local job reads S3 prefixes only", hint="use S3Prefix for a local job")
        wanted = source.get("InstanceGroupNames")
        hosts = [one for group, members in groups.items() if not wanted or group in wanted for one in members]
        if host not in hosts:
            continue
        objects = store.objects(source["S3Uri"])
        if not objects and (name != CODE or DRIVERS in names):
            hint = f"--channel {name}=FOLDER gives a folder for it, --fetch copies it"
            raise SourceError(f"channel {name}: no objects below {source['S3Uri']}", hint=hint)
        record_io = channel.get("RecordWrapperType") == "RecordIO"
        if record_io and (large := [path for _, path in objects if path.stat().st_size > LONGEST_RECORD]):
            raise HeadraceError(f"channel {name}: {large[0]} is larger than a RecordIO record can be, 512 MiB")
        found.append(
            Input(
                name,
                channel.get("InputMode") or default,
                objects,
                source.get("S3DataDistributionType") == "ShardedByS3Key",
                hosts.index(host),
                len(hosts),
                (channel.get("ShuffleConfig") or {}).get("Seed"),
                record_io,
                channel.get("ContentType"),
            )
        )
    return found


class PipeFeeder:
    """Writes a channel's data into its named pipes, NAME_0, NAME_1, …: one pass over the data each, until `stop`.

    If the reader closes a pipe early, the next pipe starts with the next pass.
    """

    def __init__(self, channel: Input, folder: Path) -> None:
        self._channel, self._folder = channel, folder
        self._stopped = threading.Event()
        self.passes = 0
        self.problem: str | None = None
        folder.mkdir(parents=True, exist_ok=True)
        os.mkfifo(self._path(0))
        self._thread = threading.Thread(target=self._run, name=f"headrace-pipe-{channel.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread that feeds the pipe, and wait for its end."""
        self._stopped.set()
        self._thread.join()

    def _path(self, epoch: int) -> Path:
        return self._folder / f"{self._channel.name}_{epoch}"

    def _run(self) -> None:
        while not self._stopped.is_set():
            pipe = self._open(self._path(self.passes))
            if pipe is None:
                return
            os.mkfifo(self._path(self.passes + 1))
            try:
                for _, path in self._channel.share(self.passes):
                    self._send(pipe, path)
            except (BrokenPipeError, _StoppedError):
                pass  # the reader has enough, or the job has ended
            except OSError as reason:
                self.problem = f"channel {self._channel.name}: {reason}"
                return
            finally:
                os.close(pipe)
            self.passes += 1

    def _open(self, path: Path) -> int | None:
        """Open a pipe once it has a reader; None if the job ends before."""
        while not self._stopped.is_set():
            try:
                return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as reason:
                if reason.errno != errno.ENXIO:  # ENXIO: no reader yet
                    return None
            self._stopped.wait(WAIT_S)
        return None

    def _send(self, pipe: int, path: Path) -> None:
        if self._channel.record_io:
            data = path.read_bytes()
            self._write(pipe, struct.pack("<II", RECORD_MAGIC, len(data)) + data + b"\0" * (-len(data) % 4))
            return
        with open(path, "rb") as file:
            while data := file.read(1 << 20):
                self._write(pipe, data)

    def _write(self, pipe: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self._stopped.is_set():
                raise _StoppedError
            with contextlib.suppress(BlockingIOError):
                view = view[os.write(pipe, view[:PIECE]) :]
                continue
            self._stopped.wait(WAIT_S / 10)


class _StoppedError(Exception):
    """The job has ended."""
