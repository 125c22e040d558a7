"""`diagnose --verify`: measure the gain of a fix by running the command briefly with the fix and without it.

`remeasure_fixes` runs the user's command in this order:

1. Once with a replayed batch, if a prediction needs one (`_with_replay`). The other predictions are then made again.
2. Unchanged.
3. For each fix that needs no edit of the script (at most `MAX_FIXES_MEASURED`): with the fix, then unchanged again.

The rate with a fix is compared with the mean of the rates of the unchanged runs before and after it, so that slow
drift of the machine cancels. Each run is stopped after its window. The script writes its files again in each of these runs.

`launch_with` applies a fix. The record of the fix gives a `Rerun` (`headrace.diagnosis.fixes.fix_kind`). `headrace_run` adds
the hook of `headrace run`, `loader_arguments` and `threads` go to the hook `headrace.attach.overrides`, and
`environment` is set.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.accelerate.settings import HOOK as RUN_HOOK
from headrace.attach.overrides import OVERRIDES_VARIABLE
from headrace.attach.replay import MATCH_VARIABLE
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.enough_steps import has_rate
from headrace.diagnosis.fixes.registry import needs_replay, rerun_with
from headrace.diagnosis.measure import measure_ranks
from headrace.diagnosis.model import Diagnosis, Finding, Fix
from headrace.diagnosis.reachable import with_reachable
from headrace.profiling.command import HOOK, add_fact, watch
from headrace.session.merge_loaders import merge_recreated_loaders
from headrace.session.model import ObservedLoader, Session

__all__ = ["Launch", "launch_with", "remeasure_fixes"]

OVERRIDES_HOOK = "headrace.attach.overrides"
REPLAY_HOOK = "headrace.attach.replay"

MIN_WINDOW_S = 8.0
MAX_WINDOW_S = 60.0
WINDOW_STEPS = 60
MAX_FIXES_MEASURED = 6

MODEL_MISSED = 0.25
"""Lower the confidence when a prediction is off by more than this share."""

REPLAY_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Launch:
    """How the command is started for one re-run: the modules of hooks that attach to it, and environment variables."""

    hooks: tuple[str, ...] = (HOOK,)
    env: tuple[tuple[str, str], ...] = ()

    @property
    def sets_loader_arguments(self) -> bool:
        """Whether the run replaces arguments of the training loader."""
        return bool(json.loads(dict(self.env).get(OVERRIDES_VARIABLE, "{}")).get("set"))


def launch_with(fix: Fix, loader: ObservedLoader) -> Launch | None:
    """Return how to start the command with a fix applied, or None when only an edit of the script can apply the fix.

    The record of the fix in `headrace.diagnosis.fixes` says what to change; `loader` is the training loader.
    """
    rerun = rerun_with(fix.id, loader)
    if rerun is None:
        return None
    environment = tuple(rerun.environment.items())
    if rerun.headrace_run:
        return Launch((RUN_HOOK, HOOK), environment)
    overrides: dict[str, object] = {}
    if rerun.threads is not None:
        overrides["threads"] = rerun.threads
    if rerun.loader_arguments:
        overrides["match"] = {"num_workers": loader.num_workers, "batch_size": loader.batch_size}
        overrides["set"] = dict(rerun.loader_arguments)
    if not overrides:
        return Launch(env=environment)
    return Launch((OVERRIDES_HOOK, HOOK), (*environment, (OVERRIDES_VARIABLE, json.dumps(overrides))))


def remeasure_fixes(
    diagnosis: Diagnosis,
    session: Session,
    folder: Path,
    *,
    command: Sequence[str],
    log: Callable[[str], None],
    limit_s: float | None = None,
) -> Diagnosis:
    """Return the diagnosis with `verified_img_s` for every fix that can be applied without an edit of the script.

    Fixes of the model's own computation are first predicted again from a replayed batch. `folder`: of the session; every
    run gets a folder in it. `command`: of the job, with the secrets that the session masks. `log`: takes one line at a time.
    `limit_s`: fixes whose runs would end later than this many seconds from now are not measured, which is logged.
    """
    end_s = math.inf if limit_s is None else time.monotonic() + limit_s
    loader = _training_loader(session)
    if not diagnosis.findings or loader is None or diagnosis.img_s is None:
        return diagnosis
    window_s = _window_s(diagnosis)
    if time.monotonic() + window_s + REPLAY_LIMIT_S <= end_s:
        diagnosis = _with_replay(diagnosis, session, command, folder, loader, window_s, log)
    launches = [(fix, launch) for fix in diagnosis.fixes if (launch := launch_with(fix, loader)) is not None]
    measured, noise = _measure(launches[:MAX_FIXES_MEASURED], command, folder, window_s, log, end_s)
    errors = [
        abs(fix.gain / measured[fix.id].measured_gain - 1) for fix, _ in launches if fix.gain is not None and fix.id in measured
    ]
    if noise:
        log(f"--verify: {noise[0]} meanwhile, so the measured rates are unsure; measure again when nothing else runs")
    elif errors and max(errors) > MODEL_MISSED:
        log("--verify: the step model is wrong for this job; trust the measured rates more than the other predictions")
        diagnosis = replace(diagnosis, confidence=round(max(0.1, diagnosis.confidence - 0.2), 2))
    verified = replace(
        diagnosis,
        findings=tuple(_with_measured(finding, measured) for finding in diagnosis.findings),
        configuration=tuple(_with_measured(finding, measured) for finding in diagnosis.configuration),
    )
    return with_reachable(verified)


@dataclass(frozen=True, slots=True)
class _Measured:
    """Rate with a fix, and that rate over the mean rate without the fix."""

    img_s: float
    measured_gain: float


def _measure(
    launches: Sequence[tuple[Fix, Launch]],
    command: Sequence[str],
    folder: Path,
    window_s: float,
    log: Callable[[str], None],
    end_s: float = math.inf,
) -> tuple[dict[str, _Measured], list[str]]:
    """What was measured by fix id, and the disturbances that were seen meanwhile."""
    measured: dict[str, _Measured] = {}
    noise: list[str] = []

    def rate(name: str, launch: Launch) -> float | None:
        img_s, disturbance = _rate(command, folder / name, launch, window_s)
        if disturbance:
            noise.append(disturbance)
        return img_s

    before: float | None = None
    for number, (fix, launch) in enumerate(launches, start=1):
        if time.monotonic() + (3 if number == 1 else 2) * window_s > end_s:
            names = ", ".join(fix.id for fix, _ in launches[number - 1 :])
            log(f"--verify: not measured, --seconds leaves no time for runs of {window_s:.0f} s: {names}")
            break
        if number == 1:
            before = rate("verify-0-unchanged", Launch())
        log(f"--verify {fix.id}: running the command for about {window_s:.0f} s with this fix, then without it")
        with_fix = rate(f"verify-{number}-{fix.id.replace('=', '-')}", launch)
        after = rate(f"verify-{number}-unchanged", Launch())
        without = [img_s for img_s in (before, after) if img_s is not None]
        if with_fix is None or not without:
            log(f"--verify {fix.id}: not measured, too few steps, or the script's loader ignores the change")
        else:
            measured[fix.id] = result = _Measured(with_fix, with_fix * len(without) / sum(without))
            gain = result.measured_gain
            gains = f"{gain:.2f} times; {_prediction(fix, gain)}{''.join(f'; {one}' for one in noise[-1:])}"
            log(f"--verify {fix.id}: measured {with_fix:,.0f} img/s ({gains})")
        before = after if after is not None else before
    return measured, noise


def _prediction(fix: Fix, measured_gain: float) -> str:
    """The predicted gain and its error. Gains are compared, not rates: the machine may have become faster or slower."""
    if fix.gain is None:
        return "not predicted"
    return f"predicted {fix.gain:.2f} times, off by {100 * (fix.gain / measured_gain - 1):+.0f} %"


def _with_replay(
    diagnosis: Diagnosis,
    session: Session,
    command: Sequence[str],
    folder: Path,
    loader: ObservedLoader,
    window_s: float,
    log: Callable[[str], None],
) -> Diagnosis:
    """The diagnosis with the fixes of the model's computation predicted from a replayed batch, where there are such fixes."""
    if loader.family != "torch" or not needs_replay([fix.id for fix in diagnosis.fixes], diagnosis.verdict):
        return diagnosis
    log("--verify: running the command once more to replay one batch at several sizes and settings")
    match = json.dumps({"num_workers": loader.num_workers, "batch_size": loader.batch_size})
    limit_s = window_s + REPLAY_LIMIT_S
    watch(command, folder / "replay", hooks=(REPLAY_HOOK,), env={MATCH_VARIABLE: match}, time_limit_s=limit_s)
    replay = Session.load(folder / "replay").facts.get("replay")
    if not replay:
        log("--verify: no batch could be replayed; the predictions that need one stay as they are")
        return diagnosis
    add_fact(folder, "replay", replay)
    fresh = diagnose(replace(session, facts={**session.facts, "replay": replay}))
    return replace(fresh, session=diagnosis.session, report=diagnosis.report, time_to_verdict_s=diagnosis.time_to_verdict_s)


