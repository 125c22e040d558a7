"""Join the passes of a loader of which the script takes one batch each (`next(iter(loader))`): one pass with many steps."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from headrace.session.model import Event, ObservedLoader, Session, Step

__all__ = ["join_short_passes"]

Key = tuple[int, int]
"""Pid of a process, and the number of a loader in that process."""

LEAST_PASSES = 4
"""Join passes when there are at least this many of a loader."""

MOST_BATCHES = 4
"""Join passes when the script takes at most this many batches of most of them."""


def join_short_passes(session: Session) -> Session:
    """Return the session with the short passes of each loader joined to one, where the script left them before their end.

    The time in which workers start for a pass, and end with it, then counts as waiting for its first batch, and
    `ObservedLoader.passes` counts the iterators.
    """
    groups: dict[Key, list[Step]] = {}
    for step in session.steps:
        groups.setdefault((step.pid, step.loader), []).append(step)
    found = {key: lengths for key, members in groups.items() if (lengths := _lengths(members)) is not None}
    by_loader: dict[tuple[str, int, str | None], list[Event]] = {}
    for event in session.events:
        by_loader.setdefault((event.name, event.pid, event.detail), []).append(event)

    def of(name: str, key: Key) -> list[Event]:
        """Return the events of a name about a loader, in order of time."""
        return by_loader.get((name, key[0], f"loader {key[1]}"), [])

    for key in list(found):
        if 2 * len(of("epoch_end", key)) > len(found[key]):
            del found[key]
    if not found:
        return session
    starts = {key: of("workers_start", key) for key in found}
    stops = {key: of("workers_stop", key) for key in found}
    begins = _starts_of_steps(session.steps)
    later = {id(event) for key in found for event in starts[key][1:]}  # the first start belongs to the start of the job
    steps = [step for key, members in groups.items() if key not in found for step in members]
    joined = {key: _joined(groups[key], starts[key], begins[key[0]]) for key in found}
    for key in found:
        steps += _with_stops(joined[key], stops[key])

    def counted(loader: ObservedLoader) -> ObservedLoader:
        key = loader.pid, loader.loader
        if key not in found:
            return loader
        count = len(found[key])
        made_s = math.fsum(new.wait_s - old.wait_s for new, old in zip(joined[key], groups[key], strict=True))
        stopped_s = math.fsum(event.duration_s for event in stops[key])
        return replace(loader, passes=count, pass_start_s=made_s / max(1, count - 1), pass_stop_s=stopped_s / count)

    return replace(
        session,
        steps=tuple(sorted(steps, key=lambda step: step.start_s)),
        events=tuple(event for event in session.events if id(event) not in later),
        loaders=tuple(map(counted, session.loaders)),
    )


def _lengths(members: Sequence[Step]) -> Counter[int] | None:
    """Return the batches of each pass of a loader, or None where its passes are few, or long."""
    lengths = Counter(step.epoch for step in members)
    return lengths if len(lengths) >= LEAST_PASSES and median(lengths.values()) <= MOST_BATCHES else None


def _starts_of_steps(steps: Sequence[Step]) -> dict[int, list[float]]:
    """Return when the steps of all loaders of each process start, in order, by its pid."""
    found: dict[int, list[float]] = {}
    for step in steps:
        found.setdefault(step.pid, []).append(step.start_s)
    return {pid: sorted(starts) for pid, starts in found.items()}


def _between(starts: Sequence[float], begin_s: float, end_s: float) -> int:
    return bisect_left(starts, end_s) - bisect_left(starts, begin_s)


def _joined(members: Sequence[Step], starts: Sequence[Event], all_starts: Sequence[float]) -> list[Step]:
    """Return the steps of one loader as one pass. A step with a new iterator begins when the script begins to make that.

    starts: when workers begin to start. Workers that are kept do not, and the making begins where the step before ends.
    all_starts: when the steps of all loaders of the process start: those of others may lie between.
    """
    started, own = [event.start_s for event in starts], sorted(step.start_s for step in members)
    joined: list[Step] = []
    epoch: int | None = None
    for step in members:
        begin_s = step.start_s
        handed_s = joined[-1].start_s + joined[-1].wait_s if joined else 0.0
        at = bisect_right(started, begin_s) - 1
        if joined and step.epoch != epoch:
            ended_s = joined[-1].start_s + joined[-1].step_s
            if at >= 0 and started[at] >= handed_s:
                begin_s = started[at]
            elif _between(all_starts, ended_s, begin_s) == _between(own, ended_s, begin_s):
                begin_s = min(begin_s, ended_s)
            joined[-1] = replace(joined[-1], compute_s=min(joined[-1].compute_s, begin_s - handed_s))
        epoch = step.epoch
        joined.append(replace(step, epoch=0, start_s=begin_s, wait_s=step.wait_s + step.start_s - begin_s))
    return joined


def _with_stops(steps: Sequence[Step], stops: Sequence[Event]) -> list[Step]:
    """Return the steps with the end of workers in them as part of the wait: the script waits for it, too."""
    stopped = [event.start_s for event in stops]
    found = []
    for step in steps:
        first, last = (bisect_left(stopped, time_s) for time_s in (step.start_s + step.wait_s, step.start_s + step.step_s))
        stop_s = min(max(0.0, step.compute_s), math.fsum(event.duration_s for event in stops[first:last]))
        found.append(replace(step, wait_s=step.wait_s + stop_s, compute_s=step.compute_s - stop_s))
    return found
