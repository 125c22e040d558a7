"""From a session to a diagnosis: what sets the pace of the step, how sure that is, and what each change would bring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.diagnosis.fixes.registry import add_fixes
from headrace.diagnosis.gpu_settings import find_gpu_settings
from headrace.diagnosis.job import MeasuredJob
from headrace.diagnosis.kinds import KINDS
from headrace.diagnosis.measure import Machine, Rank, measure_machine, measure_ranks
from headrace.diagnosis.model import SHARES, Diagnosis, Finding, RankRow, command_ended
from headrace.diagnosis.prediction import ceiling_img_s
from headrace.diagnosis.read_rate import best_rate
from headrace.diagnosis.rules.finding import make_finding
from headrace.diagnosis.rules.input import unseen_input_kind
from headrace.diagnosis.rules.order import find_causes
from headrace.diagnosis.rules.ranks import slow_phase
from headrace.diagnosis.series import heat_map, percentiles, stages, timeline
from headrace.diagnosis.startup import startup_parts_s
from headrace.diagnosis.stats import percentile
from headrace.diagnosis.step_model import build_model
from headrace.session.merge_loaders import merge_recreated_loaders
from headrace.session.model import Session

__all__ = ["diagnose"]

IDLE_GPU = 0.05
"""A GPU that is busier than this is counted as the job's even when its events were not seen (another framework)."""

NOISE_LIMIT = 0.10
"""Foreign CPU above this share of the machine makes every timing uncertain."""


def diagnose(session: Session) -> Diagnosis:
    """The diagnosis of a session. Never raises for a session that holds little: then it says what was missing."""
    session = merge_recreated_loaders(session)
    ranks = measure_ranks(session)
    machine = measure_machine(session, ranks)
    if not any(rank.gpu_step_s is not None for rank in ranks) and (machine.gpu_busy or 0.0) < IDLE_GPU:
        machine = replace(machine, gpu_busy=None)  # the machine has a GPU, this job does not use it
    if not ranks:
        return _insufficient(session, machine)
    # In step with one another all take equally long; the one whose own part is longest sets the pace.
    rank = max(ranks, key=lambda item: item.own_s if item.own_s is not None else item.step_s)
    model = build_model(rank, _ranks_on_this_node(ranks), machine, read_rate=best_rate(session))
    job = MeasuredJob(session, ranks, rank, machine, model)
    findings = tuple(add_fixes(job, found) for found in find_causes(job))
    # Starts are predicted on a rate that includes them; beside another verdict that rate is not the one shown.
    findings = (findings[0], *(_without_rates(found) if found.kind == "STARTUP" else found for found in findings[1:]))
    confidence = _confidence(job, findings)
    primary = replace(findings[0], confidence=confidence)
    ceiling = ceiling_img_s(job)
    # All ranks take equally many images per step; the slowest rank's step is everyone's.
    img_s = rank.items * len(ranks) / rank.step_s if rank.items is not None else None
    if primary.kind == "STARTUP":  # the pace of single steps is not the matter
        img_s = sum(step.items or 0 for step in rank.all_steps) * len(ranks) / (rank.loop_s + rank.workers_start_s)
    totals = [step.step_s for step in rank.steps]
    wait_share = job.share(rank.exposed_wait_s)
    return Diagnosis(
        verdict=primary.kind,
        confidence=confidence,
        share_of_step=share_of_step(job),
        findings=(_for_all_ranks(primary, len(ranks)), *(_for_all_ranks(found, len(ranks)) for found in findings[1:])),
        img_s=img_s,
        ceiling_img_s=ceiling * len(ranks) if ceiling is not None and not rank.elsewhere else None,
        not_measured=_not_measured(session, job),
        summary=primary.summary,
        steps=len(rank.steps),
        ranks=len(ranks),
        step_s=rank.step_s,
        step_p95_s=percentile(totals, 0.95),
        wait_share=wait_share,
        wasted_gpu_hours_per_100=None if rank.elsewhere else round(100 * _wasted_share(primary, wait_share), 1),
        noise=_noise(machine),
        command=session.command,
        exit_code=session.exit_code,
        time_limit_s=session.facts.get("time_limit_s"),
        duration_s=session.duration_s,
        terms_s=model.terms_s if model is not None else {},
        startup_s=startup_parts_s(session, rank),
        environment=_environment(session),
        percentiles=_percentile_table(session, rank),
        heat_map=heat_map(session),
        timeline=timeline(session, rank.all_steps),
        stages=stages([batch for batch in session.batches if batch.loader == rank.loader.loader], session.processes),
        rank_rows=_rank_rows(ranks),
        configuration=tuple(_for_all_ranks(found, len(ranks)) for found in find_gpu_settings(job)),
    )


