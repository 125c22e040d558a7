"""What a request will cost, from `headrace.cost`: expected where the run's length can be estimated, and at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.cost.estimates.calibrate import factors
from headrace.cost.estimates.floors import InputMode, Job
from headrace.cost.estimates.runs import Purchase, Row, estimate_row
from headrace.cost.market.prices import PREFIX, Instance, PriceTable
from headrace.errors import UsageError

__all__ = ["ExpectedCost", "Work", "expected_cost"]

MODES: Mapping[str, InputMode] = {
    "File": "file",
    "FastFile": "fastfile",
    "Pipe": "pipe",
    "FSxLustre": "fsx",
    "EFS": "efs",
}
"""Input mode of `headrace cost` by SageMaker's input mode or kind of file system."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a job, as far as it is known. Without `model` and `images` only the highest cost can be computed."""

    model: str | None = None
    images: int | None = None
    epochs: float = 1.0
    dataset_bytes: float | None = None
    objects: int | None = None


@dataclass(frozen=True, slots=True)
class ExpectedCost:
    """The cost of a request in USD, expected and at most. None: not known.

    hours: of training, expected. usd: of the whole run as it is bought. usd_on_demand, usd_spot: the same for both purchases,
    spot with expected interruptions: the totals of `headrace cost`, with start, storage and requests. usd_at_most: on demand
    until MaxRuntimeInSeconds. usd_per_hour: of all instances together, on demand. objects: their number in words, if it was
    estimated. missing: what the totals lack.
    """

    hours: float | None = None
    start_s: float | None = None
    usd: float | None = None
    usd_on_demand: float | None = None
    usd_spot: float | None = None
    usd_at_most: float | None = None
    usd_per_hour: float | None = None
    binds: str | None = None
    price_date: str | None = None
    price_source: str | None = None
    note: str | None = None
    requests_usd: float | None = None
    storage_usd: float | None = None
    objects: str | None = None
    missing: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the expected and the highest cost in plain sentences."""
        if self.usd_per_hour is None:
            return [f"cost: {self.note}"]
        found = []
        if self.usd is not None and self.hours is not None:
            lacking = "".join(f", without {part}" for part in self.missing)
            found.append(f"cost: ${self.usd:,.2f} expected{lacking}, {self.hours:.1f} h of training ({self.binds} binds)")
        found.append(f"{'at most' if found else 'cost: at most'} ${self.usd_at_most:,.2f} (${self.usd_per_hour:,.3f} an hour)")
        if self.note:
            found.append(self.note)
        guess = [f"the store is taken to hold {self.objects}; --objects N says how many"] if self.objects else []
        return [", ".join(found[:2]) + f"; prices of {self.price_date}", *found[2:], *guess]


def expected_cost(request: Mapping[str, Any], work: Work, table: PriceTable) -> ExpectedCost:
    """Return the expected and the highest cost of a valid request, with the prices of `table`."""
    groups = _groups(request)
    try:
        priced = [(table.instance(name), count) for name, count in groups]
    except UsageError as reason:
        return ExpectedCost(note=f"not known: {reason}")
    prices = [table.price(instance, "sagemaker") for instance, _ in priced]
    hourly = sum(price.usd_per_hour * count for price, (_, count) in zip(prices, priced, strict=True))
    row, note = _row(request, work, table, priced)
    spot = request.get("EnableManagedSpotTraining", False)
    on_demand = row.total_usd if row else None
    with_spot = row.spot_total_usd if row else None
    if spot and row is not None and with_spot is None:
        note = "the table has no spot discount of this type; the price on demand is shown"
    return ExpectedCost(
        hours=row.hours if row else None,
        start_s=row.start_s if row else None,
        usd=(with_spot if spot and with_spot is not None else on_demand),
        usd_on_demand=on_demand,
        usd_spot=with_spot,
        usd_at_most=hourly * request["StoppingCondition"]["MaxRuntimeInSeconds"] / 3600,
        usd_per_hour=hourly,
        binds=row.binds if row else None,
        price_date=prices[0].date,
        price_source=prices[0].source,
        note=note,
        requests_usd=row.requests_usd if row else None,
        storage_usd=row.storage_usd if row else None,
        objects=row.guess if row else None,
        missing=row.missing if row else (),
    )


def _groups(request: Mapping[str, Any]) -> list[tuple[str, int]]:
    resources = request["ResourceConfig"]
    groups = resources.get("InstanceGroups") or [resources]
    return [(group["InstanceType"].removeprefix(PREFIX), group["InstanceCount"]) for group in groups]


def _row(
    request: Mapping[str, Any], work: Work, table: PriceTable, priced: list[tuple[Instance, int]]
) -> tuple[Row | None, str | None]:
    """Return the estimate of the run, or None and why there is none."""
    if work.model is None or work.images is None:
        return None, "the length of the run is not known: --images N (and --epochs) gives an estimate"
    if len(priced) > 1:
        return None, "the length of a run on several instance types is not estimated"
    mode, sharded = _input(request)
    job = Job(
        images=work.images,
        epochs=work.epochs,
        model=work.model,
        dataset_bytes=work.dataset_bytes,
        objects=work.objects,
        sharded=sharded,
        input_mode=mode,
    )
    (instance, count), *_ = priced
    try:
        row = estimate_row(job, instance, "sagemaker", Purchase(calibration=factors()), table, instances=count)
        return row, row.gate
    except UsageError as reason:
        return None, f"the length of the run is not known: {reason}"


def _input(request: Mapping[str, Any]) -> tuple[InputMode, bool]:
    """Return the input mode of the first channel, and whether each host gets a part of its objects."""
    first = (request.get("InputDataConfig") or [{}])[0]
    source = first.get("DataSource") or {}
    mode = first.get("InputMode") or request["AlgorithmSpecification"]["TrainingInputMode"]
    kind = (source.get("FileSystemDataSource") or {}).get("FileSystemType", mode)
    return MODES[kind], (source.get("S3DataSource") or {}).get("S3DataDistributionType") == "ShardedByS3Key"
