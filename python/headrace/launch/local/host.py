"""One host of a local job: its folders, its JSON files and its process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.launch.in_container.container import BASE_VARIABLE
from headrace.launch.in_container.source_archive import PROGRAM
from headrace.launch.job_request.request_code import container_words, own_entry
from headrace.launch.local.channels import Input, PipeFeeder
from headrace.launch.local.checkpoints import CheckpointCopy
from headrace.launch.local.watchdog import MARKER, kill_marked
from headrace.launch.own_code.source import Source
from headrace.system.files.private_files import output_opener
from headrace.system.processes.own_python import own_module

__all__ = ["Host"]

KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCH_HOME")  # fmt: skip
"""Environment variables of this process that a host inherits. Others, such as keys, it does not see, as on SageMaker."""

LOG_BYTES = 2000
"""Look at so many bytes at the end of a log."""

DEFAULT_GROUP = "homogeneousCluster"


@dataclass
class Host:
    """One host of a local job. base: folder in place of /opt/ml. groups: host names by group. types: instance type by group."""

    name: str
    group: str
    base: Path
    log: Path
    groups: Mapping[str, Sequence[str]]
    types: Mapping[str, str]
    marker: str
    process: subprocess.Popen[bytes] | None = None
    copy: CheckpointCopy | None = None
    feeders: list[PipeFeeder] = field(default_factory=list)
    killed: bool = False

    def make_folders(self, request: Mapping[str, Any], inputs: Sequence[Input], source: Source | None) -> None:
        """Make the tree of a fresh container, and fill the channels in File and FastFile mode."""
        shutil.rmtree(self.base, ignore_errors=True)
        for folder in ("input/config", "input/data", "model", "output/data", "code", "checkpoints", "tmp"):
            (self.base / folder).mkdir(parents=True)
        hosts = [name for members in self.groups.values() for name in members]
        config = {
            "hyperparameters.json": request.get("HyperParameters") or {},
            "inputdataconfig.json": {one.name: one.configuration() for one in inputs},
            "resourceconfig.json": {
                "current_host": self.name,
                "current_instance_type": self.types[self.group],
                "current_group_name": self.group,
                "hosts": hosts,
                "instance_groups": [
                    {"instance_group_name": group, "instance_type": self.types[group], "hosts": list(members)}
                    for group, members in self.groups.items()
                ],
                "network_interface_name": "lo",
            },
        }
        if checkpoints := request.get("CheckpointConfig"):
            config["checkpointconfig.json"] = {"S3Uri": checkpoints["S3Uri"], "LocalPath": str(self.base / "checkpoints")}
        for name, value in config.items():
            (self.base / "input" / "config" / name).write_text(json.dumps(value), encoding="utf-8")
        if source is not None:
            source.stage(self.base / "code")
        for one in inputs:
            if one.mode != "Pipe":
                one.fill(self.base / "input" / "data" / one.name)

    def start(self, request: Mapping[str, Any], inputs: Sequence[Input], port: int, source: Source | None) -> None:
        """Start the container's process and the feeders of its pipes."""
        self.killed = False
        self.feeders = [PipeFeeder(one, self.base / "input" / "data") for one in inputs if one.mode == "Pipe"]
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        environment |= request.get("Environment") or {}
        environment |= {
            BASE_VARIABLE: str(self.base),
            "TRAINING_JOB_NAME": request["TrainingJobName"],
            "TRAINING_JOB_ARN": f"arn:aws:sagemaker:local:000000000000:training-job/{request['TrainingJobName']}",
            "HEADRACE_MASTER_ADDR": "127.0.0.1",
            "HEADRACE_MASTER_PORT": str(port),
            MARKER: self.marker,
        }
        if source is not None:
            environment |= source.variables()
        environment |= _ahead(Path(sys.executable).parent, "PATH", environment)  # scripts start this Python
        if not own_entry(request):  # its pip leaves this Python as it is
            packages = self.base / "packages"
            environment |= {"PIP_TARGET": str(packages)} | _ahead(packages, "PYTHONPATH", environment)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab", opener=output_opener) as log:
            self.process = subprocess.Popen(
                _command(request, self.base, source),
                env=environment,
                cwd=self.base / "tmp",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def terminate(self) -> None:
        """Send SIGTERM to the container's first process."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill every process of the host, as the end of a container does."""
        self.killed = self.killed or self.running
        kill_marked(self.marker)

    def close(self) -> str | None:
        """Wait for the process, stop feeding pipes and copying checkpoints; return the last copy's error in words, or None."""
        if self.process is not None:
            self.process.wait()
        self.kill_left_over()
        for feeder in self.feeders:
            feeder.stop()
        self.feeders = []
        if self.copy is None:
            return None
        self.copy.close()
        problem, self.copy = self.copy.problem, None
        return problem

    def kill_left_over(self) -> None:
        """Kill the processes that outlived the host's first process: a container ends with its first process."""
        killed = self.killed
        self.kill()
        self.killed = killed

    @property
    def running(self) -> bool:
        """Whether the host's first process is still running."""
        return self.process is not None and self.process.poll() is None

    def last_lines(self, count: int = 5) -> list[str]:
        """Return the last lines of the log."""
        try:
            with open(self.log, "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))  # it may have gigabytes
                lines = file.read(LOG_BYTES).decode("utf-8", "replace").splitlines()
        except OSError:
            return []
        return lines[-count:]

    def failure(self) -> str:
        """Return the text of the failure file, or ""."""
        try:
            return (self.base / "output" / "failure").read_text(encoding="utf-8", errors="replace")[:1024]
        except OSError:
            return ""


def _command(request: Mapping[str, Any], base: Path, source: Source | None) -> list[str]:
    """Return the command of the container; the entry of headrace is run by this Python, without an installation.

    A program of others sees `base` as `/opt/ml`. Our own training asks for its place, and needs no such thing.
    """
    words = own_module("headrace.launch.entry") if own_entry(request) else container_words(request)
    if own_entry(request) and source is None and PROGRAM not in (request.get("HyperParameters") or {}):
        return words
    return own_module("headrace.launch.local.bound_tree", str(base), *words)


def _ahead(place: Path, variable: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return a variable that holds a list of folders, with another folder in front."""
    return {variable: os.pathsep.join(filter(None, (str(place), environment.get(variable))))}