def _wasted_share(primary: Finding, wait_share: float) -> float:
    """Of the time: the wait for input, or what the verdict names where that is more (pauses, starts, other ranks)."""
    return max(wait_share, primary.share or 0.0) if KINDS[primary.kind].is_loss else wait_share


def share_of_step(job: MeasuredJob) -> dict[str, float]:
    """The bar: parts of the mean steady step, summing to 1 with the rest in "other"."""
    rank, cost = job.rank, job.rank.batch_cost
    pauses_s = min(rank.compute_s, rank.pauses.gc_s + rank.pauses.periodic_s)
    waiting_s = min(rank.exposed_wait_s, rank.step_s)
    handover_s = min(waiting_s, rank.handover_s if rank.workers else 0.0)
    if cost is not None:
        split = cost.parts_s
    else:
        split = {"blocked" if KINDS[unseen_input_kind(job)[0]].is_blocked else "on a core": 1.0}
    whole_s = math.fsum(split.values()) or 1.0
    late_s = waiting_s - handover_s
    collective_s = min(rank.compute_s, rank.collective_s or 0.0) if len(job.ranks) > 1 else 0.0
    sync_s = _sync_s(job) or 0.0
    h2d_s = min(rank.compute_s, rank.h2d_s or 0.0)
    queue_s = min(rank.step_s - waiting_s, rank.main_queue_s or 0.0)
    parts = {
        "input_storage": late_s * split.get("blocked", 0.0) / whole_s,
        "input_cpu": late_s * split.get("on a core", 0.0) / whole_s,
        "input_queue": late_s * split.get("queueing for a core", 0.0) / whole_s,
        "input_collate": late_s * split.get("collating", 0.0) / whole_s + handover_s,
        "h2d": h2d_s,
        "communication": collective_s,
        "sync": sync_s,
        "periodic": pauses_s,
        "other": queue_s,
    }
    parts["compute"] = max(0.0, rank.step_s - math.fsum(parts.values()))
    total_s = math.fsum(parts.values())
    return {name: parts[name] / total_s for name in SHARES}


def _sync_s(job: MeasuredJob) -> float | None:
    rank = job.rank
    if rank.sync_count is None or rank.sync_s is None or rank.sync_count < 2:
        return None
    idle_s = max(0.0, min(rank.typical_compute_s - rank.sync_s, rank.sync_s))
    return min(idle_s, (1 - job.machine.gpu_busy) * rank.step_s) if job.machine.gpu_busy is not None else idle_s


def _ranks_on_this_node(ranks: Sequence[Rank]) -> int:
    """Training processes that share these cores: those of this session's one machine."""
    return max(1, len(ranks))


def _without_rates(found: Finding) -> Finding:
    return replace(found, fixes=tuple(replace(fix, predicted_img_s=None, interval=None) for fix in found.fixes))


def _for_all_ranks(found: Finding, ranks: int) -> Finding:
    """Predictions are made for one rank; the job's rate is that of all of them."""
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


