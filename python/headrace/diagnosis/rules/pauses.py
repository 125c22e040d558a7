"""The rules for pauses: garbage collection, periodic stalls, slow starts."""

from __future__ import annotations

from dataclasses import replace

from headrace.diagnosis.job import MeasuredJob
from headrace.diagnosis.measure import Pauses
from headrace.diagnosis.model import Finding
from headrace.diagnosis.rules.finding import duration, make_finding
from headrace.diagnosis.rules.input import INPUT_SHARE
from headrace.diagnosis.startup import START_WORDS, startup_parts_s

__all__ = ["gc_pause", "periodic_stall", "startup"]

PAUSE_SHARE = 0.04

BETWEEN_SHARE = 0.25
"""Of the training loop, spent between epochs: validation of a fifth of the images takes about a tenth."""

LONG_PAUSE_S = 0.25
"""Schedulers and disks delay single steps by less than this now and then."""

STARTUP_SHARE = 0.15

ORDINARY_START_S, LONG_START_S = 10.0, 15.0
"""Launching and importing PyTorch take 3 to 10 s on an ordinary machine; a start is long that takes so much beyond that."""

START_SHARE = 0.30

VERY_LONG_START_S = 60.0
"""Said of a job that is still running, or was cut short, too."""


def gc_pause(job: MeasuredJob) -> Finding | None:
    lost = job.rank.pauses.gc_s
    share = job.share(lost)
    if share < PAUSE_SHARE:
        return None
    longest = max(
        (event.duration_s for event in job.session.events if event.name == "gc" and event.pid == job.rank.process.pid),
        default=0.0,
    )
    return make_finding(
        "GC_PAUSE",
        share,
        f"garbage collection takes {duration(lost)} per step in the mean; the longest stopped training for {duration(longest)}",
    )


def periodic_stall(job: MeasuredJob) -> Finding | None:
    """Of pauses in the steps and between the epochs, those that take the larger share."""
    found = [finding for rule in (_periodic, _between_epochs) if (finding := rule(job)) is not None]
    return max(found, key=lambda item: item.share or 0.0, default=None)


def _periodic(job: MeasuredJob) -> Finding | None:
    pauses = job.rank.pauses
    share = job.share(pauses.periodic_s)
    if share < PAUSE_SHARE or pauses.count < 2:
        return None
    parts = {
        "torch.save": pauses.save_s,
        "another loader (validation)": pauses.other_loader_s,
        "torch.compile, which compiles again": pauses.compile_s,
        "unknown": pauses.unknown_s,
    }
    cause = max(parts, key=lambda name: parts[name])
    if cause == "unknown" and pauses.period is None and not _few_and_long(pauses, job.rank.typical_compute_s):
        return None  # irregular and nameless: noise, not a stall
    every = f"every {pauses.period} steps" if pauses.period else f"{pauses.count} times"
    return make_finding(
        "PERIODIC_STALL",
        share,
        f"{every} a step takes up to {duration(pauses.longest_s)} longer, {duration(pauses.periodic_s)} per step in the mean",
        f"most of it is {cause}"
        if cause != "unknown"
        else "what happens there was not seen (no torch.save, gc or other loader)",
    )


def _between_epochs(job: MeasuredJob) -> Finding | None:
    """Validation and checkpoints between the epochs are in no step; of the run they can be a large part."""
    rank, between = job.rank, job.rank.between
    share = between.all_s / max(1e-9, rank.loop_s + rank.workers_start_s + between.all_s)
    if rank.epochs < 2 or share < BETWEEN_SHARE:
        return None
    validation = "in the steps of another loader (validation)"
    if between.other_wait_s > INPUT_SHARE * between.other_loader_s:
        validation += f", {between.other_wait_s / between.other_loader_s:.0%} of them waiting for its input"
    parts = {validation: between.other_loader_s, "in torch.save": between.save_s}
    named = ", ".join(f"{duration(seconds)} {words}" for words, seconds in parts.items() if seconds > 0.03 * between.all_s)
    found = make_finding(
        "PERIODIC_STALL",
        share,
        f"{share:.0%} of the time from the first step to the last passes between the {rank.epochs} epochs: "
        f"{duration(between.all_s)} in all{f', of it {named}' if named else ''}",
    )
    return replace(found, share_of="run")


def _few_and_long(pauses: Pauses, typical_s: float) -> bool:
    """Two or three pauses, too few for a period to show, but each far longer than a step."""
    return pauses.count <= 3 and pauses.longest_s > max(LONG_PAUSE_S, 5 * typical_s)


def startup(job: MeasuredJob) -> Finding | None:
    """Of the beginning of the job and of its epochs, the one that takes the larger share."""
    found = [finding for rule in (_slow_start, _slow_epochs) if (finding := rule(job)) is not None]
    return max(found, key=lambda item: item.share or 0.0, default=None)


def _slow_start(job: MeasuredJob) -> Finding | None:
    """The time until the first step is done, of a job that ran to its end; of one that was cut short it has no share."""
    parts = startup_parts_s(job.session, job.rank)
    start_s, whole_s = sum(parts.values()), job.session.duration_s
    ended = job.session.exit_code == 0 and whole_s is not None
    share = min(1.0, start_s / whole_s) if ended and whole_s else None
    beyond_s = start_s - min(ORDINARY_START_S, parts.get("launch", 0.0) + parts.get("imports", 0.0))
    if beyond_s < LONG_START_S or (share < START_SHARE if share is not None else start_s < VERY_LONG_START_S):
        return None
    longest = sorted(parts.items(), key=lambda item: -item[1])
    words = ", ".join(f"{duration(seconds)} {START_WORDS[name]}" for name, seconds in longest if seconds >= 0.03 * start_s)
    of_run = f", {share:.0%} of the run" if share is not None else ""
    details = [
        f"{event.name}: {event.detail}"
        for event in job.session.events
        if event.pid == job.rank.process.pid and event.name in ("imports", "download") and event.detail
    ]
    found = make_finding("STARTUP", share, f"the first step is done after {duration(start_s)}{of_run}: {words}", *details)
    return replace(found, share_of="run")


def _slow_epochs(job: MeasuredJob) -> Finding | None:
    rank = job.rank
    if rank.epochs < 2:
        return None
    share = min(1.0, rank.epoch_start_s / max(1e-9, rank.loop_s + rank.workers_start_s))
    if share < STARTUP_SHARE:
        return None
    again = ""
    if rank.loader.remade:
        again = f"; the script made its DataLoader {rank.loader.remade + 1} times, and its workers with it"
    elif rank.workers and not rank.loader.persistent_workers:
        again = "; persistent_workers is off, so workers are started anew each time"
    found = make_finding(
        "STARTUP",
        share,
        f"each of {rank.epochs} epochs takes {rank.epoch_start_s / rank.epochs:.2g} s before its first step{again}",
    )
    return replace(found, share_of="run")
