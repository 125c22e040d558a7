"""`diagnose --find-learning-rate`: the learning-rate range test on the user's own script.

The command runs once more, with a rate that grows over 100 updates of the weights, and is ended after them
(`headrace.attach.experiments.range_test`), or before it saves or changes a file that was there (`kept_files`). The curve is
read as that of `headrace tune`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headrace.attach.experiments import kept_files
from headrace.attach.experiments.range_curve import UPDATES, RangePoint, RangeTest, read_curve
from headrace.attach.experiments.range_test import FACT
from headrace.diagnosis.result.model import Diagnosis, Note
from headrace.errors import SessionError
from headrace.profiling.command import add_fact, watch
from headrace.report.pages import learning_rate_page
from headrace.session.model import Session

__all__ = ["PAGE_FILE", "with_learning_rate"]

HOOKS = ("sys:headrace.attach.experiments.kept_files", "headrace.attach.experiments.range_test")
"""The files are kept from the first line of the script on, before it imports PyTorch."""

FOLDER = "range-test"
PAGE_FILE = "learning-rate.html"

LEAST_LIMIT_S = 120.0
"""Let the run take at least so long for its start and its updates."""

SLOWER = 3.0
"""And this many times as long as the watched steps took: the loader fills up, and the loss is read after each update."""


def with_learning_rate(
    diagnosis: Diagnosis, folder: Path, *, command: Sequence[str], log: Callable[[str], None], limit_s: float | None = None
) -> Diagnosis:
    """Return the diagnosis with a note on the learning rate that a range test suggests, and where the script's own stands.

    folder: of the session, which gets the run's own session, the curve (the fact `range_test`) and its page. limit_s: most
    seconds of the run (default: by the watched steps).
    """
    if diagnosis.step_s is None:  # nor would the hooks that keep the script's files
        log("--find-learning-rate: no steps of a training loop were seen: nothing is suggested")
        return diagnosis
    log(f"--find-learning-rate: running the command once more, with a rate that grows over {UPDATES} updates, until it saves")
    start_s = math.fsum(diagnosis.startup_s.values())
    usual_s = max(LEAST_LIMIT_S, SLOWER * (start_s + UPDATES * (diagnosis.step_s or 0.0)))
    again = (folder / FOLDER).absolute()
    has_ended = partial(kept_files.has_ended, again)
    finished = watch(command, again, hooks=HOOKS, time_limit_s=limit_s or usual_s, has_ended=has_ended)
    found: Mapping[str, Any] | None = Session.load(again).facts.get(FACT)
    early = kept_files.reason(again)
    if finished.stopped_by is not None or not found or (early and not found["points"]):
        why = early or "no update by an optimizer of PyTorch was seen"
        why = "interrupted" if finished.stopped_by is not None else why
        log(f"--find-learning-rate: {why}: nothing is suggested")
        return diagnosis
    add_fact(folder, FACT, found)
    points = [RangePoint(*(float(value) for value in point)) for point in found["points"]]
    test = read_curve(
        points,
        global_batch=int(found["global_batch"]),
        diverged=bool(found["diverged"]),
        complete=bool(found["complete"]),
        more_time="give a longer --seconds" if finished.timed_out else "",
        ended="the time was over" if finished.timed_out else f"the test ended early, because {early or 'the script ended'},",
        larger_batch="try a larger batch",
    )
    own = found.get("own_rate")
    words = _words(test, None if own is None else float(own), str(found.get("optimizer") or "the optimizer"))
    try:
        page = learning_rate_page.write(test, folder / PAGE_FILE, title="Learning-rate range test", own_rate=own)
        words += f". Curve: {page}"
    except SessionError as error:
        log(f"--find-learning-rate: {error}")
    log(f"--find-learning-rate: {words}")
    if points:
        log(f"--find-learning-rate: smoothed loss by rate: {_curve_words(points)}")
    return replace(diagnosis, notes=(Note("learning_rate", f"learning rate: {words}"), *diagnosis.notes))


def _words(test: RangeTest, own: float | None, optimizer: str) -> str:
    """Return the suggestion in a clause, and where the script's own rate stands on the curve."""
    stands = "" if own is None else f"; {_place_words(test, own)}"
    if test.rate is None:
        return f"{test.note}{stands}"
    batch = f"{optimizer}, a batch of {test.global_batch:,}" if test.global_batch else optimizer  # of an unknown kind
    note = "" if test.note is None else f"; {test.note}"
    return f"the range test suggests {test.rate:.2g} ({batch}){stands}{note}"


def _place_words(test: RangeTest, own: float) -> str:
    """Return where the rate that the script begins with stands."""
    words = f"the script's is {own:.3g}"
    if test.rate is None or own <= 0:
        return words
    lowest, last = min(test.points, key=lambda one: one.smoothed), test.points[-1]
    if test.diverged and own > last.rate:
        return f"{words}, at which the loss diverged (above {last.rate:.2g})"
    if own > lowest.rate:
        return f"{words}, above the smallest loss (at {lowest.rate:.2g})"
    times = own / test.rate
    if 1 / 3 <= times <= 3:
        return f"{words}, close to it"
    return f"{words}, {times if times > 1 else 1 / times:.0f} times {'higher' if times > 1 else 'lower'}"


def _curve_words(points: Sequence[RangePoint]) -> str:
    """Return the smoothed loss at each power of ten of the rate, and at the last."""
    chosen = [
        next(one for one in points if one.rate >= 0.999 * 10.0**power)
        for power in range(math.ceil(math.log10(points[0].rate) - 1e-9), math.floor(math.log10(points[-1].rate) + 1e-9) + 1)
    ]
    return ", ".join(f"{one.rate:.0e} {one.smoothed:.3g}" for one in dict.fromkeys((*chosen, points[-1])))