def _with_measured(finding: Finding, measured: dict[str, _Measured]) -> Finding:
    fixes = tuple(
        replace(
            fix, verified_img_s=float(f"{measured[fix.id].img_s:.4g}"), verified_change=round(measured[fix.id].measured_gain, 3)
        )
        if fix.id in measured
        else fix
        for fix in finding.fixes
    )
    return replace(finding, fixes=fixes)


def _training_loader(session: Session) -> ObservedLoader | None:
    """The loader that the diagnosis is about."""
    ranks = measure_ranks(merge_recreated_loaders(session))
    return max(ranks, key=lambda rank: rank.loop_s).loader if ranks else None


def _window_s(diagnosis: Diagnosis) -> float:
    """Seconds of one run: the start-up time of the first run and enough steps."""
    start_s = sum(diagnosis.startup_s.values())
    steps_s = WINDOW_STEPS * (diagnosis.step_s or 0.1)
    return 1.3 * start_s + min(MAX_WINDOW_S, max(MIN_WINDOW_S, steps_s))


def _rate(command: Sequence[str], folder: Path, launch: Launch, window_s: float) -> tuple[float | None, str | None]:
    """Images per second of one run, and what disturbed the run."""
    watch(command, folder, hooks=launch.hooks, env=dict(launch.env), time_limit_s=window_s)
    session = Session.load(folder)
    if launch.sets_loader_arguments and not any(loader.overridden for loader in session.loaders):
        return None, None  # a class that does not call DataLoader's initialiser ran unchanged
    rerun_diagnosis = diagnose(session)
    level, _, disturbance = (rerun_diagnosis.noise or "").partition(": ")
    img_s = rerun_diagnosis.img_s if has_rate(rerun_diagnosis.steps) else None
    return img_s, disturbance if level == "high" else None
