"""A standstill as a session holds it: samples of where every process of the job stood while no training step came.

`headrace.attach.standstill` records them: once a training step has not come for a while, and again and again until one comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.session.typed_json import converter

__all__ = ["StandingProcess", "Standstill", "StandstillSample", "read_standstills", "standstill_lines"]

MOST_STANDSTILLS, MOST_SAMPLES, MOST_PROCESSES, MOST_FRAMES = 1000, 200, 2048, 200
"""Read so many at most: of a session, of a standstill, of a sample, of a stack. The sampler writes fewer."""


@dataclass(frozen=True, slots=True)
class StandingProcess:
    """One process at the time of a sample. Sums since its start: cpu_s, bytes (read and written), reads, switches.

    ended: the process is gone; the other values are its last ones. phase: what it does since `since_s` (PHASES of
    `headrace.attach.record.open_step`); empty: unknown. batches: of this epoch. steps: of all loops. longest_s: the longest
    time between two changes before. begun_s: when its first batch came, None before. worker: its number, else -1.
    state, waits_in: of its main thread, as the kernel names them. frames: of the training thread, in a worker of the one that
    makes batches, as (function, file, line), outermost first, empty where not known; the file is absolute in the script's own
    code only. lock: the name of the lock that the innermost line takes, if it does.
    """

    pid: int
    ended: bool = False
    phase: str = ""
    since_s: float = 0.0
    longest_s: float = 0.0
    begun_s: float | None = None
    loader: int = 0
    epoch: int = 0
    batches: int = 0
    steps: int = 0
    rank: int = 0
    world_size: int = 1
    worker: int = -1
    parent_pid: int = 0
    cpu_s: float = 0.0
    name: str = ""
    state: str = ""
    waits_in: str = ""
    bytes: int = 0
    reads: int = 0
    switches: int = 0
    frames: tuple[tuple[str, str, int], ...] = ()
    lock: str | None = None


@dataclass(frozen=True, slots=True)
class StandstillSample:
    """What the processes of one training do at one moment.

    network_bytes: bytes that the training's sockets moved since the first sample, or the machine's where these are not known.
    disk_bytes: bytes that the machine's disks moved since its start. stack_bytes: size of the recorded stacks, which `bytes` of
    the next sample includes. beside: pids of other trainings that the command runs at the same time.
    """

    time_s: float
    processes: tuple[StandingProcess, ...]
    others: tuple[StandingProcess, ...] = ()
    gpu_busy: float | None = None
    network_bytes: int = 0
    disk_bytes: int = 0
    stack_bytes: int = 0
    beside: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Standstill:
    """A time without a training step. since_s: the last change. over: whether a step came later. scale: of all its times."""

    since_s: float
    samples: tuple[StandstillSample, ...]
    over: bool = False
    scale: float = 1.0


def read_standstills(
    lines: Sequence[Mapping[str, Any]], over: Sequence[Mapping[str, Any]], zero_s: float
) -> tuple[Standstill, ...]:
    """Return the standstills of a session. Raises `ValueError` for a value of another type, or too many of them."""
    number = converter(float)
    ended = {number(line["since_s"]) for line in over}
    by_since: dict[float, list[Mapping[str, Any]]] = {}
    for line in lines:
        by_since.setdefault(number(line["since_s"]), []).append(line)
    if len(by_since) > MOST_STANDSTILLS or any(len(group) > MOST_SAMPLES for group in by_since.values()):
        raise ValueError("too many standstills, or samples of one")
    return tuple(
        Standstill(
            since_s - zero_s, tuple(_sample(one, zero_s) for one in group), since_s in ended, number(group[0].get("scale", 1.0))
        )
        for since_s, group in sorted(by_since.items())
    )


def _sample(line: Mapping[str, Any], zero_s: float) -> StandstillSample:
    if sum(len(line.get(name, ())) for name in ("processes", "others")) > MOST_PROCESSES:
        raise ValueError("a standstill of too many processes")
    moved = {
        "time_s": line["time_s"] - zero_s,
        **{name: [_process(one, zero_s) for one in line.get(name, ())] for name in ("processes", "others")},
    }
    found: StandstillSample = converter(StandstillSample)({**line, **moved})
    named = (*found.processes, *found.others)
    if any(len(one.frames) > MOST_FRAMES for one in named):
        raise ValueError("a stack of too many functions")
    if len({one.pid for one in named}) < len(named):
        raise ValueError("two processes of one number")
    return found


def _process(values: Mapping[str, Any], zero_s: float) -> dict[str, Any]:
    begun_s = values.get("begun_s")
    since_s = values.get("since_s", 0.0)
    return {**values, "since_s": since_s - zero_s, "begun_s": begun_s - zero_s if begun_s else None}


def standstill_lines(found: Sequence[Standstill]) -> Iterator[dict[str, Any]]:
    """Yield the lines that `read_standstills` reads back, for a session whose clock begins at 0."""
    for one in found:
        for sample in one.samples:
            yield {"kind": "standstill", "since_s": one.since_s, "scale": one.scale, **asdict(sample)}
        if one.over:
            yield {"kind": "standstill_over", "since_s": one.since_s}
