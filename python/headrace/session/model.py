"""The session: what a run recorded, as plain data.

On disk, a session is a folder with one JSONL file per process. Each process appends whole lines to its own file, so writing
needs no lock, and a killed job still leaves a session; an incomplete last line is ignored. Clock times in the files are
`time.monotonic()` seconds, which all processes of a machine share. `Session` holds them as seconds since the command was
started.

A value that was not measured is None, never 0; `not_measured` says why.

Lines, by their `kind`: `session`, `exit` (the launcher), `recording` (the first of a process's file: pid, host name, start),
`process`, `loader`, `steps`, `batches`, `event`, `stacks`, `losses`, `contents`, `draws`, `ended` (attached processes),
`host`, `sample`, `standstill`, `standstill_over`, `job_end` (the sampler), `not_measured`. Unknown kinds and fields are
ignored, so that an older headrace reads a newer session.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from headrace.errors import SessionError
from headrace.session.batch_contents import Contents, contents_lines, read_contents
from headrace.session.endings import JobEnd, ProcessEnd
from headrace.session.joined_lines import loader_lines, process_lines
from headrace.session.machine import ForeignProgram, GpuProperties, GpuSample, Host, Sample
from headrace.session.stacks import Stack, read_stacks
from headrace.session.standstill import Standstill, read_standstills, standstill_lines
from headrace.session.typed_json import converter, field_converters, field_value
from headrace.system.files.private_files import make_private_folder, private_opener
from headrace.system.files.regular_file import read_regular
from headrace.system.hardware import machine
from headrace.system.text.install_hints import UPDATE_HINT
from headrace.system.text.json import check_values, count_values
from headrace.system.text.size_limits import record_limit
from headrace.system.text.sizes import size_text

__all__ = [
    "BATCH_FIELDS",
    "SESSION_VERSION",
    "STEP_FIELDS",
    "Batch",
    "Event",
    "Loss",
    "NotMeasured",
    "ObservedLoader",
    "Process",
    "Session",
    "Step",
    "owners",
    "save",
]

SESSION_VERSION = 1

MOST_CORES = 8192
"""Cores, and GPUs, of one sample: Linux has no more cores. Each has a row in the heat map, as long as the session."""
BYTES_OF_VALUE, MOST_OF_LIMIT = 128, 10
"""Memory that a value of a session takes. All its files together may take so many times the limit of one, or what is free."""
MOST_MESSAGE = 1000
"""Characters of the type or message of an exception. The recorder keeps 300; patterns are looked for from each character."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process that headrace attached to. `role` is "main" (iterates a loader) or "worker" (a DataLoader worker).

    thread_settings: variables such as OMP_NUM_THREADS, and the threads of the libraries in use, by name.
    environment, versions: of a main process, the variables that change its speed, and its libraries' versions, by name.
    """

    pid: int
    parent_pid: int
    role: str
    started_s: float
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    worker_id: int | None = None
    python: str = ""
    torch: str | None = None
    torch_threads: int | None = None
    argv: tuple[str, ...] = ()
    tensorflow: str | None = None
    thread_settings: Mapping[str, int | str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObservedLoader:
    """One loader that the job iterated, with the arguments that the script gave.

    loader: number of the loader in its process.
    family: whose iterator delivers the batches: "torch", "tensorflow", "headrace" (under `headrace run`), "kineto" (from a
        trace), or "none" (the script's own code).
    pipeline: stages of a tf.data dataset, source first.
    remade: how often the script created the same loader again.
    passes: how many iterators the script made of the loader, where it took only a batch or a few of each; else 0.
    pass_start_s, pass_stop_s: mean seconds in which the workers of such an iterator start, and end.
    iterable: whether the dataset has no indices.
    image_folder: whether `headrace run` can read the dataset itself.
    overridden: arguments that headrace replaced, to measure a fix.
    batch_format: dtype of the largest tensor of a batch.
    batched_by: what sets the batch size: "loader" (`batch_size=N`), "sampler" (`batch_sampler`), or "dataset" (neither).
    take_over: what `headrace run` would do with the loader: take over the "whole" or a "part", or "refused"; "active" when the
        script runs under `headrace run`; "unknown" when it could not be found out; None when nobody asked.
    take_over_reason: why it is not taken over as a whole, or why that is unknown.
    native_part: the last step that a take-over in part applies natively: "resized" or "cropped".
    """

    pid: int
    loader: int
    num_workers: int
    batch_size: int | None
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    dataset: str = ""
    dataset_length: int | None = None
    transform: str | None = None
    collate: str | None = None
    start_method: str | None = None
    sample_paths: tuple[str, ...] = ()
    family: str = "torch"
    overridden: tuple[str, ...] = ()
    pipeline: tuple[str, ...] = ()
    remade: int = 0
    iterable: bool | None = None
    image_folder: bool | None = None
    batch_format: str | None = None
    batched_by: str | None = None
    take_over: str | None = None
    take_over_reason: str | None = None
    native_part: str | None = None
    passes: int = 0
    pass_start_s: float = 0.0
    pass_stop_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """One training step of one loader: from the start of `next()` to the start of the following `next()`. Times in seconds.

    wait_s, compute_s: the time in `next()`, and the rest.
    ready: 1 when the batch was ready, 0 when it was not.
    items, batch_bytes: images and bytes of the batch.
    cpu_s, queue_s: training thread on a core, and waiting for one, within `compute_s`.
    wait_cpu_s, wait_queue_s: the same within `next()`.
    process_cpu_s: CPU time of the training process in this step, without its worker processes.
    sync_s, sync_count: calls that wait for the device (`.item()`, `.cpu()`, …).
    h2d_s: copies to the device.
    optimizer_steps: steps of an optimizer.
    gpu_wait_s: GPU without work because of this `next()`, on the GPU's clock.
    gpu_step_s: GPU time from the end of that wait to the end of the step's work.
    drained: 1 when the device had finished all earlier work when `next()` returned.
    after_s, after_cpu_s, after_queue_s: from the end of the last optimizer step to the end of the step, and the training thread
        on a core and waiting for one meanwhile.
    forward_s, backward_s, collective_s: with several ranks, from the batch to the end of forward, from there to the last
        gradient, and from there to the optimizer, which is the wait for the other ranks.
    """

    pid: int
    loader: int
    epoch: int
    start_s: float
    wait_s: float
    compute_s: float
    ready: int | None = None
    items: int | None = None
    cpu_s: float | None = None
    queue_s: float | None = None
    process_cpu_s: float | None = None
    sync_s: float | None = None
    sync_count: int | None = None
    h2d_s: float | None = None
    optimizer_steps: int | None = None
    gpu_wait_s: float | None = None
    gpu_step_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    collective_s: float | None = None
    batch_bytes: int | None = None
    wait_queue_s: float | None = None
    wait_cpu_s: float | None = None
    drained: int | None = None
    after_s: float | None = None
    after_cpu_s: float | None = None
    after_queue_s: float | None = None

    @property
    def step_s(self) -> float:
        """Wall time of the step, seconds."""
        return self.wait_s + self.compute_s


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch made by a worker, or by the training process with `num_workers=0`. Times in seconds.

    wall_s: the whole time: on a core (`cpu_s`), waiting for a core (`queue_s`), and blocked (storage, network, a lock).
    items: images of the batch.
    collate_s, collate_cpu_s: in the collate function, and on a core there.
    other_cpu_s: CPU time of the process outside the fetching thread since the previous batch (serialising, threads).
    idle_s: from the end of the previous batch to the start of this one.
    read_bytes, disk_bytes: read by system calls, and of these from a disk rather than the page cache.
    socket_s: in reads from sockets.
    alone: 1 when the other workers paused, while headrace measured whether storage slows down with concurrency.
    pool_cpu_s: CPU time of the process's other threads while the batch was made, Python threads left out.
    preempted: how often the kernel took the core from a running thread of the process meanwhile.
    refused: HTTP answers 429 and 503 meanwhile.
    """

    pid: int
    loader: int
    worker: int
    start_s: float
    wall_s: float
    items: int | None = None
    cpu_s: float | None = None
    queue_s: float | None = None
    collate_s: float | None = None
    collate_cpu_s: float | None = None
    other_cpu_s: float | None = None
    idle_s: float | None = None
    read_bytes: int | None = None
    disk_bytes: int | None = None
    socket_s: float | None = None
    major_faults: int | None = None
    alone: int | None = None
    pool_cpu_s: float | None = None
    preempted: int | None = None
    refused: int | None = None

    @property
    def blocked_s(self) -> float | None:
        """Wall time neither on a core nor waiting for one; None where the kernel does not report the wait for a core."""
        if self.cpu_s is None or self.queue_s is None:
            return None
        return max(0.0, self.wall_s - self.cpu_s - self.queue_s)


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss that the script trains on: the first tensor on which it calls `backward()` in a step.

    value: its mean over the steps since the previous one; on a GPU the value of one step.
    """

    pid: int
    time_s: float
    value: float


@dataclass(frozen=True, slots=True)
class Event:
    """A named event in one process: gc, save, compile, workers_start, imports, download, operators, probe, …"""

    pid: int
    name: str
    start_s: float
    duration_s: float
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """A quantity that could not be measured (`what`), and the reason (`why`)."""

    what: str
    why: str


STEP_FIELDS = tuple(item.name for item in fields(Step) if item.name not in ("pid", "loader"))
"""Order of the values in one row of a `steps` line. Values that a shorter row lacks were not measured."""

BATCH_FIELDS = tuple(item.name for item in fields(Batch) if item.name not in ("pid", "loader", "worker"))
"""Order of the values in one row of a `batches` line."""


@dataclass(frozen=True, slots=True)
class Session:
    """Everything that one run recorded. Times are seconds since the command was started; `started_at` is Unix time.

    ends, job_end: how its Python processes ended, and the machine at the end; None while the command runs.
    facts: single values by name, such as `configuration` (settings of the training process), `image_benchmark`, `read_sweep`,
        `replay`, `time_limit_s`, `stopped_by` (the signal that asked to stop the command).
    """

    command: tuple[str, ...] = ()
    cwd: str = ""
    started_at: float | None = None
    duration_s: float | None = None
    exit_code: int | None = None
    host: Host = field(default_factory=Host)
    processes: tuple[Process, ...] = ()
    loaders: tuple[ObservedLoader, ...] = ()
    steps: tuple[Step, ...] = ()
    batches: tuple[Batch, ...] = ()
    events: tuple[Event, ...] = ()
    stacks: tuple[Stack, ...] = ()
    losses: tuple[Loss, ...] = ()
    samples: tuple[Sample, ...] = ()
    not_measured: tuple[NotMeasured, ...] = ()
    ends: tuple[ProcessEnd, ...] = ()
    job_end: JobEnd | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    version: int = SESSION_VERSION
    standstills: tuple[Standstill, ...] = ()
    contents: Contents = field(default_factory=Contents)

    @staticmethod
    def load(folder: str | Path) -> Session:
        """Return the session in a folder. Raises `SessionError` if the folder holds none, a damaged one, or a newer version's.

        Example: `Session.load("headrace-sessions/2026-11-20-141205").steps`
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise SessionError(f"{folder} is not a session folder", hint="give the folder that `headrace diagnose` named")
        files = sorted(folder.glob("*.jsonl"))
        if not files:
            raise SessionError(f"{folder} holds no session (no .jsonl file)", hint="run `headrace diagnose -- COMMAND`")
        try:
            lines = list(_lines(folder, files))
            if not lines:
                raise _no_session(folder)
            return _merge(lines)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise SessionError(
                f"{folder} holds lines that are not a session's ({type(error).__name__}: {error})",
                hint="give the folder that `headrace diagnose` named, with nothing else in it",
            ) from error

    def save(self, folder: str | Path) -> Path:
        """Write the session as `session.jsonl` in a folder. `load` reads back an equal session. Return the folder."""
        return save(self, folder)


def _no_session(folder: Path) -> SessionError:
    """Return the error for a folder without a session. A folder of `headrace train` has its sessions further below."""
    below = sorted(path.parent for path in folder.glob("sessions/*/launch.jsonl"))
    hint = f"a training run's session is {below[-1]}" if below else "give the folder that `headrace diagnose` named"
    return SessionError(f"{folder} holds no session: no line in its .jsonl files is one of a session", hint=hint)


def _lines(folder: Path, files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield the lines of the files of a session. One that does not parse, such as the last of a killed process, is left out.

    Raises `SessionError` for a file that cannot be read, and for files that together take more than the free memory.
    """
    taken = 0
    for file in files:
        try:
            data = read_regular(file)
            check_values(data)
        except OSError as error:
            raise SessionError(f"cannot read {file}: {error.strerror or error}") from error
        taken += len(data) + BYTES_OF_VALUE * count_values(data)
        if taken > MOST_OF_LIMIT * record_limit() and taken > (free := machine.memory().free_bytes):
            words = f"take {size_text(taken)} or more in memory, and {size_text(free)} are free"
            raise SessionError(f"the files of {folder} {words}", hint="read it on a machine with more memory")
        for line in data.decode("utf-8", errors="replace").splitlines():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict) and "kind" in value:
                yield value


Fact = TypeVar("Fact")


def _build(kind: type[Fact], values: Mapping[str, Any], **given: Any) -> Fact:
    """Return a dataclass built from those of the values that it has a field for; `given` are of its types already.

    Raises `ValueError` for a value of another type.
    """
    described: Any = kind
    known = field_converters(described).keys() - given.keys()
    return kind(**{name: field_value(kind, name, value) for name, value in values.items() if name in known}, **given)


def _merge(lines: Iterable[dict[str, Any]]) -> Session:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_kind.setdefault(line["kind"], []).append(line)
    header = (by_kind.get("session") or [{}])[0]
    if converter(int)(header.get("version", SESSION_VERSION)) > SESSION_VERSION:
        raise SessionError(
            f"the session has version {header['version']}, this headrace reads up to {SESSION_VERSION}",
            hint=UPDATE_HINT,
        )
    zero_s = converter(float)(header.get("monotonic_s", 0.0))
    ends = by_kind.get("exit") or [{}]
    facts: dict[str, Any] = {}
    for line in by_kind.get("fact", []):
        facts[str(line["name"])] = line["value"]
    end_s = converter(float | None)(ends[-1].get("monotonic_s"))
    plain = {
        "command": header.get("command", ()),
        "cwd": header.get("cwd", ""),
        "started_at": header.get("started_at"),
        "exit_code": ends[-1].get("code"),
        "facts": facts,
    }
    return _build(
        Session,
        plain,
        duration_s=None if end_s is None else end_s - zero_s,
        host=_host(by_kind.get("host", [])),
        processes=tuple(_shifted(Process, line, zero_s, "started_s") for line in process_lines(by_kind)),
        loaders=tuple(_build(ObservedLoader, line) for line in loader_lines(by_kind)),
        steps=tuple(sorted(_rows(Step, STEP_FIELDS, by_kind.get("steps", []), zero_s), key=lambda step: step.start_s)),
        batches=tuple(
            sorted(
                (
                    batch
                    for batch in _rows(Batch, BATCH_FIELDS, by_kind.get("batches", []), zero_s)
                    if end_s is None or batch.start_s + zero_s <= end_s
                ),  # persistent workers live on after a `headrace.watch` block has ended
                key=lambda batch: batch.start_s,
            )
        ),
        events=tuple(
            sorted(
                (_shifted(Event, line, zero_s, "start_s") for line in by_kind.get("event", [])),
                key=lambda event: event.start_s,
            )
        ),
        stacks=read_stacks(by_kind.get("stacks", [])),
        losses=tuple(sorted(_losses(by_kind.get("losses", []), zero_s), key=lambda loss: loss.time_s)),
        samples=tuple(sorted((_sample(line, zero_s) for line in by_kind.get("sample", [])), key=lambda s: s.time_s)),
        standstills=read_standstills(by_kind.get("standstill", []), by_kind.get("standstill_over", []), zero_s),
        not_measured=tuple(dict.fromkeys(_build(NotMeasured, line) for line in by_kind.get("not_measured", []))),
        contents=read_contents(by_kind.get("contents", []), by_kind.get("draws", []), zero_s),
        ends=_ends(by_kind.get("ended", []), zero_s),
        job_end=next((_shifted(JobEnd, line, zero_s, "time_s") for line in by_kind.get("job_end", [])[-1:]), None),
        version=header.get("version", SESSION_VERSION),
    )


def owners(processes: Sequence[Process]) -> dict[int, int]:
    """Return the pid of the process that started each worker, by the worker's pid."""
    return {process.pid: process.parent_pid for process in processes if process.role == "worker"}


def _losses(lines: list[dict[str, Any]], zero_s: float) -> Iterator[Loss]:
    for line in lines:
        for time_s, value in line["rows"]:
            yield Loss(field_value(Loss, "pid", line["pid"]), field_value(Loss, "time_s", time_s) - zero_s, float(value))


def _ends(lines: list[dict[str, Any]], zero_s: float) -> tuple[ProcessEnd, ...]:
    ends = sorted((_shifted(ProcessEnd, line, zero_s, "time_s") for line in lines), key=lambda end: end.time_s)
    if any(len(error.type) > MOST_MESSAGE or len(error.message) > MOST_MESSAGE for end in ends for error in end.errors):
        raise ValueError(f"an exception with a type or message of more than {MOST_MESSAGE} characters")
    return tuple(ends)


def _shifted(kind: type[Fact], line: dict[str, Any], zero_s: float, time: str) -> Fact:
    return _build(kind, line, **{time: field_value(kind, time, line[time]) - zero_s})


def _rows(kind: type[Fact], names: tuple[str, ...], lines: list[dict[str, Any]], zero_s: float) -> Iterator[Fact]:
    start = names.index("start_s")
    for line in lines:
        given = {name: field_value(kind, name, line[name]) for name in ("pid", "loader", "worker") if name in line}
        for row in line["rows"]:
            values = [field_value(kind, name, value) for name, value in zip(names, row, strict=False)]
            values[start] -= zero_s
            yield kind(**given, **dict(zip(names, values, strict=False)))


def _host(lines: list[dict[str, Any]]) -> Host:
    if not lines:
        return Host()
    return _build(Host, lines[0], gpus=tuple(_build(GpuProperties, gpu) for gpu in lines[0].get("gpus", ())))


def _sample(line: dict[str, Any], zero_s: float) -> Sample:
    gpus = tuple(_build(GpuSample, gpu) for gpu in line.get("gpus", ()))
    programs = line.get("foreign_programs")
    named = None if programs is None else tuple(_build(ForeignProgram, program) for program in programs)
    found = _build(
        Sample, line, time_s=field_value(Sample, "time_s", line["time_s"]) - zero_s, gpus=gpus, foreign_programs=named
    )
    if max(len(found.core_busy), len(found.gpus)) > MOST_CORES:
        raise ValueError(f"a sample of more than {MOST_CORES:,} cores or GPUs")
    return found


def save(session: Session, folder: str | Path) -> Path:
    """Write a session as `session.jsonl` in a folder, which is created if missing. Return the folder."""
    folder = Path(folder)
    make_private_folder(folder)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in _to_lines(session))
    with open(folder / "session.jsonl", "w", encoding="utf-8", opener=private_opener) as file:
        file.write(text)
    return folder


def _to_lines(session: Session) -> Iterator[dict[str, Any]]:
    yield {
        "kind": "session",
        "version": session.version,
        "command": session.command,
        "cwd": session.cwd,
        "started_at": session.started_at,
        "monotonic_s": 0.0,
    }
    yield {"kind": "host", **asdict(session.host)}
    for name, facts in (
        ("process", session.processes),
        ("loader", session.loaders),
        ("event", session.events),
        ("sample", session.samples),
        ("not_measured", session.not_measured),
        ("ended", session.ends),
        ("job_end", () if session.job_end is None else (session.job_end,)),
    ):
        for fact in facts:
            yield {"kind": name, **asdict(fact)}
    for step in session.steps:
        row = [getattr(step, name) for name in STEP_FIELDS]
        yield {"kind": "steps", "pid": step.pid, "loader": step.loader, "rows": [row]}
    for batch in session.batches:
        row = [getattr(batch, name) for name in BATCH_FIELDS]
        yield {"kind": "batches", "pid": batch.pid, "loader": batch.loader, "worker": batch.worker, "rows": [row]}
    for stack in session.stacks:
        places = [tuple(asdict(frame).values()) for frame in stack.frames]
        rows = [[stack.count, int(stack.waits), places]]
        given = {"pid": stack.pid, "role": stack.role, "loader": stack.loader, "after_optimizer": stack.after_optimizer}
        yield {"kind": "stacks", **given, "stacks": rows}
    for loss in session.losses:
        value = loss.value if math.isfinite(loss.value) else str(loss.value)  # JSON has no NaN
        yield {"kind": "losses", "pid": loss.pid, "rows": [[loss.time_s, value]]}
    yield from standstill_lines(session.standstills)
    yield from contents_lines(session.contents)
    for name, value in session.facts.items():
        yield {"kind": "fact", "name": name, "value": value}
    if session.duration_s is not None:
        yield {"kind": "exit", "code": session.exit_code, "monotonic_s": session.duration_s}
