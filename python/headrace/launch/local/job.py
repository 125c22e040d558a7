"""A training job on local hosts, from a CreateTrainingJob request: attempts, interruptions, limits, results.

result = run_local(request, LocalStore(Path("s3")), Path("job"))
result.status, result.description["SecondaryStatusTransitions"]
"""

from __future__ import annotations

import json
import math
import shutil
import socket
import tarfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, SourceError
from headrace.launch.local.channels import inputs_of
from headrace.launch.local.checkpoints import CheckpointCopy
from headrace.launch.local.host import DEFAULT_GROUP, Host
from headrace.launch.local.store import LocalStore
from headrace.launch.local.watchdog import Watchdog
from headrace.launch.own_code.plain_reasons import plain_reasons
from headrace.launch.own_code.source import Source
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.private_files import check_output_folder, make_private_folder
from headrace.system.text.redaction import MASK, redact_words

__all__ = ["GRACE_S", "STORE", "Interruption", "LocalJob", "run_local"]

GRACE_S = 120.0
"""Seconds from SIGTERM to SIGKILL, as on SageMaker."""

POLL_S = 0.05

MARKER_FILE = ".headrace-local-job"
"""A file that marks the folder of a local job. Only folders with this file, or empty ones, are used and cleared."""
MARKER_TEXT = "headrace launch local keeps the trees of its hosts here and removes them before the next job\n"

PARTS = ("results", "logs", "hosts")
STORE = "s3"
"""Folders of a job that are removed before the next one, and the one in place of S3, which stays."""

Interruption = Callable[[Path, float], bool]
"""(folder of the stored checkpoints, seconds trained in this attempt) → whether the spot machines are taken away now."""


@dataclass
class LocalJob:
    """A finished local job. `description` has the form of DescribeTrainingJob. `killed`: hosts that ignored SIGTERM.

    ran_plain: why headrace was off in the script, or in a process of it; empty where it was not.
    """

    status: str
    description: dict[str, Any]
    folder: Path
    killed: list[str] = field(default_factory=list)
    interruptions: int = 0
    ran_plain: list[str] = field(default_factory=list)


def run_local(
    request: Mapping[str, Any],
    store: LocalStore,
    folder: Path,
    *,
    source: Source | None = None,
    interruptions: Sequence[Interruption] = (),
    grace_s: float = GRACE_S,
    log: Callable[[str], None] = lambda line: None,
    stopped: Callable[[], bool] = lambda: False,
) -> LocalJob:
    """Run the job of a valid request to its end and return it.

    folder: for the hosts' trees (`hosts/algo-1` is its /opt/ml), logs and `description.json`. source: script to run in place of
    `headrace train`. interruptions: one for each attempt, in order; spot jobs only. stopped: asked often; ends the job.

    Raises `HeadraceError` for a request that cannot run here.
    """
    return _Run(request, store, folder, source, list(interruptions), grace_s, log, stopped).run()


