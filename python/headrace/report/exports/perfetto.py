"""The session as a trace for ui.perfetto.dev or chrome://tracing (Trace Event Format, JSON).

Each process has tracks for steps, batches and pauses; the machine has counters. Slices on a track nest and never overlap,
because Perfetto would move overlapping slices to another track.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import SessionError
from headrace.session.machine import Sample
from headrace.session.model import Batch, Session, Step

__all__ = ["trace", "write"]

MAIN_TRACK, PAUSE_TRACK, BATCH_TRACK = 1, 2, 3
MACHINE_PID = 0

TraceEvent = dict[str, Any]


def write(session: Session, path: str | Path) -> Path:
    """Write the trace and return its path. A name that ends with .gz is compressed. Raises `SessionError`."""
    path = Path(path)
    data = json.dumps(trace(session), separators=(",", ":"), allow_nan=False).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # mtime=0: the same session gives the same bytes.
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    except OSError as error:
        raise SessionError(
            f"cannot write {path}: {error.strerror or error}", hint="choose another place: --out FILE"
        ) from error
    return path


def trace(session: Session) -> dict[str, Any]:
    """Return the trace as a document for JSON. Times are in µs since the start of the command."""
    events = [
        *_names(session),
        *(event for number, step in _numbered(session.steps) for event in _step(number, step)),
        *(event for batch in session.batches for event in _batch(batch)),
        *_arrows(session),
        *(_slice(event.pid, PAUSE_TRACK, event.name, event.start_s, event.duration_s, {"detail": event.detail})
          for event in _not_overlapping(session)),
        *(event for sample in session.samples for event in _counters(sample)),
    ]  # fmt: skip
    facts = {"command": list(session.command), "host": session.host.hostname, "exit_code": session.exit_code}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}


def _microseconds(time_s: float) -> float:
    return round(1e6 * time_s, 1)


def _slice(pid: int, track: int, name: str, start_s: float, duration_s: float, values: Mapping[str, Any]) -> TraceEvent:
    known = {key: value for key, value in values.items() if value is not None}
    return {"ph": "X", "pid": pid, "tid": track, "name": name, "ts": _microseconds(start_s),
            "dur": max(0.0, _microseconds(duration_s)), "args": known}  # fmt: skip


def _names(session: Session) -> Iterator[TraceEvent]:
    yield _metadata(MACHINE_PID, None, "process_name", "machine")
    for process in session.processes:
        worker = "" if process.worker_id is None else f" {process.worker_id}"
        title = f"rank {process.rank} {process.role}{worker}" if process.role != "main" else f"rank {process.rank}"
        yield _metadata(process.pid, None, "process_name", title)
        for track, name in ((MAIN_TRACK, "steps"), (PAUSE_TRACK, "pauses"), (BATCH_TRACK, "batches")):
            yield _metadata(process.pid, track, "thread_name", name)


def _metadata(pid: int, track: int | None, kind: str, name: str) -> TraceEvent:
    return {"ph": "M", "pid": pid, "tid": track or 0, "name": kind, "args": {"name": name}}


def _numbered(steps: Iterable[Step]) -> Iterator[tuple[int, Step]]:
    """Steps with their number in their process, from 1."""
    seen: dict[int, int] = {}
    for step in steps:
        seen[step.pid] = seen.get(step.pid, 0) + 1
        yield seen[step.pid], step


def _step(number: int, step: Step) -> Iterator[TraceEvent]:
    values = {"epoch": step.epoch, "items": step.items, "batch was ready": step.ready, "sync ms": _ms(step.sync_s)}
    yield _slice(step.pid, MAIN_TRACK, f"step {number}", step.start_s, step.step_s, values)
    yield _slice(step.pid, MAIN_TRACK, "wait for input", step.start_s, step.wait_s, {})
    yield _slice(step.pid, MAIN_TRACK, "compute", step.start_s + step.wait_s, step.compute_s, {"CPU ms": _ms(step.cpu_s)})


def _batch(batch: Batch) -> Iterator[TraceEvent]:
    values = {
        "items": batch.items, "on a core ms": _ms(batch.cpu_s), "queues for a core ms": _ms(batch.queue_s),
        "blocked ms": _ms(batch.blocked_s), "read bytes": batch.read_bytes, "bytes from disk": batch.disk_bytes,
    }  # fmt: skip
    yield _slice(batch.pid, BATCH_TRACK, "batch", batch.start_s, batch.wall_s, values)
    if batch.collate_s:
        collate_s = min(batch.collate_s, batch.wall_s)
        yield _slice(batch.pid, BATCH_TRACK, "collate", batch.start_s + batch.wall_s - collate_s, collate_s, {})


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else round(1000 * value_s, 3)


def _arrows(session: Session) -> Iterator[TraceEvent]:
    """Arrows from each batch to the step that used it, where the two can be paired with certainty.

    DataLoader assigns batches to its n workers in turn and returns them in order, so worker w made steps w, w+n, …. This is
    certain only if as many batches as steps were recorded of each worker.
    """
    parents = {process.pid: process.parent_pid for process in session.processes}
    for loader in session.loaders:
        steps = [step for step in session.steps if (step.pid, step.loader) == (loader.pid, loader.loader)]
        made = [b for b in session.batches if b.loader == loader.loader and parents.get(b.pid) == loader.pid and b.worker >= 0]
        for worker in range(loader.num_workers):
            own = [batch for batch in made if batch.worker == worker]
            used = [step for number, step in enumerate(steps) if number % loader.num_workers == worker]
            if len({step.epoch for step in used}) != 1 or len(own) != len(used):
                continue
            for number, (batch, step) in enumerate(zip(own, used, strict=True)):
                yield from _arrow(f"{loader.pid}.{loader.loader}.{worker}.{number}", batch, step)


def _arrow(identity: str, batch: Batch, step: Step) -> Iterator[TraceEvent]:
    common = {"cat": "batch", "name": "batch to step", "id": identity}
    end_s = batch.start_s + batch.wall_s
    if end_s > step.start_s + step.wait_s:
        return
    yield {"ph": "s", "pid": batch.pid, "tid": BATCH_TRACK, "ts": _microseconds(end_s), **common}
    yield {"ph": "f", "bp": "e", "pid": step.pid, "tid": MAIN_TRACK, "ts": _microseconds(step.start_s + step.wait_s), **common}


def _not_overlapping(session: Session) -> Iterator[Any]:
    """The pauses of each process without those that start within another one: slices of one track must not overlap."""
    ends: dict[int, float] = {}
    for event in session.events:
        if event.start_s >= ends.get(event.pid, float("-inf")):
            ends[event.pid] = event.start_s + event.duration_s
            yield event


def _counters(sample: Sample) -> Iterator[TraceEvent]:
    """One counter track per quantity. A value that was not measured has no point."""
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
