"""Which inputs change the choice: each uncertain input is halved and doubled, and the choice is made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headrace.cost.estimates.budget import Limits, choose
from headrace.cost.estimates.estimate import Estimate
from headrace.cost.estimates.floors import Job, cpu_rate, gpu_rate
from headrace.cost.estimates.runs import Purchase, Row
from headrace.cost.market.prices import Instance, PriceTable, Service

__all__ = ["Change", "sensitivity"]

Asked = Sequence[tuple[Instance, Service]]
RowsOf = Callable[[Job, Asked, Purchase], list[Row]]


@dataclass(frozen=True, slots=True)
class Change:
    """The choice after one input was multiplied by a factor: instance, service, purchase, USD, input mode. None: no choice."""

    input: str
    factor: float
    instance: str | None
    service: str | None
    purchase: str | None
    usd: float | None
    changes_choice: bool
    input_mode: str | None = None


def sensitivity(job: Job, asked: Asked, purchase: Purchase, limits: Limits, table: PriceTable, rows_of: RowsOf) -> list[Change]:
    """Return the choice for each uncertain input halved and doubled; empty if the job's rate is given, the only input then.

    rows_of: returns the rows of a job on the machines asked for.
    """
    if job.img_s is not None:
        return []
    usual = choose(rows_of(job, asked, purchase), limits).row
    changes = []
    for name, vary in _inputs(job, purchase, table):
        for factor in (0.5, 2.0):
            changed_job, changed_purchase = vary(factor)
            row = choose(_rows(name, factor, changed_job, asked, changed_purchase, table, rows_of), limits).row
            changes.append(_change(name, factor, row, usual))
    return changes


def _inputs(job: Job, purchase: Purchase, table: PriceTable) -> list[tuple[str, Callable[[float], tuple[Job, Purchase]]]]:
    rate, measured = cpu_rate(job, table)

    def cpu(factor: float) -> tuple[Job, Purchase]:
        return replace(job, img_s_per_core=rate.times(factor), measured_cpu=measured), purchase

    def interruptions(factor: float) -> tuple[Job, Purchase]:
        hours = purchase.hours_between or table.document["spot_model"]["default_hours_between_interruptions"]
        return job, replace(purchase, hours_between=hours / factor)

    def restart(factor: float) -> tuple[Job, Purchase]:
        usual = table.document["spot_model"]["restart_s"]["value"] if purchase.restart_s is None else purchase.restart_s
        return job, replace(purchase, restart_s=usual * factor)

    found: list[tuple[str, Callable[[float], tuple[Job, Purchase]]]]
    found = [("loader's img/s per vCPU", cpu), ("interruptions", interruptions), ("restart time", restart)]
    if job.dataset_bytes is not None:
        size = job.dataset_bytes
        found.append(("bytes of the dataset", lambda factor: (replace(job, dataset_bytes=size * factor), purchase)))
    found.append(("model's img/s on estimated GPUs", lambda factor: (job, purchase)))
    return found


def _rows(
    name: str, factor: float, job: Job, asked: Asked, purchase: Purchase, table: PriceTable, rows_of: RowsOf
) -> list[Row]:
    """Return the rows; for the GPUs whose rate nobody measured, with that rate multiplied."""
    if not name.startswith("model's"):
        return rows_of(job, asked, purchase)
    rows = []
    for instance, service in asked:
        rate = job.gpu_img_s or gpu_rate(job.model or "", instance.gpu, table)
        varied: Estimate = rate.times(factor) if rate.kind == "estimated" else rate
        rows += rows_of(replace(job, gpu_img_s=varied), [(instance, service)], purchase)
    return rows


def _change(name: str, factor: float, row: Row | None, usual: Row | None) -> Change:
    def identity(of: Row | None) -> tuple[object, ...] | None:
        return (of.instance, of.service, of.recommended, of.input_mode) if of else None

    changed = identity(row) != identity(usual)
    if row is None:
        return Change(name, factor, None, None, None, None, changed)
    return Change(name, factor, row.instance, row.service, row.recommended, row.best_usd, changed, row.input_mode)
