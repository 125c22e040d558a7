"""Predict the rate of n worker processes from that of one, by the step model of `headrace diagnose` and sharing of cores.

    step ≈ max(G + M, (C + S) / n, (C + c) / P)          `headrace.diagnosis.measure.step_model`
    M    = m · max(1, (b + 1) / P),   b = min(n, C / (G + m))

All terms are seconds a batch, and come from the row with one worker. G: computing alone. C + S: one worker's time for a batch
(batch size ÷ rate of the input alone), of which C is on a core. c: CPU time of the training process. P: usable cores.

M is the hand-over. Between two steps the training thread takes the next batch: it receives its address, maps its memory and
releases the batch before. That takes m of its CPU time (measured with one worker) and no step runs meanwhile, so M adds to G
however many batches are ready. The rest of its CPU time, a step's launches, runs ahead of the GPU and adds nothing.

While the training thread takes a batch, b workers compute. One worker keeps a core busy for C of each step; workers beyond
that wait, because a DataLoader asks for two batches a worker and no more. A fair scheduler gives each of b + 1 runnable threads
P / (b + 1) of a core (Linux, Documentation/scheduler/sched-design-CFS.rst: "each running at 1/nr_running speed"), so M grows by
the factor (b + 1) / P when that is more than 1.

More workers than cores cost nothing else: switching is not in the model, because CPU time an image does not grow with the
workers (column CPU ms/image of benchmarks/results/trials.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.diagnosis.measure.step_model import StepModel

if TYPE_CHECKING:
    from headrace.trials.results.row import Row

__all__ = ["expected_rate", "with_expected_rates"]


def expected_rate(one: Row, workers: int, cores: float) -> float | None:
    """Return the predicted images/s of `workers` workers on `cores` cores. one: the row of one worker; None without its rates.

    one: needs `ingest_img_s`, `compute_img_s`, `cpu_ms`, `own_cpu_ms` and `handover_ms`.
    """
    if not one.ingest_img_s or not one.compute_img_s or one.cpu_ms is None or one.own_cpu_ms is None or one.handover_ms is None:
        return None
    compute_s, made_s = one.batch_size / one.compute_img_s, one.batch_size / one.ingest_img_s
    own_s, takeover_s = one.batch_size * one.own_cpu_ms / 1000, one.handover_ms / 1000
    worker_cpu_s = min(made_s, max(0.0, one.batch_size * one.cpu_ms / 1000 - own_s))
    busy = min(workers, worker_cpu_s / (compute_s + takeover_s))
    model = StepModel(
        compute_s=compute_s,
        handover_s=takeover_s * max(1.0, (busy + 1) / cores),
        cpu_s=worker_cpu_s,
        blocked_s=made_s - worker_cpu_s,
        send_s=0.0,
        main_cpu_s=own_s,
        serial_s=0.0,
        cores=cores,
        ranks=1,
        workers=workers,
    )
    return one.batch_size / model.step_s


def with_expected_rates(rows: Sequence[Row], cores: float) -> list[Row]:
    """Return the rows, those of DataLoaders with the rate predicted from their row with one worker."""
    ones = {(row.loader, row.model, row.data, row.mode): row for row in rows if row.loader == "pytorch" and row.workers == 1}
    found = []
    for row in rows:
        one = ones.get((row.loader, row.model, row.data, row.mode))
        known = one is not None and row is not one and row.workers and row.img_s
        found.append(replace(row, expected_img_s=expected_rate(one, row.workers or 1, cores)) if known and one else row)
    return found
