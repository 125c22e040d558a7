"""Measure what a fix really brings: run the command again for a short while with the change, and once more without it.

A, B, A: the rate with the change is set against the mean of the rates before and after, so that slow drift of the
machine cancels. Each run is ended after its window; what the script writes in that time it writes again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.accelerate.settings import HOOK as RUN_HOOK
from headrace.attach.overrides import OVERRIDES_VARIABLE
from headrace.attach.replay import MATCH_VARIABLE
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.fixes.registry import needs_replay, rerun_with
from headrace.diagnosis.measure import measure_ranks
from headrace.diagnosis.model import Diagnosis, Finding, Fix
from headrace.profiling.command import HOOK, add_fact, watch
from headrace.session.merge_loaders import merge_recreated_loaders
from headrace.session.model import ObservedLoader, Session

__all__ = ["Launch", "launch_with", "remeasure_fixes"]

OVERRIDES_HOOK = "headrace.attach.overrides"
REPLAY_HOOK = "headrace.attach.replay"

LEAST_WINDOW_S = 8.0
MOST_WINDOW_S = 60.0
WINDOW_STEPS = 60
MOST_RERUNS = 6

MODEL_MISSED = 0.25
"""A prediction that is off by more than this makes the others doubtful as well."""

REPLAY_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Launch:
    """How the command is started for one re-run: the modules of hooks that attach to it, and environment variables."""

    hooks: tuple[str, ...] = (HOOK,)
    env: tuple[tuple[str, str], ...] = ()


def launch_with(fix: Fix, loader: ObservedLoader) -> Launch | None:
    """Return how to start the command with a fix applied, or None when only an edit of the script can apply the fix.

    The record of the fix in `headrace.diagnosis.fixes` says what to change; `loader` is the training loader.
    """
    rerun = rerun_with(fix.id, loader)
    if rerun is None:
        return None
    if rerun.headrace_run:
        return Launch(hooks=(RUN_HOOK, HOOK))
    if not rerun.loader_arguments:
        return Launch(env=tuple(rerun.environment.items()))
    overrides = {
        "match": {"num_workers": loader.num_workers, "batch_size": loader.batch_size},
        "set": dict(rerun.loader_arguments),
    }
    return Launch((OVERRIDES_HOOK, HOOK), ((OVERRIDES_VARIABLE, json.dumps(overrides)),))


def remeasure_fixes(diagnosis: Diagnosis, session: Session, folder: Path, *, log: Callable[[str], None]) -> Diagnosis:
    """The diagnosis with `verified_img_s` for each fix, of whatever finding, that can be applied from outside.

    Fixes that rest on what the model's own work costs are predicted anew from a replayed batch first.
    """
    loader = _training_loader(session)
    if not diagnosis.findings or loader is None or diagnosis.img_s is None:
        return diagnosis
    window_s = _window_s(diagnosis)
    diagnosis = _with_replay(diagnosis, session, folder, loader, window_s, log)
    fixes = [(fix, launch) for fix in diagnosis.fixes if (launch := launch_with(fix, loader)) is not None]
    measured: dict[str, tuple[float, float]] = {}
    missed: list[float] = []
    noise: list[str] = []

    def rate(name: str, launch: Launch) -> float | None:
        img_s, disturbed = _rate(session.command, folder / name, launch, window_s)
        if disturbed:
            noise.append(disturbed)
        return img_s

    before = rate("verify-0-unchanged", Launch()) if fixes else None
    for number, (fix, launch) in enumerate(fixes[:MOST_RERUNS], start=1):
        log(f"verify {fix.id}: running the command again for about {window_s:.0f} s with this change, then without")
        with_fix = rate(f"verify-{number}-{fix.id.replace('=', '-')}", launch)
        after = rate(f"verify-{number}-unchanged", Launch())
        known = [img_s for img_s in (before, after) if img_s is not None]
        if with_fix is None or not known:
            log(f"verify {fix.id}: the changed run gave too few steps to measure")
        else:
            change = with_fix * len(known) / sum(known)
            measured[fix.id] = (with_fix, change)
            log(f"verify {fix.id}: {with_fix:,.0f} img/s ({change:.2f} times; {_against(fix, change)})")
            if fix.gain is not None:
                missed.append(abs(fix.gain / change - 1))
        before = after if after is not None else before
    if noise:
        log(f"verify: {noise[0]} meanwhile; what was measured is unsure, so measure again when nothing else runs")
    elif missed and max(missed) > MODEL_MISSED:
        log("verify: the model of this job is wrong somewhere; trust the measured figures, and the other predictions less")
        diagnosis = replace(diagnosis, confidence=round(max(0.1, diagnosis.confidence - 0.2), 2))
    return replace(
        diagnosis,
        findings=tuple(_with_measured(found, measured) for found in diagnosis.findings),
        configuration=tuple(_with_measured(found, measured) for found in diagnosis.configuration),
    )


def _against(fix: Fix, change: float) -> str:
    """The prediction beside what was measured; both as changes, since the machine may have been faster or slower meanwhile."""
    if fix.gain is None:
        return "not predicted"
    return f"predicted {fix.gain:.2f} times, off by {fix.gain / change - 1:+.0%}"


def _with_replay(
    diagnosis: Diagnosis, session: Session, folder: Path, loader: ObservedLoader, window_s: float, log: Callable[[str], None]
) -> Diagnosis:
    """The diagnosis with fixes of the model's own work predicted from one more run, where there are any."""
    if loader.family != "torch" or not needs_replay([fix.id for fix in diagnosis.fixes], diagnosis.verdict):
        return diagnosis
    log("verify: running the command once more with one batch replayed at several sizes and settings")
    match = json.dumps({"num_workers": loader.num_workers, "batch_size": loader.batch_size})
    limit_s = window_s + REPLAY_LIMIT_S
    watch(session.command, folder / "replay", hooks=(REPLAY_HOOK,), env={MATCH_VARIABLE: match}, time_limit_s=limit_s)
    found = Session.load(folder / "replay").facts.get("replay")
    if not found:
        log("verify: no batch could be replayed; those fixes stay as they are")
        return diagnosis
    add_fact(folder, "replay", found)
    fresh = diagnose(replace(session, facts={**session.facts, "replay": found}))
    return replace(fresh, session=diagnosis.session, report=diagnosis.report, time_to_verdict_s=diagnosis.time_to_verdict_s)


