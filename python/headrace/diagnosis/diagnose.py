"""Diagnose a session: what sets the pace of the step, how sure that is, and what each fix would bring.

Order of the work: measure ranks and machine, build the step model, run the rules, add fixes, compute the confidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace.diagnosis.endings.end import how_it_ended
from headrace.diagnosis.findings.batch_notes import batch_notes
from headrace.diagnosis.findings.by_curves import NO_STEPS, curve_words, finding_by_curves
from headrace.diagnosis.findings.confidence import confidence_of, noise_words
from headrace.diagnosis.findings.gpu_settings import find_gpu_settings, find_slow_settings
from headrace.diagnosis.findings.more_gpus import gpu_notes, gpu_scaling
from headrace.diagnosis.findings.not_measured import missing_sources, why_no_steps
from headrace.diagnosis.findings.notes import batch_size_notes, changed_limits_notes, finding_notes, loss_notes
from headrace.diagnosis.findings.open_step import with_open_step
from headrace.diagnosis.findings.reachable import with_reachable
from headrace.diagnosis.findings.step_shares import share_of_step
from headrace.diagnosis.findings.tables import environment, percentile_table, rank_rows
from headrace.diagnosis.fixes.registry import add_fixes
from headrace.diagnosis.measure import Machine, Rank, measure_machine, measure_ranks
from headrace.diagnosis.measure.enough_steps import is_provisional, provisional_words
from headrace.diagnosis.measure.hot_functions import flame_charts, hot_functions, training_stacks
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.prediction import ceiling_img_s
from headrace.diagnosis.measure.script_time import measure_script
from headrace.diagnosis.measure.series import heat_map, stages, timeline
from headrace.diagnosis.measure.stats import percentile
from headrace.diagnosis.measure.step_model import best_rate, build_model
from headrace.diagnosis.result.kinds import KINDS
from headrace.diagnosis.result.model import SHARES, Diagnosis, Finding
from headrace.diagnosis.rules.finding import make_finding
from headrace.diagnosis.rules.order import find_causes
from headrace.diagnosis.rules.standstill import OpenStandstill, open_standstill
from headrace.diagnosis.rules.startup import startup_parts_s
from headrace.session.merge_loaders import merge_recreated_loaders
from headrace.session.model import Session

__all__ = ["diagnose"]

NO_CONFIDENCE = 0.1
"""Confidence of INSUFFICIENT_DATA, the least there is."""

IDLE_GPU = 0.05
"""Count a GPU as used by the job from this busy share on, even when no GPU event was seen (another framework)."""


def diagnose(session: Session) -> Diagnosis:
    """Return the diagnosis of a session. It is provisional until enough steps were timed (`enough_steps`).

    A session with fewer than three timed steps gives INSUFFICIENT_DATA, with the reason.

    Example: `diagnose(Session.load("headrace-sessions/2026-11-20-141205")).verdict`
    """
    session = merge_recreated_loaders(session)
    ranks, machine = _measured(session)
    if not ranks:
        return _insufficient(session, machine)
    standstill = open_standstill(session)
    rank = _judged_rank(ranks, standstill)
    session = training_stacks(session, rank.loader.loader)
    model = build_model(rank, len(ranks), machine, read_rate=best_rate(session))
    job = MeasuredJob(session, ranks, rank, machine, model, measure_script(session, rank, machine))
    parts = share_of_step(job)
    findings = _findings(job, parts)
    confidence = confidence_of(job, findings)
    provisional = is_provisional(rank.steps)
    findings[0] = replace(findings[0], confidence=confidence, evidence=(*findings[0].evidence, *_doubts(rank, provisional)))
    ceiling = ceiling_img_s(job)
    wait_share = job.share(rank.exposed_wait_s)
    found = Diagnosis(
        verdict=findings[0].kind,
        confidence=confidence,
        provisional=provisional,
        share_of_step=parts,
        findings=tuple(_for_all_ranks(found, len(ranks)) for found in findings),
        img_s=_img_s(job, findings[0]),
        ceiling_img_s=ceiling * len(ranks) if ceiling is not None and not rank.elsewhere else None,
        not_measured=missing_sources(job),
        summary=findings[0].summary,
        steps=len(rank.steps),
        ranks=len(ranks),
        step_s=rank.step_s,
        step_p95_s=percentile([step.step_s for step in rank.steps], 0.95),
        wait_share=wait_share,
        wasted_gpu_hours_per_100=None if rank.elsewhere else round(100 * _wasted_share(findings[0], wait_share), 1),
        noise=noise_words(machine),
        foreign_programs=machine.foreign_programs,
        command=session.command,
        exit_code=session.exit_code,
        time_limit_s=session.facts.get("time_limit_s"),
        duration_s=session.duration_s,
        terms_s=model.terms_s if model is not None else {},
        startup_s=startup_parts_s(session, rank),
        environment=environment(session),
        percentiles=percentile_table(session, rank),
        heat_map=heat_map(session),
        timeline=timeline(session, rank.all_steps),
        stages=stages([batch for batch in session.batches if batch.loader == rank.loader.loader], session.processes),
        rank_rows=rank_rows(ranks),
        hot_functions=hot_functions(session),
        flame_charts=flame_charts(session),
        configuration=tuple(_for_all_ranks(found, len(ranks)) for found in (*find_gpu_settings(job), *find_slow_settings(job))),
    )
    return with_open_step(_with_end_and_notes(job, with_reachable(found)), standstill, rank.steps)


def _judged_rank(ranks: Sequence[Rank], standstill: OpenStandstill | None) -> Rank:
    """Return the rank that sets the pace: the one with the longest own part, since all wait for it in the gradient exchange.

    Where a command runs several trainings and one stands still, only the ranks of that training are candidates.
    """
    standing = [rank for rank in ranks if standstill is not None and rank.process.pid in standstill.pids]
    return max(standing or ranks, key=lambda rank: rank.own_s if rank.own_s is not None else rank.step_s)


def _findings(job: MeasuredJob, parts: Mapping[str, float]) -> list[Finding]:
    """Return the causes with their fixes, the verdict first.

    Fixes of STARTUP are predicted on a rate that includes the starts, which is not the rate shown beside other verdicts.
    """
    findings = [add_fixes(job, found) for found in find_causes(job, parts)]
    return findings[:1] + [_without_rates(found) if found.kind == "STARTUP" else found for found in findings[1:]]


def _doubts(rank: Rank, provisional: bool) -> tuple[str, ...]:
    return (provisional_words(rank.all_steps, rank.steps),) if provisional else ()


def _with_end_and_notes(job: MeasuredJob, found: Diagnosis) -> Diagnosis:
    end = how_it_ended(job.session)
    losses = () if end is not None and end.kind == "nan" else loss_notes(job.session, job.rank)
    named = (*finding_notes(found.findings, found.configuration), *changed_limits_notes(job.session))
    batches = batch_notes(job.session, job.rank.process.pid)
    notes = (*batches, *named, *losses, *gpu_notes(job), *batch_size_notes(job, found.fixes))
    return replace(found, end=end, notes=notes, gpu_scaling=gpu_scaling(job))


def _measured(session: Session) -> tuple[tuple[Rank, ...], Machine]:
    ranks = measure_ranks(session)
    machine = _machine(session, ranks)
    return tuple(_with_queueing(rank, machine) for rank in ranks), machine


def _machine(session: Session, ranks: Sequence[Rank]) -> Machine:
    """Return the measured machine, without the use of a GPU that this job does not use."""
    machine = measure_machine(session, tuple(ranks))
    on_cpu = (session.facts.get("configuration") or {}).get("device") == "cpu"
    if not any(rank.gpu_step_s is not None for rank in ranks) and (on_cpu or (machine.gpu_busy or 0.0) < IDLE_GPU):
        return replace(machine, gpu_busy=None)
    return machine


def _with_queueing(rank: Rank, machine: Machine) -> Rank:
    """Return the rank; the threads of a tf.data pipeline that makes its batches in `next()` queue as the job's threads do."""
    if rank.loader.family != "tensorflow" or rank.batch_cost is None:
        return rank
    return replace(rank, batch_cost=rank.batch_cost.with_queueing(machine.queue_share))


