"""The rules for settings that cost time on any device, or learn nothing: debugging modes, denormals, shapes that change.

They need what the training process reported (`attach.training.slow_settings`), its sampled stacks, and its compilations. A rule
returns its evidence, or None when the setting is as it should be or was not seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from headrace.diagnosis.fixes.registry import propose_fixes
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.result.kinds import SETTINGS
from headrace.diagnosis.result.model import Finding
from headrace.diagnosis.rules.finding import duration
from headrace.system.text.sizes import count_text, percent_text

__all__ = ["find_slow_settings"]

LEAST_RATE = 1e-8
"""Call a learning rate near 0 below this: a weight of 1 then changes by less than float32 resolves, in thousands of steps."""

LEAST_STEPS = 64
"""Judge a learning rate and a profiler from this many steps on: warm-ups begin near 0, and short profiles are meant."""

LEAST_SLOWER = 2.0
"""Report denormal numbers where a product with them takes at least this many times as long."""

RECOMPILED = 3
"""Report compilations in later steps from this many on: a last, smaller batch costs one or two."""

SIZES = re.compile(r"tensor '?([^' ]+)'? (?:size|stride) mismatch at index (\d+)\. expected (\d+), actual (\d+)")


def find_slow_settings(job: MeasuredJob) -> tuple[Finding, ...]:
    """Return the findings about settings that cost time on any device, in a fixed order."""
    settings: Mapping[str, Any] = job.session.facts.get("slow_settings") or {}
    rules: tuple[tuple[str, Callable[[MeasuredJob, Mapping[str, Any]], str | None]], ...] = (
        ("ANOMALY_MODE", _anomaly),
        ("PROFILER_ON", _profiler),
        ("DENORMALS", _denormals),
        ("RECOMPILATION", _recompilation),
        ("DETERMINISTIC", _deterministic),
        ("FIND_UNUSED", _find_unused),
        ("NO_LEARNING", _no_learning),
    )
    found = []
    for kind, rule in rules:
        words = rule(job, settings)
        if words is not None:
            fixes = tuple(propose_fixes(job, kind, SETTINGS[kind].fixes))
            found.append(Finding(kind, _share(job, kind), (words,), fixes, summary=SETTINGS[kind].summary))
    return tuple(found)


def _share(job: MeasuredJob, kind: str) -> float | None:
    """Return the share of the step that a setting costs; None where nothing shows that."""
    seconds = job.traceback_s if kind == "ANOMALY_MODE" else job.recompile_s if kind == "RECOMPILATION" else 0.0
    return round(job.share(seconds), 4) if seconds else None


def _anomaly(job: MeasuredJob, settings: Mapping[str, Any]) -> str | None:
    if not settings.get("anomaly"):
        return None
    known = job.share(job.traceback_s)
    cost = f"; keeping the stack of each operation takes at least {percent_text(known)} of the step" if known > 0 else ""
    return f"torch.autograd.set_detect_anomaly(True) is on: each gradient is looked through for NaN{cost}"


def _profiler(job: MeasuredJob, settings: Mapping[str, Any]) -> str | None:
    if not settings.get("profiler") or settings.get("steps", 0) < LEAST_STEPS:
        return None
    return f"a profiler of PyTorch still records after {settings['steps']:,} steps: each operation is noted, and memory grows"


def _denormals(job: MeasuredJob, settings: Mapping[str, Any]) -> str | None:
    found = settings.get("denormals")
    if not found or found["slower"] < LEAST_SLOWER:
        return None  # on many processors they cost nothing
    shares = ", ".join(
        f"{percent_text(share)} of the {kind}" for kind, share in found.items() if kind != "slower" and share > 0
    )
    return f"{shares} are denormal numbers (below 1.2e-38); a product with them takes {found['slower']:g} times as long here"


def _recompilation(job: MeasuredJob, settings: Mapping[str, Any]) -> str | None:
    events = job.recompilations
    if len(events) < RECOMPILED:
        return None
    total_s = sum(event.duration_s for event in events)
    words = f"torch.compile compiled again in {count_text(len(events), 'later step')}, {duration(total_s)} in all"
    sizes: dict[str, set[int]] = {}
    for match in (SIZES.search(event.detail or "") for event in events):
        if match:
            sizes.setdefault(f"dimension {match[2]} of {match[1]}", set()).update((int(match[3]), int(match[4])))
    shapes = "; ".join(f"{place} had sizes {', '.join(map(str, sorted(seen)[:6]))}" for place, seen in sizes.items())
    reason = next((event.detail for event in reversed(events) if event.detail), None)
    return f"{words}: {shapes or reason}" if shapes or reason else words


def _deterministic(job: MeasuredJob, settings: Mapping[str, Any]) -> str | None:
    if not settings.get("deterministic"):
        return None
    return "torch.use_deterministic_algorithms(True) is on: operations take slower kernels that give the same bits in each run"


def _find_unused(job: MeasuredJob, settings: Mapping[str, Any]) -> str | None:
    if not settings.get("find_unused_parameters"):
        return None
    unused = settings.get("without_gradient") or 0
    need = (
        "every parameter has a gradient, so nothing needs it"
        if not unused
        else f"{count_text(unused, 'parameter')} have no gradient"
    )
    return f"DistributedDataParallel walks the whole graph in each step (find_unused_parameters=True); {need}"


def _no_learning(job: MeasuredJob, settings: Mapping[str, Any]) -> str | None:
    rate = settings.get("learning_rate")
    if rate is None or rate >= LEAST_RATE or settings.get("steps", 0) < LEAST_STEPS:
        return None
    return f"the largest learning rate is {rate:g} after {settings['steps']:,} steps: the weights hardly change"