def _confidence(job: MeasuredJob, findings: Sequence[Finding]) -> float:
    """0..1: lowered by few steps, a noisy machine, a close second cause, a model that misses, and missing sources."""
    confidence = 0.95
    leading = KINDS[findings[0].kind]
    steps = len(job.rank.steps)
    confidence -= 0.25 if job.rank.elsewhere else 0.0
    confidence -= 0.25 if steps < 20 else 0.1 if steps < 50 else 0.0
    foreign = job.machine.foreign_share
    if leading.name != "EXTERNAL_CPU" and foreign is not None and foreign > NOISE_LIMIT:
        confidence -= min(0.3, foreign)
    shares = [found.share or 0.0 for found in findings]
    if len(shares) > 1 and shares[1] > 0.7 * shares[0]:
        confidence -= 0.15
    if job.model is not None and leading.is_step_term:
        missed = abs(math.log(job.rank.step_s / max(1e-9, job.model.step_s)))
        confidence -= min(0.25, max(0.0, missed - 0.1))
    if job.rank.batch_cost is not None and job.rank.batch_cost.queue_s is None:
        confidence -= 0.15
    if job.rank.loader.family == "kineto" and (leading.is_step_term or leading.name == "NO_OVERLAP"):
        confidence -= 0.25  # which kind of input it is, a trace does not tell
    return round(max(0.1, confidence), 2)


def _noise(machine: Machine) -> str | None:
    foreign = machine.foreign_share
    if foreign is None:
        return None
    level = "low" if foreign <= NOISE_LIMIT else "medium" if foreign <= 2 * NOISE_LIMIT else "high"
    return f"{level}: other programs used {foreign:.0%} of the CPU"


def _not_measured(session: Session, job: MeasuredJob) -> tuple[str, ...]:
    """Sources that were absent, and parts of the model that therefore are."""
    missing = [f"{item.what}: {item.why}" for item in session.not_measured]
    rank = job.rank
    if rank.batch_cost is None:
        unknown = (
            "no loader that headrace knows makes them" if rank.loader.family == "none" else "no worker of this loader reported"
        )
        missing.append(f"the making of batches: {unknown}")
    elif rank.loader.family == "tensorflow":
        missing.append("CPU queueing while batches are made: it happens in TensorFlow's threads; counted as blocked")
    elif rank.batch_cost.queue_s is None:
        missing.append("CPU queueing in the workers: the kernel keeps no scheduler statistics")
    if job.machine.gpu_busy is not None and rank.gpu_step_s is None:
        missing.append("times on the GPU's clock: no CUDA work was seen in the training process")
    if rank.elsewhere:
        missing.append(
            "how long training waits: another thread than the one that trains iterates the loader; its waits are shown"
        )
    if rank.items is None:
        missing.append("images per batch: the batch has no tensor to count")
    if not session.samples:
        missing.append("the machine (cores, memory, GPU): no samples")
    return tuple(dict.fromkeys(missing))


def _environment(session: Session) -> dict[str, Any]:
    """Versions and sizes worth printing."""
    host = session.host
    mains = [process for process in session.processes if process.role == "main"]
    values: dict[str, Any] = {
        "host": host.hostname,
        "cpu": host.cpu_model,
        "cores": host.cores,
        "cores_online": host.cores_online,
        "cgroup": host.cgroup,
        "quota_cores": host.quota_cores,
        "memory_bytes": host.memory_bytes,
        "memory_limit_bytes": host.memory_limit_bytes,
        "kernel": host.kernel,
        "gpus": [gpu.name for gpu in host.gpus],
        "driver": host.gpus[0].driver if host.gpus else None,
        "python": mains[0].python if mains else None,
        "torch": mains[0].torch if mains else None,
        "tensorflow": mains[0].tensorflow if mains else None,
        "torch_threads": mains[0].torch_threads if mains else None,
        "loaders": [
            {
                "dataset": loader.dataset,
                "images": loader.dataset_length,
                "batch_size": loader.batch_size,
                "num_workers": loader.num_workers,
                "prefetch_factor": loader.prefetch_factor,
                "pin_memory": loader.pin_memory,
                "persistent_workers": loader.persistent_workers,
            }
            for loader in dict.fromkeys(session.loaders)
        ],
    }
    return {name: value for name, value in values.items() if value not in (None, "", [])}


