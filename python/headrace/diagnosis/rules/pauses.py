"""The rules for pauses (garbage collection, periodic stalls, slow starts), for steps that take longer and longer, and for the
script's own functions in each step."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from headrace.diagnosis.measure import Pauses
from headrace.diagnosis.measure.hot_functions import hot_words, place_words
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.pauses import Growth, measure_growth
from headrace.diagnosis.result.model import Finding
from headrace.diagnosis.rules.finding import duration, make_finding
from headrace.diagnosis.rules.input import INPUT_SHARE
from headrace.diagnosis.rules.standing_places import place_of
from headrace.diagnosis.rules.startup import START_WORDS, startup_parts_s
from headrace.system.text.sizes import count_text, number_text, percent_text

__all__ = [
    "PERIODIC_PART",
    "gc_call_words",
    "gc_pause",
    "gil_in_step",
    "growing_step",
    "periodic_stall",
    "script_bound",
    "startup",
]

PAUSE_SHARE = 0.04
"""Report pauses when they take at least this share of the step on average."""

LEAST_COMPILED = 2
"""Report that `torch.compile` compiles again from so many compilations in steady steps on."""

EPOCH_GAP_SHARE = 0.25
"""Report gaps between epochs when they take at least this share of the run.

Validation of a fifth of the images takes about a tenth, which is no fault."""

LONG_PAUSE_S = 0.25
"""Count a single pause as long above this time: schedulers and disks delay steps by less now and then."""

EPOCH_START_SHARE = 0.15
"""Report slow starts of epochs when they take at least this share of the run."""

ORDINARY_START_S = 10.0
"""Allow at most this time for launching Python and importing PyTorch, which take 3 to 10 s on an ordinary machine."""

LONG_START_S = 15.0
"""Report a start that takes at least this much longer than launch and imports."""

START_SHARE = 0.30
"""Report a long start of a finished run when it takes at least this share of the run."""

VERY_LONG_START_S = 60.0
"""Report a long start of an unfinished run when it takes at least this time."""

NAMED_PART = 0.03
"""Name a part of a gap or of a start in the evidence when it takes at least this share of it."""


GROWTH_SHARE = 0.10
"""Report that steps take longer and longer when that adds at least this share of the step on average."""

SCRIPT_SHARE = 0.10
"""Report functions of the script beside the model when they take at least this share of the step."""

MOST_NAMED = 3
"""Name at most this many functions of the script."""

BLOCKED_PART = 0.7
"""Say that the functions wait when the training thread is blocked for at least this part of their time."""

OTHER_LOADER = "another loader (validation)"
RECOMPILING = "torch.compile (compiling again)"

PERIODIC_PART = 0.3
"""Say how often the functions run when single long steps hold at least this part of their time."""


def gc_pause(job: MeasuredJob) -> Finding | None:
    """Report that Python's garbage collector stops the training process."""
    lost = job.rank.pauses.gc_s
    share = job.share(lost)
    if share < PAUSE_SHARE:
        return None
    longest = max(
        (event.duration_s for event in job.session.events if event.name == "gc" and event.pid == job.rank.process.pid),
        default=0.0,
    )
    words = f"garbage collection takes {duration(lost)} per step on average; the longest collection took {duration(longest)}"
    called = gc_call_words(job)
    if called is None:
        return make_finding("GC_PAUSE", share, words)
    found = make_finding("GC_PAUSE", share, f"the script calls gc.collect() at {called}", words)
    return replace(found, summary=f"the script's own gc.collect() at {called} stops the training process")


def gc_call_words(job: MeasuredJob) -> str | None:
    """Return FILE:LINE of the script's call of `gc.collect` that takes most of the collections' time; None without one."""
    file, _, line = (job.rank.pauses.gc_call or "").rpartition(":")
    return place_words(file, int(line), job.session.cwd) if file and line.isdigit() else None


def periodic_stall(job: MeasuredJob) -> Finding | None:
    """Report pauses within the steps or between the epochs, whichever take the larger share."""
    found = [finding for rule in (_pauses_in_steps, _gaps_between_epochs) if (finding := rule(job)) is not None]
    return max(found, key=lambda item: item.share or 0.0, default=None)


