"""The session as a trace for ui.perfetto.dev or chrome://tracing (Trace Event Format, JSON).

Each process has tracks for steps, batches and pauses, one for each of its loaders; the machine has counters. Times are whole
microseconds, and slices on a track nest exactly: Perfetto drops a slice that overlaps another one by any time.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from headrace.errors import SessionError
from headrace.session.machine import Sample
from headrace.session.model import Batch, Event, Session, Step
from headrace.system.files.atomic_write import write_output
from headrace.system.files.private_files import make_output_folder

__all__ = ["trace", "write"]

STEP_TRACK, PAUSE_TRACK, BATCH_TRACK = 1, 2, 3
TRACKS_PER_LOADER = 10
MACHINE_PID = 0

TraceEvent = dict[str, Any]
StepOrBatch = TypeVar("StepOrBatch", Step, Batch)


def write(session: Session, path: str | Path) -> Path:
    """Write the session as a trace to `path` and return it; compressed if the name ends in .gz.

    Raises `SessionError` if the file cannot be written.
    """
    path = Path(path)
    data = json.dumps(trace(session), separators=(",", ":"), allow_nan=False).encode()
    try:
        make_output_folder(path.parent)
        # mtime=0: the same session gives the same bytes.
        write_output(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    except OSError as error:
        raise SessionError(
            f"cannot write {path}: {error.strerror or error}", hint="choose another place: --out FILE"
        ) from error
    return path


def trace(session: Session) -> dict[str, Any]:
    """Return the session in Trace Event Format, ready for JSON: names of the tracks, then events in order of time.

    Times are in µs since the start of the command.
    """
    loaders = _loaders(session)
    events = [
        *(event for number, step, end_s in _numbered(session.steps) for event in _step(loaders, number, step, end_s)),
        *(event for batch, end_s in _until_the_next(session.batches) for event in _batch(loaders, batch, end_s)),
        *_arrows(session, loaders),
        *(_slice((event.pid, PAUSE_TRACK), event.name, event.start_s, end_s, {"detail": event.detail})
          for event, end_s in _not_overlapping(session)),
        *(event for sample in session.samples for event in _counters(sample)),
    ]  # fmt: skip
    used = {(event["pid"], event["tid"]) for event in events if "tid" in event}
    events.sort(key=lambda event: event["ts"])  # stable: a slice stays before those inside it that begin with it
    facts = {"command": list(session.command), "host": session.host.hostname, "exit_code": session.exit_code}
    return {"traceEvents": [*_names(session, loaders, used), *events], "displayTimeUnit": "ms", "otherData": facts}


Loaders = Mapping[int, Mapping[int, int]]
"""For each process id: loader number → position of the loader among those of the process, from 0."""


def _loaders(session: Session) -> Loaders:
    numbers: dict[int, set[int]] = {}
    both: tuple[Step | Batch, ...] = (*session.steps, *session.batches)
    for one in both:
        numbers.setdefault(one.pid, set()).add(one.loader)
    return {pid: {loader: place for place, loader in enumerate(sorted(found))} for pid, found in numbers.items()}


def _track(loaders: Loaders, kind: int, one: Step | Batch) -> tuple[int, int]:
    """Return process and track. Each loader has its own: the steps of two loaders that take turns overlap."""
    return one.pid, kind + TRACKS_PER_LOADER * loaders[one.pid][one.loader]


def _microseconds(time_s: float) -> int:
    """Return whole microseconds. Perfetto drops events before 0, such as a sample that was taken while the command started."""
    return max(0, round(1e6 * time_s))


def _slice(track: tuple[int, int], name: str, start_s: float, end_s: float, values: Mapping[str, Any]) -> TraceEvent:
    known = {key: value for key, value in values.items() if value is not None}
    start = _microseconds(start_s)
    return {"ph": "X", "pid": track[0], "tid": track[1], "name": name, "ts": start,
            "dur": max(0, _microseconds(end_s) - start), "args": known}  # fmt: skip


def _names(session: Session, loaders: Loaders, used: set[tuple[int, int]]) -> Iterator[TraceEvent]:
    yield _metadata(MACHINE_PID, None, "process_name", "machine")
    for process in session.processes:
        worker = "" if process.worker_id is None else f" {process.worker_id}"
        title = f"rank {process.rank} {process.role}{worker}" if process.role != "main" else f"rank {process.rank}"
        yield _metadata(process.pid, None, "process_name", title)
        if (process.pid, PAUSE_TRACK) in used:
            yield _metadata(process.pid, PAUSE_TRACK, "thread_name", "pauses")
        own = loaders.get(process.pid, {})
        for loader, place in own.items():
            which = f" of loader {loader}" if len(own) > 1 else ""
            for kind, name in ((STEP_TRACK, "steps"), (BATCH_TRACK, "batches")):
                track = kind + TRACKS_PER_LOADER * place
                if (process.pid, track) in used:
                    yield _metadata(process.pid, track, "thread_name", name + which)


def _metadata(pid: int, track: int | None, kind: str, name: str) -> TraceEvent:
    return {"ph": "M", "pid": pid, "tid": track or 0, "name": kind, "args": {"name": name}}


def _until_the_next(ones: Iterable[StepOrBatch]) -> Iterator[tuple[StepOrBatch, float]]:
    """Return each step or batch with its end, no later than the start of the next of the same process and loader."""
    tracks: dict[tuple[int, int], list[StepOrBatch]] = {}
    for one in ones:
        tracks.setdefault((one.pid, one.loader), []).append(one)
    for track in tracks.values():
        track.sort(key=lambda one: one.start_s)
        ends = [one.start_s + (one.step_s if isinstance(one, Step) else one.wall_s) for one in track]
        for number, (_, following) in enumerate(pairwise(track)):
            ends[number] = min(ends[number], following.start_s)
        yield from zip(track, ends, strict=True)


def _numbered(steps: Iterable[Step]) -> Iterator[tuple[int, Step, float]]:
    """Return steps with their number in their process and loader, from 1, and their end."""
    seen: dict[tuple[int, int], int] = {}
    for step, end_s in _until_the_next(steps):
        key = (step.pid, step.loader)
        seen[key] = seen.get(key, 0) + 1
        yield seen[key], step, end_s


def _step(loaders: Loaders, number: int, step: Step, end_s: float) -> Iterator[TraceEvent]:
    values = {"epoch": step.epoch, "items": step.items, "batch was ready": step.ready, "sync ms": _ms(step.sync_s)}
    track = _track(loaders, STEP_TRACK, step)
    got_s = min(step.start_s + step.wait_s, end_s)
    yield _slice(track, f"step {number}", step.start_s, end_s, values)
    yield _slice(track, "wait for input", step.start_s, got_s, {})
    yield _slice(track, "compute", got_s, end_s, {"CPU ms": _ms(step.cpu_s)})


def _batch(loaders: Loaders, batch: Batch, end_s: float) -> Iterator[TraceEvent]:
    values = {
        "items": batch.items, "on a core ms": _ms(batch.cpu_s), "queues for a core ms": _ms(batch.queue_s),
        "blocked ms": _ms(batch.blocked_s), "read bytes": batch.read_bytes, "bytes from disk": batch.disk_bytes,
    }  # fmt: skip
    track = _track(loaders, BATCH_TRACK, batch)
    yield _slice(track, "batch", batch.start_s, end_s, values)
    if batch.collate_s:
        yield _slice(track, "collate", max(batch.start_s, end_s - batch.collate_s), end_s, {})


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else round(1000 * value_s, 3)


def _arrows(session: Session, loaders: Loaders) -> Iterator[TraceEvent]:
    """Yield arrows from each batch to the step that used it, where the two can be paired with certainty.

    DataLoader assigns batches to its n workers in turn and returns them in order, so worker w made steps w, w+n, …. This is
    certain only if as many batches as steps were recorded of each worker.
    """
    parents = {process.pid: process.parent_pid for process in session.processes}
    steps: dict[tuple[int, int], list[Step]] = {}
    for step in session.steps:
        steps.setdefault((step.pid, step.loader), []).append(step)
    made: dict[tuple[int | None, int], dict[int, list[Batch]]] = {}
    for one in session.batches:
        made.setdefault((parents.get(one.pid), one.loader), {}).setdefault(int(one.worker), []).append(one)
    for loader in {(loader.pid, loader.loader): loader for loader in session.loaders}.values():
        key = loader.pid, loader.loader
        for worker, own in sorted(made.get(key, {}).items()):
            if not 0 <= worker < loader.num_workers:
                continue
            used = steps.get(key, [])[worker :: max(1, int(loader.num_workers))]
            if len({step.epoch for step in used}) != 1 or len(own) != len(used):
                continue
            for number, (batch, step) in enumerate(zip(own, used, strict=True)):
                yield from _arrow(loaders, f"{loader.pid}.{loader.loader}.{worker}.{number}", batch, step)


def _arrow(loaders: Loaders, identity: str, batch: Batch, step: Step) -> Iterator[TraceEvent]:
    common = {"cat": "batch", "name": "batch to step", "id": identity}
    end_s, got_s = batch.start_s + batch.wall_s, step.start_s + step.wait_s
    if end_s > got_s:
        return
    (from_pid, from_track), (to_pid, to_track) = _track(loaders, BATCH_TRACK, batch), _track(loaders, STEP_TRACK, step)
    # The last microsecond of the batch: an arrow at its end would begin at the next one.
    begin = max(_microseconds(batch.start_s), _microseconds(end_s) - 1)
    yield {"ph": "s", "pid": from_pid, "tid": from_track, "ts": begin, **common}
    yield {"ph": "f", "bp": "e", "pid": to_pid, "tid": to_track, "ts": _microseconds(got_s), **common}


def _not_overlapping(session: Session) -> Iterator[tuple[Event, float]]:
    """Return the pauses of each process with their ends, without those that start within another one."""
    ends: dict[int, float] = {}
    for event in sorted(session.events, key=lambda event: event.start_s):
        if event.start_s >= ends.get(event.pid, float("-inf")):
            ends[event.pid] = event.start_s + event.duration_s
            yield event, ends[event.pid]


def _counters(sample: Sample) -> Iterator[TraceEvent]:
    """Yield the counter events of a sample, one track per quantity. A value that was not measured has no event."""
    series: dict[str, dict[str, float | None]] = {
        "CPU cores in use": {"this job": sample.own_cores, "other programs": sample.foreign_cores},
        "memory GiB": {"used": _gib(sample.memory_used_bytes), "this job": _gib(sample.own_memory_bytes)},
        "disk MB/s": {"read": _mega(sample.disk_read_bytes_s)},
        "network MB/s": {"received": _mega(sample.network_receive_bytes_s)},
        **{f"GPU {gpu.index} busy %": {"busy": None if gpu.busy is None else 100 * gpu.busy} for gpu in sample.gpus},
    }
    for name, values in series.items():
        known = {key: round(value, 3) for key, value in values.items() if value is not None}
        if known:
            yield {"ph": "C", "pid": MACHINE_PID, "name": name, "ts": _microseconds(sample.time_s), "args": known}


def _gib(value: int | None) -> float | None:
    return None if value is None else value / (1 << 30)


def _mega(value: float | None) -> float | None:
    return None if value is None else value / 1e6