class _Run:
    """The state of a job while it runs."""

    def __init__(
        self,
        request: Mapping[str, Any],
        store: LocalStore,
        folder: Path,
        source: Source | None,
        interruptions: list[Interruption],
        grace_s: float,
        log: Callable[[str], None],
        stopped: Callable[[], bool],
    ) -> None:
        self.request, self.store, self.folder, self.source = request, store, folder, source
        self.interruptions, self.grace_s, self.log, self.stopped = interruptions, grace_s, log, stopped
        self.transitions: list[dict[str, str]] = []
        self.billed_s = 0.0
        self.trained_s = 0.0
        self.killed: list[str] = []
        self.count = 0
        uri = (request.get("CheckpointConfig") or {}).get("S3Uri")
        self.checkpoints = store.place(uri) if uri else None
        self.results_uri = f"{request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{request['TrainingJobName']}/output"
        self.results = store.place(self.results_uri)
        self.checkpoint_folder = store.path(uri) if uri else folder  # for interruptions that look at it
        self.marker = uuid.uuid4().hex
        self.hosts = _hosts(request, folder, self.marker)

    def run(self) -> LocalJob:
        """Run the job, and again after each interruption, until it ends; store its results. Nothing outlives this process."""
        self._clear_folder()
        with Watchdog(self.marker):
            return self._run()

    def _run(self) -> LocalJob:
        self._become("Starting", "Preparing the hosts")
        outcome, reason = "Interrupted", ""
        while outcome == "Interrupted":
            begun_s = time.monotonic()
            problem = None
            try:
                outcome, reason = self._attempt()
            except (SourceError, OSError) as error:
                outcome, reason = "Failed", f"ClientError: {error}"
            finally:
                for host in self.hosts:
                    host.kill()
                    problem = host.close() or problem
            if problem and outcome != "Failed":
                outcome, reason = "Failed", f"ClientError: checkpoints: {problem}"
            self.billed_s += time.monotonic() - begun_s
            if outcome == "Interrupted":
                self.count += 1
                files = (path for host in self.hosts for path in (host.base / "checkpoints").rglob("*"))
                lost = "" if any(path.is_file() for path in files) else "; nothing was saved: the next attempt begins anew"
                self._become("Interrupted", f"The machines were taken{lost}")
                self._become("Starting", "Waiting for machines")
        begun_s = time.monotonic()
        self._become("Uploading", "Storing model and output")
        artifacts = None
        try:
            artifacts = self._store_results(model=outcome != "Failed")
        except (SourceError, OSError) as error:
            outcome, reason = "Failed", reason or f"ClientError: {error}"
        self.billed_s += time.monotonic() - begun_s
        plain = plain_reasons(self.folder / "results" / "output")
        self._become(outcome, reason or "; ".join(["ran plain on " + line for line in plain]) or outcome)
        status = "Stopped" if outcome in ("Stopped", "MaxRuntimeExceeded") else outcome
        description = self._describe(status, outcome, reason, artifacts)
        return LocalJob(status, description, self.folder, self.killed, self.count, plain)

    def _clear_folder(self) -> None:
        """Remove what an earlier job left in its folder; what it stored stays, as in S3. Raises `HeadraceError` elsewhere."""
        marker = self.folder / MARKER_FILE
        if self.folder.exists() and not marker.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise HeadraceError(
                f"{self.folder} is not the folder of a local job, and is not empty", hint="--out FOLDER names another one"
            )
        for part in (MARKER_FILE, *PARTS, STORE):
            if (self.folder / part).is_symlink():  # what came with somebody else's files may lead anywhere
                raise HeadraceError(
                    f"{self.folder / part} is a link, which a local job does not follow", hint="--out FOLDER names another one"
                )
        try:
            make_private_folder(self.folder)  # the hosts' trees hold the request's variables and hyperparameters
            for part in PARTS:
                check_output_folder(self.folder / part)
            atomic_write(marker, MARKER_TEXT)
        except OSError as error:
            raise HeadraceError(
                f"cannot use {error.filename}: {error.strerror}", hint="--out FOLDER names another one"
            ) from error
        for part in PARTS:
            shutil.rmtree(self.folder / part, ignore_errors=True)

    def _attempt(self) -> tuple[str, str]:
        """Run all hosts once; return the secondary status and its reason."""
        self._become("Downloading", "Preparing the inputs")
        groups = self.hosts[0].groups
        inputs = {host.name: inputs_of(self.request, self.store, host.name, groups) for host in self.hosts}
        for host in self.hosts:
            host.make_folders(self.request, inputs[host.name], self.source)
            if self.checkpoints is not None:
                host.copy = CheckpointCopy(host.base / "checkpoints", self.checkpoints)
        self._become("Training", "Training")
        port = _free_port()
        for host in self.hosts:
            host.start(self.request, inputs[host.name], port, self.source)
        begun_s = time.monotonic()
        outcome, reason = self._watch(begun_s)
        self.trained_s += time.monotonic() - begun_s
        return outcome, reason

    def _watch(self, begun_s: float) -> tuple[str, str]:
        interruption = self.interruptions.pop(0) if self.interruptions else None
        limit_s = self.request["StoppingCondition"]["MaxRuntimeInSeconds"] - self.trained_s
        while True:
            running = [host for host in self.hosts if host.running]
            failed = [host for host in self.hosts if not host.running and host.process and host.process.returncode]
            passed_s = time.monotonic() - begun_s
            if failed:
                self._end_all()
                return "Failed", _reason(failed[0])
            if not running:
                return "Completed", ""
            if problem := next((feeder.problem for host in self.hosts for feeder in host.feeders if feeder.problem), None):
                self._end_all()
                return "Failed", f"InternalServerError: {problem}"
            if self.stopped():
                self._end_all()
                return "Stopped", "Stopped by the user"
            if passed_s > limit_s:
                self._end_all()
                return "MaxRuntimeExceeded", "MaxRuntimeInSeconds has passed"
            if interruption is not None and interruption(self.checkpoint_folder, passed_s):
                self.log("the machines are taken: SIGTERM")
                self._end_all()
                return "Interrupted", ""
            time.sleep(POLL_S)

    def _end_all(self) -> None:
        """Send SIGTERM to every host, and SIGKILL to hosts that still run after `grace_s` seconds."""
        for host in self.hosts:
            host.terminate()
        end_s = time.monotonic() + self.grace_s
        while any(host.running for host in self.hosts) and time.monotonic() < end_s:
            time.sleep(POLL_S)
        for host in self.hosts:
            if host.running:
                host.kill()
                self.killed.append(host.name)
                self.log(
                    f"{host.name} did not end within {self.grace_s:g} s of SIGTERM and was killed: its last steps are lost"
                )

    def _store_results(self, *, model: bool) -> str | None:
        """Put model and output where the request wants them; return the address of the model."""
        packed = self.request["OutputDataConfig"].get("CompressionType", "GZIP") == "GZIP"
        found = None
        for name, part in (("model", "model"), ("output", "output/data")):
            if name == "model" and not model:
                continue
            merged = self.folder / "results" / name
            for host in reversed(self.hosts):  # where names collide, the first host's file stays
                if (host.base / part).is_dir():
                    shutil.copytree(host.base / part, merged, dirs_exist_ok=True)
            if not merged.is_dir() or not any(merged.iterdir()):
                continue
            if packed:
                with tarfile.open(archive := merged.with_name(f"{name}.tar.gz"), "w:gz") as tar:
                    tar.add(merged, arcname=".")
                self.results.put(archive, archive.name)
            else:
                for file in sorted(path for path in merged.rglob("*") if path.is_file()):
                    self.results.put(file, f"{name}/{file.relative_to(merged).as_posix()}")
            if name == "model":
                found = f"{self.results_uri}/model.tar.gz" if packed else f"{self.results_uri}/model/"
        return found

    def _become(self, status: str, message: str) -> None:
        now = datetime.now(UTC).isoformat()
        if self.transitions:
            self.transitions[-1]["EndTime"] = now
        self.transitions.append({"Status": status, "StartTime": now, "StatusMessage": message})
        self.log(f"{status}: {message}" if message != status and status != "Failed" else status)

    def _describe(self, status: str, outcome: str, reason: str, artifacts: str | None) -> dict[str, Any]:
        seconds = math.ceil(self.billed_s)
        found = {
            **_without_secrets(self.request),
            "TrainingJobStatus": status,
            "SecondaryStatus": outcome,
            "SecondaryStatusTransitions": self.transitions,
            "TrainingTimeInSeconds": seconds,
            "BillableTimeInSeconds": seconds,
            "TrainingStartTime": self.transitions[1]["StartTime"],
            "TrainingEndTime": self.transitions[-1]["StartTime"],
        }
        if status == "Failed":
            found["FailureReason"] = reason
        if artifacts:
            found["ModelArtifacts"] = {"S3ModelArtifacts": artifacts}
        make_private_folder(self.folder)
        atomic_write(self.folder / "description.json", json.dumps(found, indent=1) + "\n", private=True)
        return found


