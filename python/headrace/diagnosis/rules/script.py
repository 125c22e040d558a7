"""The rule for the script's own functions beside the model: a tracker, pictures, metrics, validation in the loop."""

from __future__ import annotations

from dataclasses import replace

from headrace.diagnosis.measure.hot_functions import place_words
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.result.model import Finding
from headrace.diagnosis.rules.finding import duration, make_finding
from headrace.system.text.sizes import percent_text

__all__ = ["script_bound"]

SCRIPT_SHARE = 0.10
"""Report functions of the script beside the model when they take at least this share of the step."""

MOST_NAMED = 3
BLOCKED_PART = 0.7
"""Say that the functions wait when the training thread is blocked for at least this part of their time."""

PERIODIC_PART = 0.3
"""Say how often the functions run when single long steps hold at least this part of their time."""


def script_bound(job: MeasuredJob) -> Finding | None:
    """Report functions that the training loop calls beside forward, backward and the optimizer's step."""
    script, rank = job.script, job.rank
    share = job.share(script.seconds)
    if share < SCRIPT_SHARE:
        return None
    words = [f"the script takes {duration(script.seconds)} of each {duration(rank.step_s)} step beside the model"]
    for function in script.functions[:MOST_NAMED]:
        place = place_words(function.file, function.line, job.session.cwd)
        words.append(f"{function.name} ({place}) takes {duration(function.seconds)} per step")
    blocked_s = (rank.after_s or 0.0) - (rank.after_cpu_s or 0.0) - (rank.after_queue_s or 0.0)
    if blocked_s >= BLOCKED_PART * script.seconds:
        words.append("the training thread is blocked there: a faster model or GPU changes nothing")
    if script.after_s is not None and not script.functions:
        words.append(f"{duration(script.after_s)} pass from the end of the optimizer's step to the next batch")
    if rank.pauses.period and rank.pauses.unknown_s >= PERIODIC_PART * script.seconds:
        words.append(f"every {rank.pauses.period} steps a step takes up to {duration(rank.pauses.longest_s)} longer")
    found = make_finding("SCRIPT_BOUND", share, *words)
    if not script.functions:
        return found
    first = script.functions[0]
    place = place_words(first.file, first.line, job.session.cwd)
    taken = percent_text(job.share(first.seconds))
    return replace(found, summary=f"{first.name} ({place}) takes {taken} of each step; it is no part of the model's work")