def _percentile_table(session: Session, rank: Rank) -> tuple[Any, ...]:
    samples = session.samples
    cpu = [100 * math.fsum(sample.core_busy) / len(sample.core_busy) for sample in samples if sample.core_busy]
    gpu = [100 * item.busy for sample in samples for item in sample.gpus if item.busy is not None]
    memory = [float(sample.memory_used_bytes) for sample in samples if sample.memory_used_bytes is not None]
    made = [batch.wall_s for batch in session.batches if batch.loader == rank.loader.loader]
    rows = (
        percentiles("step", "s", [step.step_s for step in rank.steps]),
        percentiles("wait for input", "s", [step.wait_s for step in rank.steps]),
        percentiles("compute", "s", [step.compute_s for step in rank.steps]),
        percentiles("making a batch", "s", made),
        percentiles("CPU", "%", cpu),
        percentiles("GPU", "%", gpu),
        percentiles("memory", "bytes", memory),
    )
    return tuple(row for row in rows if row is not None)


def _rank_rows(ranks: Sequence[Rank]) -> tuple[RankRow, ...]:
    slowest = max(ranks, key=lambda rank: rank.own_s if rank.own_s is not None else rank.step_s)
    rows = []
    for rank in ranks:
        rest = [other for other in ranks if other is not rank]
        slow_in = slow_phase(rank, rest)[0] if rank is slowest and rest else None
        rows.append(
            RankRow(
                rank=rank.process.rank,
                pid=rank.process.pid,
                steps=len(rank.steps),
                step_s=percentile([step.step_s for step in rank.steps], 0.5),
                wait_s=percentile([step.wait_s for step in rank.steps], 0.5),
                compute_s=percentile([step.compute_s for step in rank.steps], 0.5),
                own_s=rank.own_s,
                collective_s=rank.collective_s,
                slow_in=slow_in,
            )
        )
    return tuple(rows)


def _insufficient(session: Session, machine: Machine) -> Diagnosis:
    """Too little was seen: say which of the reasons it was, and what to do."""
    evidence = [_why_nothing(session)]
    if session.exit_code and not session.facts.get("time_limit_s"):
        evidence.append(command_ended(session.exit_code))
    return Diagnosis(
        verdict="INSUFFICIENT_DATA",
        confidence=1.0,
        share_of_step=dict.fromkeys(SHARES, 0.0) | {"other": 1.0},
        findings=(make_finding("INSUFFICIENT_DATA", None, *evidence),),
        img_s=None,
        ceiling_img_s=None,
        not_measured=tuple(f"{item.what}: {item.why}" for item in session.not_measured),
        summary=evidence[0],
        steps=len(session.steps),
        ranks=0,
        noise=_noise(machine),
        command=session.command,
        exit_code=session.exit_code,
        time_limit_s=session.facts.get("time_limit_s"),
        duration_s=session.duration_s,
        environment=_environment(session),
        heat_map=heat_map(session),
        timeline=timeline(session, session.steps),
        stages=stages(session.batches, session.processes),
    )


def _why_nothing(session: Session) -> str:
    if session.steps:
        return (
            f"only {len(session.steps)} steps of a DataLoader were seen, too few of them after the start; let the command run "
            "for at least 60 steps (more epochs, more images, or a smaller batch for this purpose)"
        )
    if session.loaders:
        return "a DataLoader was made but gave no step; look at the command's own output for an error before training"
    if session.processes:
        return "PyTorch ran, but no DataLoader was iterated; only torch.utils.data loaders are timed"
    return (
        "no PyTorch DataLoader was seen, and no tf.data pipeline that Python iterates: the command does not use one, or "
        "starts Python with -I, -E or -S, or in a container of its own; put `headrace diagnose --` in front of the training "
        "command itself"
    )
