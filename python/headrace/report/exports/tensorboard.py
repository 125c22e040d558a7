"""The session as scalars for TensorBoard: an event file, written without TensorFlow or the tensorboard package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headrace.errors import SessionError
from headrace.session.machine import Sample
from headrace.session.model import Session
from headrace.system.files.atomic_write import write_output
from headrace.system.files.private_files import make_output_folder
from headrace.training.logs import tensorboard_events as tfevents

__all__ = ["FILE_NAME", "scalars", "write"]

FILE_NAME = "events.out.tfevents.headrace"
"""TensorBoard reads any file with "tfevents" in its name."""

Scalar = tuple[float, int, str, float]
"""(seconds since the start, step number, tag, value)"""


def write(session: Session, folder: str | Path) -> Path:
    """Write the session's scalars as a TensorBoard event file into `folder`; return its path.

    An older event file of headrace in the folder is replaced. Raises `SessionError` if the file cannot be written.
    """
    path = Path(folder) / FILE_NAME
    began_s = session.started_at or 0.0
    records = [tfevents.head(began_s)]
    records += [tfevents.scalar(began_s + time_s, step, tag, value) for time_s, step, tag, value in scalars(session)]
    try:
        make_output_folder(path.parent)
        write_output(path, b"".join(records))
    except OSError as error:
        raise SessionError(f"cannot write {path}: {error.strerror or error}", hint="choose another folder: --out") from error
    return path


def scalars(session: Session) -> Iterator[Scalar]:
    """Yield the steps of every rank, then the samples of the machine. A value that was not measured has no point."""
    ranks = {process.pid: process.rank for process in session.processes}
    seen: dict[int, int] = {}
    for step in session.steps:
        number = seen[step.pid] = seen.get(step.pid, 0) + 1
        place = f"rank {ranks.get(step.pid, 0)}"
        yield step.start_s, number, f"{place}/step_seconds", step.step_s
        yield step.start_s, number, f"{place}/wait_seconds", step.wait_s
        yield step.start_s, number, f"{place}/compute_seconds", step.compute_s
        if step.items is not None and step.step_s > 0:
            yield step.start_s, number, f"{place}/images_per_second", step.items / step.step_s
    for number, sample in enumerate(session.samples):
        for tag, value in _machine(sample):
            if value is not None:
                yield sample.time_s, number, f"machine/{tag}", value


def _machine(sample: Sample) -> Iterator[tuple[str, float | None]]:
    yield "cores_of_this_job", sample.own_cores
    yield "cores_of_others", sample.foreign_cores
    yield "memory_bytes", sample.memory_used_bytes
    yield "disk_read_bytes_per_second", sample.disk_read_bytes_s
    for gpu in sample.gpus:
        yield f"gpu_{gpu.index}_busy", gpu.busy
        yield f"gpu_{gpu.index}_memory_bytes", gpu.memory_used_bytes