def _pauses_in_steps(job: MeasuredJob) -> Finding | None:
    """Report pauses within steps. Irregular pauses of unknown cause count as noise, unless they are few and long."""
    pauses = job.rank.pauses
    lost_s = pauses.periodic_s - pauses.unknown_s + job.unknown_pause_s
    share = job.share(lost_s)
    is_compiling = 2 * pauses.compile_s > lost_s and len(job.recompilations) >= LEAST_COMPILED
    if share < PAUSE_SHARE or (pauses.count < 2 and not is_compiling):
        return None
    parts = {
        "torch.save": pauses.save_s,
        OTHER_LOADER: pauses.other_loader_s,
        RECOMPILING: pauses.compile_s,
        "unknown": job.unknown_pause_s,
    }
    cause = max(parts, key=lambda name: parts[name])
    input_words = _other_input_words(job) if cause == OTHER_LOADER else ()
    if cause == "unknown" and pauses.period is None and not _few_and_long(pauses, job.rank.typical_compute_s):
        return None
    every = f"every {pauses.period} steps" if pauses.period else f"{pauses.count} times"
    longer = f"{every} a step takes up to {duration(pauses.longest_s)} longer"
    if cause == RECOMPILING:
        longer = f"torch.compile compiled again {count_text(len(job.recompilations), 'time')} in {len(job.rank.steps)} steps"
    found = make_finding(
        "PERIODIC_STALL",
        share,
        f"{longer}, on average {duration(lost_s)} per step",
        "the cause was not seen (no torch.save, gc or other loader)" if cause == "unknown" else f"most of that time is {cause}",
        *input_words,
        *_other_workers_words(job, pauses.periodic_s * len(job.rank.steps)),
    )
    if cause == RECOMPILING:
        return replace(found, summary="torch.compile compiles again while training, each time for a new shape or value")
    if cause == "unknown":
        return found
    return replace(found, summary=f"{longer}, mostly in {cause}")


def _gaps_between_epochs(job: MeasuredJob) -> Finding | None:
    """Report the gaps between epochs (validation, checkpoints), as a share of the run: they belong to no step."""
    rank, gaps = job.rank, job.rank.epoch_gaps
    share = gaps.all_s / max(1e-9, rank.loop_s + rank.workers_start_s + gaps.all_s)
    if rank.epochs < 2 or share < EPOCH_GAP_SHARE:
        return None
    validation = "in the steps of another loader (validation)"
    if gaps.other_wait_s > INPUT_SHARE * gaps.other_loader_s:
        validation += f", {percent_text(gaps.other_wait_s / gaps.other_loader_s)} of them waiting for its input"
    parts = {validation: gaps.other_loader_s, "in torch.save": gaps.save_s}
    named = ", ".join(f"{duration(seconds)} {words}" for words, seconds in parts.items() if seconds > NAMED_PART * gaps.all_s)
    found = make_finding(
        "PERIODIC_STALL",
        share,
        f"{percent_text(share)} of the time from the first step to the last passes between the {rank.epochs} epochs, "
        f"{duration(gaps.all_s)} in all{f', of which {named}' if named else ''}",
        *_other_workers_words(job, gaps.all_s),
    )
    return replace(found, share_of="run")


def _other_input_words(job: MeasuredJob) -> tuple[str, ...]:
    """Return how much of the steps of other loaders is waiting for their input, if that is a cause."""
    mine = job.rank.process.pid, job.rank.loader.loader
    steps = [step for step in job.session.steps if step.pid == mine[0] and step.loader != mine[1]]
    share = math.fsum(step.wait_s for step in steps) / max(1e-9, math.fsum(step.step_s for step in steps))
    if share <= INPUT_SHARE:
        return ()
    used = {step.loader for step in steps}
    alone = all(one.num_workers == 0 for one in job.session.loaders if one.pid == mine[0] and one.loader in used)
    return (f"{percent_text(share)} of its steps is waiting for its input{'; it has no workers' if alone else ''}",)


