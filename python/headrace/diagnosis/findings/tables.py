"""Tables of a diagnosis: environment, percentiles, ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from headrace.diagnosis.measure import Rank, exposed_waits_s
from headrace.diagnosis.measure.series import percentiles
from headrace.diagnosis.measure.stats import percentile
from headrace.diagnosis.result.model import Percentiles, RankRow
from headrace.diagnosis.rules.ranks import slow_phase
from headrace.session.model import Session

__all__ = ["environment", "percentile_table", "rank_rows"]


def environment(session: Session) -> dict[str, Any]:
    """Return versions, sizes and loader arguments that a report prints. Unknown values are left out."""
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


def percentile_table(session: Session, rank: Rank) -> tuple[Percentiles, ...]:
    """Return the percentiles of step times, of making batches, and of the use of CPU, GPU and memory."""
    samples = session.samples
    cpu = [100 * math.fsum(sample.core_busy) / len(sample.core_busy) for sample in samples if sample.core_busy]
    gpu = [100 * item.busy for sample in samples for item in sample.gpus if item.busy is not None]
    memory = [float(sample.memory_used_bytes) for sample in samples if sample.memory_used_bytes is not None]
    made = [batch.wall_s for batch in session.batches if batch.loader == rank.loader.loader]
    exposed = exposed_waits_s(rank.steps)
    next_s = [step.wait_s for step in rank.steps] if rank.gpu_wait_s is not None else []
    rows = (
        percentiles("step", "s", [step.step_s for step in rank.steps]),
        percentiles("wait for input", "s", [wait_s for wait_s, _ in exposed]),
        percentiles("compute", "s", [rest_s for _, rest_s in exposed]),
        percentiles("next()", "s", next_s),
        percentiles("making a batch", "s", made),
        percentiles("CPU", "%", cpu),
        percentiles("GPU", "%", gpu),
        percentiles("memory", "bytes", memory),
    )
    return tuple(row for row in rows if row is not None)


def rank_rows(ranks: Sequence[Rank]) -> tuple[RankRow, ...]:
    """Return one row per rank with its median times; the slowest rank's row names the phase in which it is slow."""
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
