"""`diagnose --verify`: measure the gain of a fix by running the command briefly with the fix and without it.

`remeasure_fixes` runs the user's command in this order:

1. Once with a replayed batch, if a prediction needs one (`_with_replay`). The other predictions are then made again.
2. Unchanged.
3. For each fix that needs no edit of the script, best first: with the fix, then unchanged again.

The rate with a fix is compared with the mean of the rates of the unchanged runs before and after it, so that slow
drift of the machine cancels. Each run is stopped after its window. The script writes its files again in each of these runs.
`verify_schedule` fits windows and fixes to the time that is left; what is left out is logged.

`launch_with` applies a fix. The record of the fix gives a `Rerun` (`headrace.diagnosis.fixes.fix_kind`). `headrace_run` adds
the hook of `headrace run`, `loader_arguments` and `threads` go to the hook `headrace.attach.experiments.overrides`, and
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
from headrace.attach.experiments.overrides import OVERRIDES_VARIABLE
from headrace.attach.experiments.replay import MATCH_VARIABLE
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.findings.reachable import with_reachable
from headrace.diagnosis.fixes.registry import needs_replay, rerun_with
from headrace.diagnosis.measure import measure_ranks
from headrace.diagnosis.measure.enough_steps import has_rate
from headrace.diagnosis.measure.prediction import round_rate
from headrace.diagnosis.result.model import Diagnosis, Finding, Fix
from headrace.profiling.command import HOOK, add_fact, watch
from headrace.profiling.verify_schedule import (
    MAX_FIXES_MEASURED,
    RUN_COST_S,
    Schedule,
    Windows,
    needed_s,
    run_windows,
    schedule_runs,
)
from headrace.session.merge_loaders import merge_recreated_loaders
from headrace.session.model import ObservedLoader, Session

__all__ = ["Launch", "launch_with", "remeasure_fixes"]

OVERRIDES_HOOK = "headrace.attach.experiments.overrides"
REPLAY_HOOK = "headrace.attach.experiments.replay"

MODEL_MISSED = 0.25
"""Lower the verdict's confidence if a measured rate differs from its prediction by more than this share."""

REPLAY_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start the command for one re-run: the hook modules to load into it, and environment variables to set."""

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
    if rerun.flush_denormal:
        overrides["flush_denormal"] = True
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
    `limit_s`: seconds for all runs together. Windows are shortened and fixes left out until the runs fit, which is logged.
    After Ctrl-C or SIGTERM no further run begins; what was measured stays.
    """
    end_s = math.inf if limit_s is None else time.monotonic() + limit_s
    loader, img_s = _training_loader(session), diagnosis.img_s
    if not diagnosis.findings or loader is None or img_s is None:
        log("--verify: nothing is measured, because the run gave no rate to compare with")
        return diagnosis
    windows = run_windows(diagnosis)
    measured: dict[str, _Measured] = {}
    runs = _Runs(command, folder, end_s, _stop_s(diagnosis))
    try:
        if runs.left_s >= windows.full_s + REPLAY_LIMIT_S + needed_s(1, windows, runs.cost_s):
            diagnosis = _with_replay(diagnosis, session, command, folder, loader, windows.full_s, log)
        launches = _launches(diagnosis, loader, log)
        quiet = not (diagnosis.noise or "").startswith("high")
        _measure(launches, runs, windows, img_s, quiet, log, measured)
    except KeyboardInterrupt:
        log("--verify: interrupted: no further fix is measured")
    return _verified(diagnosis, measured, runs.noise, log)


def _launches(diagnosis: Diagnosis, loader: ObservedLoader, log: Callable[[str], None]) -> list[tuple[Fix, Launch]]:
    """The fixes that can be measured, the best first, at most `MAX_FIXES_MEASURED`, and how each is applied."""
    launches = [(fix, launch) for fix in diagnosis.fixes if (launch := launch_with(fix, loader)) is not None]
    if not launches:
        log("--verify: nothing is measured, because no fix can be applied without an edit of the script")
    elif len(launches) > MAX_FIXES_MEASURED:
        names = ", ".join(fix.id for fix, _ in launches[MAX_FIXES_MEASURED:])
        log(f"--verify: left out, because at most {MAX_FIXES_MEASURED} fixes are measured, the best first: {names}")
    return launches[:MAX_FIXES_MEASURED]