def _other_workers_words(job: MeasuredJob, pauses_s: float) -> tuple[str, ...]:
    """Return what the workers of other loaders (validation) take to start and to end, if that is a part of the pauses."""
    pid, own = job.rank.process.pid, f"loader {job.rank.loader.loader}"
    others = [loader for loader in job.session.loaders if loader.pid == pid and f"loader {loader.loader}" != own]
    events = [event for event in job.session.events if event.pid == pid and event.detail != own]
    starts = [event for event in events if event.name == "workers_start"]
    spent_s = sum(event.duration_s for event in events if event.name in ("workers_start", "workers_stop"))
    spent_s += sum(loader.passes * loader.pass_start_s for loader in others)
    count = max(len(starts), sum(loader.passes for loader in others))
    if count < 2 or spent_s < NAMED_PART * pauses_s:
        return ()
    return (f"another loader makes {count} iterators, and its workers take {duration(spent_s)} in all to start and to end",)


def _few_and_long(pauses: Pauses, typical_s: float) -> bool:
    """Return whether there are two or three pauses, too few to show a period, each far longer than a step."""
    return pauses.count <= 3 and pauses.longest_s > max(LONG_PAUSE_S, 5 * typical_s)


def startup(job: MeasuredJob) -> Finding | None:
    """Report a slow start of the job or of its epochs, whichever takes the larger share."""
    found = [finding for rule in (_slow_start, _slow_epochs) if (finding := rule(job)) is not None]
    return max(found, key=lambda item: item.share or 0.0, default=None)


def _slow_start(job: MeasuredJob) -> Finding | None:
    """Report the start of the job. In an unfinished run the start has no share, since the length of the run is unknown."""
    parts = startup_parts_s(job.session, job.rank)
    start_s, whole_s = sum(parts.values()), job.session.duration_s
    ended = job.session.exit_code == 0 and whole_s is not None
    share = min(1.0, start_s / whole_s) if ended and whole_s else None
    beyond_s = start_s - min(ORDINARY_START_S, parts.get("launch", 0.0) + parts.get("imports", 0.0))
    if beyond_s < LONG_START_S or (share < START_SHARE if share is not None else start_s < VERY_LONG_START_S):
        return None
    longest = sorted(parts.items(), key=lambda item: -item[1])
    words = ", ".join(
        f"{duration(seconds)} {START_WORDS[name]}" for name, seconds in longest if seconds >= NAMED_PART * start_s
    )
    of_run = f", {percent_text(share)} of the run" if share is not None else ""
    details = [
        f"{event.name}: {event.detail}"
        for event in job.session.events
        if event.pid == job.rank.process.pid and event.name in ("imports", "download") and event.detail
    ]
    first = f"the first step is done after {duration(start_s)}{of_run}: {words}"
    found = make_finding("STARTUP", share, first, *details, *_set_up_words(job))
    return replace(found, share_of="run")


def _set_up_words(job: MeasuredJob) -> tuple[str, ...]:
    """Return where the script was most often when it was asked for its stack before its first batch, as after a minute."""
    asked = [
        place
        for found in job.session.standstills
        for sample in found.samples
        for one in sample.processes
        if one.pid == job.rank.process.pid and one.phase == "nothing" and (place := place_of(one)) is not None
    ]
    if not asked:
        return ()
    function, file, line = Counter(place.own for place in asked).most_common(1)[0][0]
    where = place_words(file, line, job.session.cwd)
    seen = f"{sum(place.own == (function, file, line) for place in asked)} of {count_text(len(asked), 'stack')}"
    return (f"before the first batch, {seen} of the script were at {where} in {function}",)


def _slow_epochs(job: MeasuredJob) -> Finding | None:
    rank = job.rank
    if rank.epochs < 2:
        return None
    share = min(1.0, rank.epoch_start_s / max(1e-9, rank.loop_s + rank.workers_start_s))
    if share < EPOCH_START_SHARE:
        return None
    again = ""
    if rank.loader.remade:
        again = f"; the script made its DataLoader {rank.loader.remade + 1} times, and its workers with it"
    elif rank.workers and not rank.loader.persistent_workers:
        again = "; persistent_workers is off, so each epoch starts new workers"
    each = number_text(rank.epoch_start_s / rank.epochs, digits=2)
    found = make_finding(
        "STARTUP",
        share,
        f"each of {rank.epochs} epochs takes {each} s before its first step{again}",
    )
    return replace(found, share_of="run")