def _with_measured(found: Finding, measured: dict[str, tuple[float, float]]) -> Finding:
    fixes = tuple(
        replace(fix, verified_img_s=float(f"{measured[fix.id][0]:.4g}"), verified_change=round(measured[fix.id][1], 3))
        if fix.id in measured
        else fix
        for fix in found.fixes
    )
    return replace(found, fixes=fixes)


def _training_loader(session: Session) -> ObservedLoader | None:
    """The loader that the diagnosis is about."""
    ranks = measure_ranks(merge_recreated_loaders(session))
    return max(ranks, key=lambda rank: rank.loop_s).loader if ranks else None


def _window_s(diagnosis: Diagnosis) -> float:
    """Start-up, which the first run showed, and enough steps."""
    start_s = sum(diagnosis.startup_s.values())
    steps_s = WINDOW_STEPS * (diagnosis.step_s or 0.1)
    return 1.3 * start_s + min(MOST_WINDOW_S, max(LEAST_WINDOW_S, steps_s))


def _rate(command: Sequence[str], folder: Path, launch: Launch, window_s: float) -> tuple[float | None, str | None]:
    """Images per second of one more run, and what disturbed it."""
    watch(command, folder, hooks=launch.hooks, env=dict(launch.env), time_limit_s=window_s)
    found = diagnose(Session.load(folder))
    level, _, words = (found.noise or "").partition(": ")
    return found.img_s, words if level == "high" else None
