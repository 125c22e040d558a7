"""How `diagnose --verify` divides its time: which fixes are measured, and how long each run of the command may take."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.diagnosis.result.model import Diagnosis

__all__ = ["MAX_FIXES_MEASURED", "RUN_COST_S", "Schedule", "Windows", "needed_s", "run_windows", "schedule_runs"]

MAX_FIXES_MEASURED = 6
"""Measure at most this many fixes, best first."""

MIN_WINDOW_S = 8.0
MAX_WINDOW_S = 60.0
WINDOW_STEPS = 60
"""A full window lasts for the start of the job and this many steps; the steps get 8 to 60 s (`MIN_`, `MAX_WINDOW_S`)."""

LEAST_STEPS = 24
"""The shortest window lasts for the start of the job and this many steps: fewer give no rate (`enough_steps.has_rate`)."""

LEAST_WINDOW_S = 2.0

SHORTENED = 0.5
"""Shorten windows to no less than this share of full ones to fit more fixes in. Only a single fix may get a shorter window."""

START_MARGIN = 1.3
"""Allow each re-run this many times the start-up time of the watched run: other programs may slow it down."""

RUN_COST_S = 1.0
"""Assumed seconds between two windows until measured: the command ends, headrace reads its session and starts the next run."""


@dataclass(frozen=True, slots=True)
class Windows:
    """How many seconds one re-run lasts: `full_s` if time allows; `least_s` is the shortest that still gives a rate."""

    full_s: float
    least_s: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """The re-runs that `--verify` makes.

    fixes: how many are measured, best first.
    window_s: seconds of each run.
    has_unchanged: whether runs without a fix are made too. Without them the one fix is compared with the watched run.
    """

    fixes: int
    window_s: float
    has_unchanged: bool = True


def run_windows(diagnosis: Diagnosis) -> Windows:
    """Return the windows for a job, from the time that its start and its steps took."""
    start_s = START_MARGIN * sum(diagnosis.startup_s.values())
    step_s = diagnosis.step_s or 0.1
    full_s = start_s + min(MAX_WINDOW_S, max(MIN_WINDOW_S, WINDOW_STEPS * step_s))
    return Windows(full_s, min(full_s, start_s + max(LEAST_WINDOW_S, LEAST_STEPS * step_s)))


def needed_s(fixes: int, windows: Windows, cost_s: float = RUN_COST_S) -> float:
    """Return the seconds to measure this many fixes with full windows: a run with each, and unchanged runs around them."""
    return (2 * fixes + 1) * (windows.full_s + cost_s)


def schedule_runs(
    fixes: int, windows: Windows, left_s: float, *, cost_s: float = RUN_COST_S, watched_is_quiet: bool = True
) -> Schedule | None:
    """Return the runs that measure as many fixes as fit into `left_s` seconds, or None when not one does.

    fixes: how many can be measured. cost_s: seconds that a run takes beyond its window. watched_is_quiet: False if other
    programs slowed the watched run down, so that its rate is no measure for a run at another time.

        schedule_runs(3, Windows(20.0, 8.0), 70.0)     # Schedule(fixes=1, window_s=20.0)
    """
    for count in range(fixes, 0, -1):
        window_s = min(windows.full_s, left_s / (2 * count + 1) - cost_s)
        if window_s >= (windows.least_s if count == 1 else max(windows.least_s, SHORTENED * windows.full_s)):
            return Schedule(count, window_s)
    if not watched_is_quiet:
        return None
    window_s = min(windows.full_s, left_s - cost_s)
    return Schedule(1, window_s, has_unchanged=False) if fixes and window_s >= windows.least_s else None