def gil_in_step(job: MeasuredJob) -> Finding | None:
    """Report that another Python thread keeps the training thread from the interpreter while a step runs."""
    if job.held_step is None:
        return None
    seconds, frame = job.held_step
    share = job.share(seconds)
    if share < SCRIPT_SHARE:
        return None
    name = f"{frame.function} ({place_words(frame.file, frame.line, job.session.cwd)})"
    found = make_finding(
        "GIL_IN_STEP",
        share,
        f"the training thread waits {duration(seconds)} of each {duration(job.rank.step_s)} step for Python's lock (GIL)",
        f"meanwhile another thread of the process ran {name}: each operator of PyTorch gives the lock away and asks again",
    )
    return replace(found, summary=f"another thread holds Python's lock (GIL) while the training step needs it: {name}")


def growing_step(job: MeasuredJob) -> Finding | None:
    """Report that steps take longer and longer, unless functions of the script after the optimizer's step do that."""
    growth = measure_growth(job.rank.steps)
    if growth is None or job.share(growth.added_s) < GROWTH_SHARE:
        return None
    if growth.is_after and job.share(job.script.seconds) >= SCRIPT_SHARE:
        return None
    where = "after the optimizer's step" if growth.is_after else "mostly up to the end of the optimizer's step"
    found = make_finding(
        "GROWING_STEP",
        job.share(growth.added_s),
        f"{_growth_words(growth)}, without next() and waits for a core: {duration(growth.added_s)} more per step on average",
        f"the growth passes {where}; batches do not grow",
        *hot_words(job.session, "step"),
    )
    return replace(found, summary=f"a step takes longer and longer: {_growth_words(growth)}")


def _growth_words(growth: Growth) -> str:
    return f"{duration(growth.first_s)} at the start, {duration(growth.last_s)} at the end"


def script_bound(job: MeasuredJob) -> Finding | None:
    """Report functions that the training loop calls beside forward, backward and the optimizer's step.

    What runs after that step is none of its three; what runs before it may be a loss, which the training needs.
    """
    script, rank = job.script, job.rank
    share = job.share(script.seconds)
    if share < SCRIPT_SHARE:
        return None
    beside = "beside forward(), backward() and the optimizer's step"
    words = [f"the script takes {duration(script.seconds)} of each {duration(rank.step_s)} step {beside}"]
    for function in script.functions[:MOST_NAMED]:
        place = place_words(function.file, function.line, job.session.cwd)
        words.append(f"{function.name} ({place}) takes {duration(function.seconds)} per step")
    blocked_s = math.fsum(one.seconds for one in script.functions if one.after) - (rank.after_cpu_s or 0.0)
    if blocked_s >= BLOCKED_PART * script.seconds:
        words.append("the training thread is blocked there, by a file, the network, another program or a device")
    if script.after_s is not None and not script.functions:
        words.append(f"{duration(script.after_s)} pass from the end of the optimizer's step to the next batch")
    if rank.pauses.period and job.script_pause_s >= PERIODIC_PART * script.seconds:
        words.append(f"every {rank.pauses.period} steps a step takes up to {duration(rank.pauses.longest_s)} longer")
    growth = measure_growth(rank.steps)
    if growth is not None and growth.is_after:
        words.append(f"a step takes longer and longer: {_growth_words(growth)}; what these functions read or draw may grow")
    found = make_finding("SCRIPT_BOUND", share, *words)
    if not script.functions:
        return found
    first = script.functions[0]
    place = place_words(first.file, first.line, job.session.cwd)
    taken = percent_text(job.share(first.seconds))
    where = "after the optimizer's step" if first.after else "before the optimizer's step: a loss, or work beside the model"
    return replace(found, summary=f"{first.name} ({place}) takes {taken} of each step, {where}")