def _verified(
    diagnosis: Diagnosis, measured: dict[str, _Measured], noise: Sequence[str], log: Callable[[str], None]
) -> Diagnosis:
    """The diagnosis with what was measured. Predictions that were far off cost confidence, unless the machine was busy."""
    errors = [
        abs(fix.gain / measured[fix.id].measured_gain - 1)
        for fix in diagnosis.fixes
        if fix.gain is not None and fix.id in measured and measured[fix.id].is_paired
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
    """Images per second with a fix and without it, and those of the watched run, which the gain is scaled to.

    is_paired: whether the rate without it is that of the runs before and after; else it is that of the watched run.
    """

    with_img_s: float
    without_img_s: float
    watched_img_s: float
    is_paired: bool

    @property
    def measured_gain(self) -> float:
        """The rate with the fix over the rate without it."""
        return self.with_img_s / self.without_img_s

    @property
    def img_s(self) -> float:
        """The rate of the watched run with the fix: the one measured rate that is shown."""
        return self.watched_img_s * self.measured_gain

    @property
    def basis(self) -> str:
        """How the rate was measured and scaled, in words."""
        if not self.is_paired:
            return f"{self.with_img_s:,.4g} img/s with it, {self.without_img_s:,.4g} in the watched run"
        runs = f"{self.with_img_s:,.4g} img/s with it, {self.without_img_s:,.4g} without it meanwhile"
        return f"{runs}: {self.measured_gain:.2f} times the {self.watched_img_s:,.4g} of the watched run"


class _Runs:
    """Runs of the command one after the other, none of which lasts longer than the time that is left.

    end_s: when the last run must have ended, monotonic seconds. cost_s: seconds that a run takes beyond its window.
    """

    def __init__(self, command: Sequence[str], folder: Path, end_s: float, cost_s: float) -> None:
        self.command, self.folder, self.end_s, self.cost_s = command, folder, end_s, cost_s
        self.noise: list[str] = []

    @property
    def left_s(self) -> float:
        """Seconds that are left for all runs."""
        return self.end_s - time.monotonic()

    def rate(self, name: str, launch: Launch, window_s: float) -> float | None:
        """Return the images per second of one run; None where it gave no rate or there is no time for it."""
        window_s = min(window_s, self.left_s - self.cost_s)
        if window_s <= 0:
            return None
        began_s = time.monotonic()
        img_s, disturbance = _rate(self.command, self.folder / name, launch, window_s)
        self.cost_s = max(self.cost_s, time.monotonic() - began_s - window_s)
        if disturbance:
            self.noise.append(disturbance)
        return img_s


def _measure(
    launches: Sequence[tuple[Fix, Launch]],
    runs: _Runs,
    windows: Windows,
    img_s: float,
    quiet: bool,
    log: Callable[[str], None],
    measured: dict[str, _Measured],
) -> None:
    """Measure as many fixes as there is time for, best first. Put each result into `measured`, by fix id.

    img_s: of the watched run. quiet: whether other programs left it alone.
    """
    if not launches:
        return
    plan = schedule_runs(len(launches), windows, runs.left_s, cost_s=runs.cost_s, watched_is_quiet=quiet)
    enough_s = needed_s(len(launches), windows, runs.cost_s)
    if plan is None:
        if not quiet:
            log("--verify: other programs slowed the watched run, so its rate is no measure: each fix needs unchanged runs too")
        _log_left_out(launches, enough_s, log)
        return
    log(_plan_words(plan, len(launches), windows))
    window_s, paired, left_out = plan.window_s, plan.has_unchanged, launches[plan.fixes :]
    before = runs.rate("verify-0-unchanged", Launch(), window_s) if paired else img_s
    for number, (fix, launch) in enumerate(launches[: plan.fixes], start=1):
        if number > 1 and runs.left_s < 2 * (windows.least_s + runs.cost_s):
            left_out = launches[number - 1 :]
            break
        log(f"--verify {fix.id}: running the command for about {window_s:.0f} s with this fix{', then without it' * paired}")
        with_fix = runs.rate(f"verify-{number}-{fix.id.replace('=', '-')}", launch, window_s)
        after = runs.rate(f"verify-{number}-unchanged", Launch(), window_s) if paired else None
        without = [img_s for img_s in (before, after) if img_s is not None]
        if with_fix is None or not without:
            log(f"--verify {fix.id}: not measured, too few steps, or the script's loader ignores the change")
        else:
            measured[fix.id] = result = _Measured(with_fix, sum(without) / len(without), img_s, paired)
            log(f"--verify {fix.id}: {_result_words(fix, result, runs.noise)}")
        before = after if after is not None else before
    _log_left_out(left_out, enough_s, log)


def _plan_words(plan: Schedule, fixes: int, windows: Windows) -> str:
    """What is measured, for how long, and against what."""
    what = "1 fix" if fixes == 1 else f"{plan.fixes} of {fixes} fixes, the best first"
    short = "" if plan.window_s >= windows.full_s else f" in place of {windows.full_s:.0f} s, because of --seconds"
    against = "" if plan.has_unchanged else ", against the watched run: there is no time to run the command unchanged again"
    return f"--verify: measuring {what}, by runs of about {plan.window_s:.0f} s{short}{against}"


def _log_left_out(left_out: Sequence[tuple[Fix, Launch]], enough_s: float, log: Callable[[str], None]) -> None:
    """Log the fixes that are not measured, and the seconds that would be enough."""
    if left_out:
        names = ", ".join(fix.id for fix, _ in left_out)
        log(f"--verify: left out for want of time: {names} (about --seconds {enough_s:.0f} would do)")


def _result_words(fix: Fix, result: _Measured, noise: Sequence[str]) -> str:
    disturbed = "".join(f"; {one}" for one in noise[-1:])
    return f"measured {result.img_s:,.0f} img/s ({result.basis}; {_prediction(fix, result.measured_gain)}{disturbed})"


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
    _watch(command, folder / "replay", hooks=(REPLAY_HOOK,), env={MATCH_VARIABLE: match}, time_limit_s=limit_s)
    replay = Session.load(folder / "replay").facts.get("replay")
    if not replay:
        log("--verify: no batch could be replayed; the predictions that need one stay as they are")
        return diagnosis
    add_fact(folder, "replay", replay)
    fresh = diagnose(replace(session, facts={**session.facts, "replay": replay}))
    return replace(fresh, session=diagnosis.session, report=diagnosis.report, time_to_verdict_s=diagnosis.time_to_verdict_s)


def _with_measured(finding: Finding, measured: dict[str, _Measured]) -> Finding:
    return replace(finding, fixes=tuple(_verified_fix(fix, measured.get(fix.id)) for fix in finding.fixes))


def _verified_fix(fix: Fix, found: _Measured | None) -> Fix:
    if found is None:
        return fix
    rate, gain = round_rate(found.img_s), round(found.measured_gain, 3)
    return replace(fix, verified_img_s=rate, verified_change=gain, verified_basis=found.basis)


def _training_loader(session: Session) -> ObservedLoader | None:
    """The loader that the diagnosis is about."""
    ranks = measure_ranks(merge_recreated_loaders(session))
    return max(ranks, key=lambda rank: rank.loop_s).loader if ranks else None


def _stop_s(diagnosis: Diagnosis) -> float:
    """Seconds that a run takes beyond its window: as the watched run did, which --seconds ended."""
    beyond_s = (diagnosis.duration_s or 0.0) - (diagnosis.time_limit_s or math.inf)
    return max(RUN_COST_S, beyond_s)


def _watch(command: Sequence[str], folder: Path, *, hooks: Sequence[str], env: dict[str, str], time_limit_s: float) -> None:
    """Run the command. Raise KeyboardInterrupt if a signal asked this process to stop meanwhile."""
    if watch(command, folder, hooks=hooks, env=env, time_limit_s=time_limit_s).stopped_by is not None:
        raise KeyboardInterrupt


def _rate(command: Sequence[str], folder: Path, launch: Launch, window_s: float) -> tuple[float | None, str | None]:
    """Images per second of one run, and what disturbed the run."""
    _watch(command, folder, hooks=launch.hooks, env=dict(launch.env), time_limit_s=window_s)
    session = Session.load(folder)
    if launch.sets_loader_arguments and not any(loader.overridden for loader in session.loaders):
        return None, None  # a class that does not call DataLoader's initialiser ran unchanged
    rerun_diagnosis = diagnose(session)
    level, _, disturbance = (rerun_diagnosis.noise or "").partition(": ")
    img_s = rerun_diagnosis.img_s if has_rate(rerun_diagnosis.steps) else None
    return img_s, disturbance if level == "high" else None
