"""Time lost to single long steps, between epochs, and to steps that take longer and longer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.diagnosis.measure.stats import Spans, mean, median, required
from headrace.session.model import Event, ObservedLoader, Step

__all__ = [
    "EpochGaps",
    "Growth",
    "Pauses",
    "is_start_of",
    "measure_epoch_gaps",
    "measure_growth",
    "measure_pauses",
    "steps_by_epoch",
]

PAUSE_FACTOR = 0.6
"""A step is a pause when its compute exceeds the median by this share of the median and by six median deviations."""

PARTS = 8
"""Compare the medians of this many equal parts of the run, to see whether steps take longer and longer."""

LEAST_PART = 5
"""A part has at least this many steps."""

GROWN_RATIO = 1.5
"""Call steps growing when the last part's median is at least this many times the first one's."""

LEAST_RISEN = 0.9
"""Of all pairs of parts, the later one is the longer in at least this share: a slower phase alone does not do that."""

LEAST_HALF = 0.12
"""In each half of the run passes at least this share of the whole rise: all of it in one half is a change, and no growth."""

LARGER_BATCH = 1.1
"""Where batches grow by more than this factor, steps grow with them: longer sequences, larger images."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Time lost to single long steps, by cause: seconds per step, averaged over all steady steps, waits for a core included.

    gc_s, save_s, other_loader_s, compile_s, unknown_s: garbage collection, `torch.save`, steps of another loader
        (validation), `torch.compile`, and the rest.
    gc_after_s, save_after_s: the parts of `gc_s` and `save_s` after the optimizer's step.
    gc_call: FILE:LINE of the script's own call of `gc.collect` that takes most of `gc_s`; None where the interpreter collects.
    period: steps from one pause to the next, or None when the pauses are irregular.
    count, longest_s: number of pauses, and the longest one.
    """

    gc_s: float
    save_s: float
    other_loader_s: float
    unknown_s: float
    period: int | None
    count: int
    longest_s: float
    compile_s: float = 0.0
    gc_after_s: float = 0.0
    save_after_s: float = 0.0
    gc_call: str | None = None

    @property
    def periodic_s(self) -> float:
        """Pauses of all causes but garbage collection, seconds per step."""
        return self.save_s + self.other_loader_s + self.unknown_s + self.compile_s


@dataclass(frozen=True, slots=True)
class EpochGaps:
    """Time between the epochs of a loader, seconds summed over the run, without the start of workers.

    all_s: the whole gaps.
    other_loader_s, other_wait_s: in steps of other loaders (validation), and in these waiting for input.
    save_s: in `torch.save`.
    """

    all_s: float
    other_loader_s: float
    other_wait_s: float
    save_s: float


@dataclass(frozen=True, slots=True)
class Growth:
    """Steps that take longer and longer, outside `next()` and without waits for a core.

    first_s, last_s: median of the first and of the last part of the run. added_s: mean per step on top of `first_s`.
    is_after: whether most of the growth passes after the optimizer's step.
    """

    first_s: float
    last_s: float
    added_s: float
    is_after: bool


def measure_growth(steps: Sequence[Step]) -> Growth | None:
    """Return the growth of the steps; None where they do not grow steadily, or batches grow as well."""
    size = len(steps) // PARTS
    if size < LEAST_PART:
        return None
    parts = [steps[number * size : (number + 1) * size] for number in range(PARTS)]
    computing = [required(median([max(0.0, step.compute_s - (step.queue_s or 0.0)) for step in part])) for part in parts]
    first_s, last_s = computing[0], computing[-1]
    rise_s = last_s - first_s
    pairs = [(one, later) for number, one in enumerate(computing) for later in computing[number + 1 :]]
    risen = sum(later > one for one, later in pairs) / len(pairs)
    half_s = min(computing[PARTS // 2 - 1] - first_s, last_s - computing[PARTS // 2])
    if last_s < GROWN_RATIO * first_s or risen < LEAST_RISEN or half_s < LEAST_HALF * rise_s:
        return None
    sizes = [median([step.batch_bytes for step in part if step.batch_bytes]) or 0.0 for part in (parts[0], parts[-1])]
    if sizes[0] and sizes[1] > LARGER_BATCH * sizes[0]:
        return None
    after = [median([max(0.0, (step.after_s or 0.0) - (step.after_queue_s or 0.0)) for step in part]) for part in parts]
    is_after = required(after[-1]) - required(after[0]) > 0.5 * rise_s
    return Growth(first_s, last_s, math.fsum(computing) / PARTS - first_s, is_after)


def measure_pauses(
    steps: Sequence[Step], events: Sequence[Event], others: Sequence[Step], numbers: Sequence[int] = ()
) -> tuple[Pauses, float]:
    """Return the pauses, and the mean compute time of a step without a pause, in seconds.

    numbers: the number of each step among all, where some were left out: pauses are as many steps apart as the script takes.
    """
    net = [max(0.0, step.compute_s - (step.queue_s or 0.0)) for step in steps]
    typical_s = required(median(net))
    spread_s = required(median([abs(value - typical_s) for value in net]))
    limit_s = typical_s + max(PAUSE_FACTOR * typical_s, 6 * spread_s, 0.004)
    lost = {"gc": 0.0, "gc after": 0.0, "save": 0.0, "save after": 0.0, "compile": 0.0, "other": 0.0, "unknown": 0.0}
    long: list[int] = []
    ordinary: list[float] = []
    longest_s = 0.0
    named = {name: _spans_of(events, name) for name in ("gc", "save", "compile")}
    beside = Spans((other.start_s, other.start_s + other.step_s) for other in others)
    for number, step, value in zip(numbers or range(len(steps)), steps, net, strict=True):
        known = _named_pauses(step, named, beside)
        excess_s = max(0.0, value - typical_s) * (step.compute_s / value if value > 0 else 1.0)
        if value > limit_s:
            long.append(number)
            longest_s = max(longest_s, excess_s)
            named_s = math.fsum(known.values())
            scale = min(1.0, excess_s / named_s) if named_s > 0 else 0.0
            for name, duration_s in known.items():
                lost[name] += duration_s * scale
            lost["unknown"] += max(0.0, excess_s - named_s)
        else:
            for name in ("gc", "gc after", "compile"):
                lost[name] += known[name]
            ordinary.append(step.compute_s - known["compile"])
    count = len(steps)
    pauses = Pauses(
        gc_s=(lost["gc"] + lost["gc after"]) / count,
        save_s=(lost["save"] + lost["save after"]) / count,
        other_loader_s=lost["other"] / count,
        unknown_s=lost["unknown"] / count,
        period=_period(long),
        count=len(long),
        longest_s=longest_s,
        compile_s=lost["compile"] / count,
        gc_after_s=lost["gc after"] / count,
        save_after_s=lost["save after"] / count,
        gc_call=_gc_call(events),
    )
    return pauses, mean(ordinary) or typical_s


def _gc_call(events: Sequence[Event]) -> str | None:
    """Return the place whose calls of `gc.collect` take at least half of the time of all collections."""
    taken_s: dict[str, float] = {}
    for event in events:
        if event.name == "gc":
            place = (event.detail or "").partition(", called at ")[2]
            taken_s[place] = taken_s.get(place, 0.0) + event.duration_s
    place = max(taken_s, key=lambda one: taken_s[one], default="")
    return place if place and taken_s[place] >= 0.5 * math.fsum(taken_s.values()) else None


def _spans_of(events: Sequence[Event], name: str) -> Spans:
    return Spans((event.start_s, event.start_s + event.duration_s) for event in events if event.name == name)


def _named_pauses(step: Step, named: Mapping[str, Spans], beside: Spans) -> dict[str, float]:
    """Return the seconds of a step's compute in gc, `torch.save`, `torch.compile`, and steps of another loader (`beside`).

    Collections and saving after the optimizer's step stand apart ("gc after", "save after").
    """
    begin_s, end_s = step.start_s + step.wait_s, step.start_s + step.step_s
    stepped_s = end_s - min(step.after_s or 0.0, end_s - begin_s)
    known = {name: spans.within(begin_s, end_s) for name, spans in named.items()} | {"other": beside.within(begin_s, end_s)}
    for name in ("gc", "save"):
        after_s = named[name].within(stepped_s, end_s)
        known[name] -= after_s
        known[f"{name} after"] = after_s
    return known


def _period(positions: Sequence[int]) -> int | None:
    """Return the most common distance between pauses, in steps; None unless at least 60 % of the distances are close to it."""
    gaps = [after - before for before, after in pairwise(positions) if after - before > 1]
    if len(gaps) < 2:
        return None
    period, _ = Counter(gaps).most_common(1)[0]
    near = [gap for gap in gaps if abs(gap - period) <= max(1, 0.05 * period)]
    return period if len(near) >= 0.6 * len(gaps) else None


def measure_epoch_gaps(
    steps: Sequence[Step], events: Sequence[Event], others: Sequence[Step], loader: ObservedLoader
) -> EpochGaps:
    """Return the activities between an epoch's last step and the next epoch's first `next()`, with their times."""
    epochs = sorted(steps_by_epoch(steps).values(), key=lambda group: group[0].start_s)
    all_s = other_s = wait_s = save_s = 0.0
    saving = _spans_of(events, "save")
    starting = _spans_of([event for event in events if is_start_of(event, loader)], "workers_start")
    whole = Spans((step.start_s, step.start_s + step.step_s) for step in others)
    waiting = Spans((step.start_s, step.start_s + step.wait_s) for step in others)
    for before, after in pairwise(epochs):
        begin_s, end_s = before[-1].start_s + before[-1].step_s, after[0].start_s
        save_s += saving.within(begin_s, end_s)
        other_s += whole.within(begin_s, end_s)
        wait_s += waiting.within(begin_s, end_s)
        all_s += max(0.0, end_s - begin_s) - starting.within(begin_s, end_s)
    return EpochGaps(max(0.0, all_s), other_s, wait_s, save_s)


def steps_by_epoch(steps: Iterable[Step]) -> dict[int, list[Step]]:
    """Return the steps of each epoch, in the order given."""
    epochs: dict[int, list[Step]] = {}
    for step in steps:
        epochs.setdefault(step.epoch, []).append(step)
    return epochs


def is_start_of(event: Event, loader: ObservedLoader) -> bool:
    """Return whether an event is the start of a loader's workers."""
    return event.name == "workers_start" and event.detail == f"loader {loader.loader}"
