"""The start-up of a job: the time from the command to the end of the first step, in parts."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.diagnosis.measure import Rank
from headrace.session.model import Event, Session

__all__ = ["LARGE_PART", "START_WORDS", "startup_parts_s"]

LARGE_PART = 0.2
"""Offer a fix for one part of the start when the part takes more than this share of it."""

START_WORDS: Mapping[str, str] = {
    "launch": "launching Python",
    "imports": "imports",
    "download": "downloading",
    "set_up": "set-up (model, list of files)",
    "workers_start": "starting workers",
    "first_batch": "making the first batch",
    "compile": "torch.compile",
    "first_step": "the rest of the first step (device start, tuning)",
}
"""The parts of the start in words, in order of time."""


def startup_parts_s(session: Session, rank: Rank) -> dict[str, float]:
    """Return the seconds of each part (`START_WORDS`), in order of time. Parts that were not seen are left out.

    `set_up` is the rest of the time between the start of Python and the first `iter()` of the loader. It includes the
    imports when they were not timed, because torch was imported before the watch began. `first_step` is the time of the
    first step beyond a usual step.
    """
    if not rank.all_steps or rank.first_batch_s is None:
        return {}
    mine = [event for event in session.events if event.pid == rank.process.pid]
    first = rank.all_steps[0]
    workers = [event for event in mine if event.name == "workers_start" and event.start_s <= first.start_s]
    began_s = max(0.0, rank.process.started_s)
    iterated_s = workers[-1].start_s if workers else first.start_s
    before = [event for event in mine if event.start_s < iterated_s]
    compile_s = _seconds([event for event in mine if event.start_s <= first.start_s + first.step_s], "compile")
    parts = {
        "launch": began_s,
        "imports": _seconds(before, "imports"),
        "download": _seconds(before, "download"),
        "workers_start": workers[-1].duration_s if workers else 0.0,
        "first_batch": rank.first_batch_s - iterated_s - (workers[-1].duration_s if workers else 0.0),
        "compile": compile_s,
        "first_step": first.compute_s - rank.typical_compute_s - compile_s,
    }
    parts["set_up"] = iterated_s - began_s - parts["imports"] - parts["download"]
    return {name: parts[name] for name in START_WORDS if parts[name] > 0}


def _seconds(events: list[Event], name: str) -> float:
    return sum(event.duration_s for event in events if event.name == name)