def _img_s(job: MeasuredJob, primary: Finding) -> float | None:
    """Return the images per second of all ranks. The rate of a job with slow starts includes the starts."""
    rank, ranks = job.rank, len(job.ranks)
    if primary.kind == "STARTUP":
        return sum(step.items or 0 for step in rank.all_steps) * ranks / (rank.loop_s + rank.workers_start_s)
    return rank.items * ranks / rank.step_s if rank.items is not None else None


def _wasted_share(primary: Finding, wait_share: float) -> float:
    """Return the share of the time that is lost: to input, or to the leading cause if that takes more."""
    return max(wait_share, primary.share or 0.0) if KINDS[primary.kind].is_loss else wait_share


def _without_rates(found: Finding) -> Finding:
    """Return the finding with the gains of its fixes, but without rates."""
    return replace(found, fixes=tuple(replace(fix, predicted_img_s=None, interval=None) for fix in found.fixes))


def _for_all_ranks(found: Finding, ranks: int) -> Finding:
    """Return the finding with rates of the whole job. Predictions are made for one rank."""
    if ranks == 1:
        return found
    fixes = tuple(
        replace(
            fix,
            predicted_img_s=None if fix.predicted_img_s is None else fix.predicted_img_s * ranks,
            interval=None if fix.interval is None else (fix.interval[0] * ranks, fix.interval[1] * ranks),
        )
        for fix in found.fixes
    )
    return replace(found, fixes=fixes)


def _insufficient(session: Session, machine: Machine) -> Diagnosis:
    """Return the diagnosis of a session with too few steps: by the curves of the machine, else the reason and what to do."""
    end = how_it_ended(session)
    evidence = [why_no_steps(session, end), *curve_words(session)]
    standstill = open_standstill(session)
    if standstill is not None and not standstill.hangs:
        evidence.insert(0, standstill.words)
    missing = tuple(f"{item.what}: {item.why}" for item in session.not_measured)
    by_curves = finding_by_curves(session, end) if standstill is None else None
    primary = by_curves or make_finding("INSUFFICIENT_DATA", None, *evidence)
    found = Diagnosis(
        verdict=primary.kind,
        confidence=NO_CONFIDENCE if by_curves is None else by_curves.confidence or NO_CONFIDENCE,
        share_of_step={} if by_curves else dict.fromkeys(SHARES, 0.0) | {"other": 1.0},
        findings=(primary,),
        img_s=None,
        ceiling_img_s=None,
        not_measured=missing if by_curves is None else (NO_STEPS, *missing),
        summary=evidence[0] if by_curves is None else by_curves.summary,
        steps=len(session.steps),
        ranks=0,
        noise=noise_words(machine),
        command=session.command,
        exit_code=session.exit_code,
        end=end,
        notes=batch_notes(session, *(one.pid for one in session.processes if one.role == "main")),
        time_limit_s=session.facts.get("time_limit_s"),
        duration_s=session.duration_s,
        environment=environment(session),
        heat_map=heat_map(session),
        timeline=timeline(session, session.steps),
        stages=stages(session.batches, session.processes),
    )
    return with_open_step(found, standstill, ()) if standstill is not None and standstill.hangs else found