def _without_secrets(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request for a description that may be handed on: values of variables are left out, other secrets masked."""
    found = {name: value for name, value in request.items() if name != "Tags"}
    if environment := found.get("Environment"):
        found["Environment"] = dict.fromkeys(environment, MASK)
    if parameters := found.get("HyperParameters"):
        found["HyperParameters"] = json.loads(redact_words([json.dumps(parameters)])[0])
    algorithm = dict(found.get("AlgorithmSpecification") or {})
    for name in {"ContainerEntrypoint", "ContainerArguments"} & algorithm.keys():
        algorithm[name] = redact_words(algorithm[name])
    return {**found, "AlgorithmSpecification": algorithm}


def _hosts(request: Mapping[str, Any], folder: Path, job: str) -> list[Host]:
    resources = request["ResourceConfig"]
    asked = resources.get("InstanceGroups") or [
        {
            "InstanceGroupName": DEFAULT_GROUP,
            "InstanceType": resources["InstanceType"],
            "InstanceCount": resources["InstanceCount"],
        }
    ]
    names = iter(f"algo-{number + 1}" for number in range(sum(group["InstanceCount"] for group in asked)))
    groups = {group["InstanceGroupName"]: [next(names) for _ in range(group["InstanceCount"])] for group in asked}
    types = {group["InstanceGroupName"]: group["InstanceType"] for group in asked}
    if not any(groups.values()):
        raise HeadraceError("the request asks for no instances")
    return [
        Host(name, group, folder.absolute() / "hosts" / name, folder.absolute() / "logs" / f"{name}.log", groups, types,
             f"{job}-{name}.")
        for group, members in groups.items()
        for name in members
    ]  # fmt: skip


def _reason(host: Host) -> str:
    words = host.failure().strip() or "\n".join(
        [f"exit code {host.process.returncode if host.process else 0}", *host.last_lines()]
    )
    return f"AlgorithmError: {host.name}: {words}"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
