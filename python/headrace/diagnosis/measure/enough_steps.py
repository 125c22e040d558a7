"""How many steps a verdict needs: the one rule for `diagnose`, `watch`, the first verdict and re-runs of `--verify`.

From the third timed step on there is a verdict. It is provisional, with low confidence, until enough steady steps were timed.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.session.model import Step
from headrace.system.text.sizes import count_text

__all__ = [
    "PROVISIONAL_CONFIDENCE",
    "SETTLED_STEPS",
    "TIMED_STEPS",
    "has_rate",
    "is_first_verdict_due",
    "is_provisional",
    "most_confidence",
    "provisional_words",
    "steps_words",
]

TIMED_STEPS = 3
"""Give a verdict from this many timed steps of one loader on."""

RATE_STEPS = 8
"""Compare rates, as `--verify` does, from this many steady steps on."""

SETTLED_STEPS = 20
"""Call a verdict provisional below this many steady steps, unless they took long (`SETTLED_S`)."""

SETTLED_S = 60.0
"""Call a verdict settled, from `RATE_STEPS` steady steps on, when these took at least this time."""

FIRST_VERDICT_STEPS = 60
"""Print the first verdict of a running job after this many steps, of which about 50 are steady, or after `SETTLED_S`."""

PROVISIONAL_CONFIDENCE = 0.45
"""The confidence of a provisional verdict is at most this."""

FEW_CONFIDENCE = 0.3
"""The confidence of a verdict from fewer than `RATE_STEPS` steady steps is at most this."""


def has_rate(steps: int) -> bool:
    """Return whether this many steady steps give a rate that can be compared with another."""
    return steps >= RATE_STEPS


def is_provisional(steady: Sequence[Step]) -> bool:
    """Return whether a verdict from these steady steps may still change because they are few."""
    if len(steady) >= SETTLED_STEPS:
        return False
    return not (has_rate(len(steady)) and sum(step.step_s for step in steady) >= SETTLED_S)


def most_confidence(steady: Sequence[Step]) -> float:
    """Return the upper limit of the confidence of a verdict from these steady steps."""
    if not is_provisional(steady):
        return 1.0
    return PROVISIONAL_CONFIDENCE if has_rate(len(steady)) else FEW_CONFIDENCE


def is_first_verdict_due(steps: int, ranks: int, passed_s: float) -> bool:
    """Return whether the first verdict of a running job is to be printed. `passed_s`: seconds since its first step."""
    return steps >= TIMED_STEPS and (steps >= FIRST_VERDICT_STEPS * ranks or passed_s >= SETTLED_S)


def steps_words(steps: Sequence[Step]) -> str:
    """Return the number of steps and their time in words: `5 steps in 2.1 s`."""
    seen_s = sum(step.step_s for step in steps)
    return f"{count_text(len(steps), 'step')} in {seen_s:.{1 if seen_s < 10 else 0}f} s"


def provisional_words(steps: Sequence[Step], steady: Sequence[Step]) -> str:
    """Return why a verdict is provisional, and what would be enough."""
    return (
        f"provisional: {steps_words(steps)} were timed, {len(steady)} of them after the start; "
        f"{SETTLED_STEPS} steady steps would be enough"
    )
