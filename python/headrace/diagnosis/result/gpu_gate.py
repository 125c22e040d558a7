"""Whether more GPUs are worth their price: one rule for a watched job, an estimate of cost and a job to launch."""

from __future__ import annotations

from headrace.system.text.sizes import number_text, percent_text

__all__ = ["LEAST_SCALING", "gpu_gate"]

LEAST_SCALING = 0.8
"""Advise more GPUs when each would keep at least this share of the rate of those before."""

MOST_WAIT = 0.2
"""Advise none while a GPU waits for input for more than this share of the time."""


def gpu_gate(scaling: float | None, *, gpus: int, now: int = 1, limit: str = "", wait_share: float | None = None) -> str | None:
    """Return why not to add GPUs yet, in a clause with its numbers; None where nothing speaks against them.

    scaling: predicted rate with `gpus` GPUs, over that of `now` GPUs times as many as they are more; None: not predicted.
    limit: what then sets the pace. wait_share: share of the time in which a GPU waits for input today.
    """
    reasons = []
    if wait_share is not None and wait_share > MOST_WAIT:
        reasons.append(f"{'the GPU waits' if now == 1 else 'the GPUs wait'} for input {percent_text(wait_share)} of the time")
    if scaling is not None and scaling < LEAST_SCALING:
        times = number_text(scaling * gpus / now, digits=2)
        pace = f"; {limit} would set the pace" if limit else ""
        of = "one" if now == 1 else str(now)
        reasons.append(f"{gpus} would reach {times} times the rate of {of}, {percent_text(scaling)} each{pace}")
    return f"do not add GPUs yet: {', and '.join(reasons)}" if reasons else None
