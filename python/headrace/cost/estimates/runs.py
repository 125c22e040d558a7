"""The rows of a cost estimate: each instance, service and rate with its time and money.

job = Job(images=1_281_167, epochs=100, img_s=400)
row = estimate_row(job, table.instance("p2.16xlarge"), "ec2", Purchase(spot_discount=0.89), table)
row.hours, row.on_demand_usd  # 88.97, 1281.17
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from headrace.cost.estimates.estimate import Estimate, Kind, weakest
from headrace.cost.estimates.floors import Floor, InputMode, Job, binding, floors, input_vcpus, object_count, one_gpu_rate
from headrace.cost.estimates.input_modes import DataCost, Start, cached, data_cost, missing_parts, refusal, start
from headrace.cost.market.prices import PREFIX, Instance, Price, PriceTable, Service
from headrace.cost.market.spot import SpotRun, break_even_hours, expected_run, hours_between_interruptions
from headrace.diagnosis.result.gpu_gate import gpu_gate

__all__ = ["ModePlan", "Purchase", "Row", "estimate_row", "hours_row", "mode_plans"]


@dataclass(frozen=True, slots=True)
class Purchase:
    """How instances are bought. None: the value of the price table.

    usd_per_hour: price on demand. spot_discount: 0 to 1. hours_between: mean hours between interruptions. checkpoint_s:
    seconds that a checkpoint costs; interval_s: seconds between two (None: Young's). restart_s: seconds from an interruption
    until training goes on. calibration: observed ÷ predicted seconds by kind of machine.
    """

    usd_per_hour: float | None = None
    spot_discount: float | None = None
    hours_between: float | None = None
    checkpoint_s: float | None = None
    interval_s: float | None = None
    restart_s: float | None = None
    calibration: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """Time and money of the run on one instance type of one service, at one rate, with one input mode.

    `hours` is training alone, for all epochs; `start_s` comes before it. `on_demand_usd`, `spot_usd`: price × `hours`.
    `usd_low`, `usd_high`: interval of `on_demand_usd`. `spot_expected_usd` includes interruptions (infinite: the run would
    never end). None: no spot discount is known. `break_even_hours`: spot is cheaper if interruptions are rarer than this.
    `total_usd` on demand = `on_demand_usd` + `start_usd` + `storage_usd` + `requests_usd` + `copy_usd`; `spot_total_usd`: the
    same for spot with its interruptions. `missing`: what both lack, because the job does not say it. `objects`: in the store,
    where the input mode reads them, and where their number comes from. `input_vcpus`: what the input needs for the rate that
    everything but the CPUs allows.
    `gpu_scaling`: the rate over that of one GPU that never waits, times the number of GPUs; None of one GPU or a given rate.
    """

    instance: str
    service: Service
    region: str
    instances: int
    gpu: str
    gpus: int
    vcpus: int
    historic: bool
    img_s: float | None
    img_s_low: float | None
    img_s_high: float | None
    rate_kind: Kind
    binds: str
    floors: tuple[Floor, ...]
    seconds_per_epoch: float | None
    hours: float
    start_s: float
    usd_per_hour: float
    price_kind: str
    price_date: str
    price_source: str
    usd_per_epoch: float | None
    on_demand_usd: float
    usd_low: float
    usd_high: float
    start_usd: float
    spot_discount: float | None
    spot_usd: float | None
    spot_expected_usd: float | None
    spot_expected_hours: float | None
    spot_interruptions: float | None
    spot_kind: str | None
    break_even_hours: float | None
    recommended: str
    input_mode: InputMode | None
    storage_usd: float
    requests_usd: float
    copy_usd: float
    data_arithmetic: str
    total_usd: float
    spot_total_usd: float | None
    missing: tuple[str, ...]
    objects: int | None
    objects_source: str | None
    objects_kind: Kind | None
    input_vcpus: float | None
    gpu_scaling: float | None = None

    @property
    def gate(self) -> str | None:
        """Why the GPUs of this row are too many, in a clause; None where they are not."""
        return gpu_gate(self.gpu_scaling, gpus=self.gpus * self.instances, limit=f"the {self.binds}")

    @property
    def name(self) -> str:
        """The machines in words: "2 × ml.g5.xlarge"."""
        return machine_name(self.instance, self.service, self.instances)

    @property
    def guess(self) -> str | None:
        """The number of objects in words if it was estimated: "1,051 objects, estimated from …"."""
        return f"{self.objects:,} objects, {self.objects_source}" if self.objects_kind == "estimated" else None

    @property
    def best_usd(self) -> float:
        """USD of the whole run as recommended: on demand, or spot with its expected interruptions."""
        return self.spot_total_usd if self.recommended == "spot" and self.spot_total_usd is not None else self.total_usd

    @property
    def total_hours(self) -> float:
        """Hours from ordering the machine to the last step, with the recommended purchase (on demand or spot)."""
        hours = self.spot_expected_hours if self.recommended == "spot" and self.spot_expected_hours else self.hours
        return hours + self.start_s / 3600


@dataclass(frozen=True, slots=True)
class ModePlan:
    """One input mode on one machine: its row, or why the mode cannot be used there."""

    machine: str
    mode: InputMode
    row: Row | None
    refused: str | None = None


def mode_plans(
    job: Job,
    modes: Iterable[InputMode],
    instance: Instance,
    service: Service,
    purchase: Purchase,
    table: PriceTable,
    *,
    instances: int = 1,
) -> list[ModePlan]:
    """Return the row of each input mode that the instance can use, the cheapest first, then those that it cannot use."""
    plans = []
    for mode in modes:
        this = replace(job, input_mode=mode)
        reason = refusal(this, instance, service)
        row = estimate_row(this, instance, service, purchase, table, instances=instances) if reason is None else None
        plans.append(ModePlan(machine_name(instance.name, service, instances), mode, row, reason))
    return sorted(plans, key=lambda plan: plan.row.best_usd if plan.row else math.inf)


def estimate_row(
    job: Job, instance: Instance, service: Service, purchase: Purchase, table: PriceTable, *, instances: int = 1
) -> Row:
    """Return the row of one job on `instances` instances of a type (default: 1)."""
    found = floors(job, instance, table)
    factor = purchase.calibration.get(machine_kind(instance, service), 1.0)
    whole = _over_instances(_rate(job, found, instance, table), instances)
    if job.img_s is None and factor != 1:
        whole = whole.times(1 / factor, source="calibrated with finished runs")
    images, gpus = job.epochs * job.images, instance.gpus * instances
    scaling = whole.point / (gpus * one_gpu_rate(job, instance, table).point) if gpus > 1 and job.img_s is None else None
    row = _priced(
        _Run(
            instance,
            service,
            instances,
            tuple(found),
            found[0].resource,
            whole,
            job.images / whole.point,
            images / whole.point / 3600,
            start(job, instance, service, table),
            job,
            (images / whole.high / 3600, images / whole.low / 3600),
        ),
        purchase,
        table,
    )
    return replace(row, gpu_scaling=scaling)


def _rate(job: Job, found: list[Floor], instance: Instance, table: PriceTable) -> Estimate:
    """Return the lowest floor; if a cache holds the data after the first epoch, the mean rate of that and the later ones."""
    first = found[0].img_s
    if job.input_mode != "stream" or job.epochs <= 1 or not cached(job, instance):
        return first
    later = binding(floors(replace(job, input_mode="local"), instance, table)).img_s

    def mean(one: float, other: float) -> float:
        return job.epochs / (1 / one + (job.epochs - 1) / other)

    point, low, high = mean(first.point, later.point), mean(first.low, later.low), mean(first.high, later.high)
    source = "; ".join(dict.fromkeys((first.source, later.source)))
    return Estimate(point, min(low, point), max(high, point), weakest((first.kind, later.kind)), source)


def hours_row(hours: float, instance: Instance, service: Service, purchase: Purchase, table: PriceTable) -> Row:
    """Return the row of a run that takes `hours` of training. Its rate is None."""
    run = _Run(instance, service, 1, (), "given", None, None, hours, None, None, (hours, hours))
    return _priced(run, purchase, table)


def machine_name(instance: str, service: Service, instances: int = 1) -> str:
    """Return machines in words: "2 × ml.g5.xlarge"."""
    return (f"{instances} × " if instances > 1 else "") + (PREFIX if service == "sagemaker" else "") + instance


def machine_kind(instance: Instance, service: Service) -> str:
    """Return the name of an instance type in the calibration file: "ec2:g5.xlarge"."""
    return f"{service}:{instance.name}"


@dataclass(frozen=True, slots=True)
class _Run:
    instance: Instance
    service: Service
    instances: int
    floors: tuple[Floor, ...]
    binds: str
    rate: Estimate | None
    seconds_per_epoch: float | None
    hours: float
    start: Start | None
    job: Job | None
    hours_interval: tuple[float, float]


def _over_instances(rate: Estimate, instances: int) -> Estimate:
    """Return the rate of several instances: each adds 0.85 to 1 of the first one's (estimated; gradients cross the network)."""
    if instances == 1:
        return rate
    return rate.times(instances * 0.93, instances * 0.85, float(instances), source="scaling over instances estimated")


def _price(run: _Run, purchase: Purchase, table: PriceTable) -> Price:
    if purchase.usd_per_hour is not None:
        return Price(purchase.usd_per_hour, "given", "given", "--usd-per-hour")
    return table.price(run.instance, run.service)


def _priced(run: _Run, purchase: Purchase, table: PriceTable) -> Row:
    price = _price(run, purchase, table)
    hourly = price.usd_per_hour * run.instances
    on_demand = hourly * run.hours
    start_usd = hourly * run.start.billed_s / 3600 if run.start else 0.0
    data = _data(run, run.hours, table)
    total = on_demand + start_usd + data.usd
    spot = _spot(run, purchase, table, hourly, start_usd)
    on_spot = spot.expected_usd is not None and spot.expected_usd < on_demand and (spot.total_usd or 0.0) < total
    objects = object_count(run.job) if run.job and data.requests_usd else None
    return Row(
        instance=run.instance.name,
        service=run.service,
        region=table.region,
        instances=run.instances,
        gpu=run.instance.gpu,
        gpus=run.instance.gpus,
        vcpus=run.instance.vcpus,
        historic=run.instance.historic,
        img_s=run.rate.point if run.rate else None,
        img_s_low=run.rate.low if run.rate else None,
        img_s_high=run.rate.high if run.rate else None,
        rate_kind=run.rate.kind if run.rate else "given",
        binds=run.binds,
        floors=run.floors,
        seconds_per_epoch=run.seconds_per_epoch,
        hours=run.hours,
        start_s=run.start.seconds.point if run.start else 0.0,
        usd_per_hour=price.usd_per_hour,
        price_kind=price.kind,
        price_date=price.date,
        price_source=price.source,
        usd_per_epoch=on_demand / run.job.epochs if run.job else None,
        on_demand_usd=on_demand,
        usd_low=hourly * run.hours_interval[0],
        usd_high=hourly * run.hours_interval[1],
        start_usd=start_usd,
        spot_discount=spot.discount,
        spot_usd=None if spot.discount is None else on_demand * (1 - spot.discount),
        spot_expected_usd=spot.expected_usd,
        spot_expected_hours=spot.run.hours if spot.run else None,
        spot_interruptions=spot.run.interruptions if spot.run else None,
        spot_kind=spot.source,
        break_even_hours=spot.break_even_hours,
        recommended="spot" if on_spot else "on demand",
        input_mode=run.job.input_mode if run.job else None,
        storage_usd=data.storage_usd,
        requests_usd=data.requests_usd,
        copy_usd=data.copy_usd,
        data_arithmetic=data.arithmetic,
        total_usd=total,
        spot_total_usd=spot.total_usd,
        missing=missing_parts(run.job, run.service, table) if run.job else (),
        objects=round(objects.point) if objects else None,
        objects_source=objects.source if objects else None,
        objects_kind=objects.kind if objects else None,
        input_vcpus=input_vcpus(list(run.floors), run.instance.vcpus),
    )


def _data(run: _Run, hours: float, table: PriceTable, *, starts: float = 1.0) -> DataCost:
    """Return what the data cost while training takes `hours`, with the billed start before it; nothing for a given length."""
    if run.job is None or run.start is None:
        return DataCost()
    held = hours + run.start.billed_s / 3600
    return data_cost(run.job, held, run.instance, table, instances=run.instances, starts=starts)


@dataclass(frozen=True, slots=True)
class _Spot:
    """What spot costs, all None without a discount. source: of the discount."""

    discount: float | None = None
    run: SpotRun | None = None
    source: str | None = None
    break_even_hours: float | None = None
    expected_usd: float | None = None
    total_usd: float | None = None


def _spot(run: _Run, purchase: Purchase, table: PriceTable, hourly: float, start_usd: float) -> _Spot:
    model, quote = table.document["spot_model"], table.spot(run.instance)
    discount = purchase.spot_discount if purchase.spot_discount is not None else quote.discount if quote else None
    if discount is None:
        return _Spot()
    longest = model["default_hours_between_interruptions"]
    hours_between = purchase.hours_between or hours_between_interruptions(
        quote.monthly_interruption if quote else None, longest
    )
    checkpoint_s = purchase.checkpoint_s if purchase.checkpoint_s is not None else model["checkpoint_s"]["value"]
    restart_s = purchase.restart_s if purchase.restart_s is not None else model["restart_s"]["value"]
    # Any instance of a group that goes takes the run with it.
    between = hours_between / run.instances
    spot = expected_run(run.hours, between, checkpoint_s=checkpoint_s, restart_s=restart_s, interval_s=purchase.interval_s)
    level = break_even_hours(discount, checkpoint_s=checkpoint_s, restart_s=restart_s, interval_s=purchase.interval_s)
    words = "--spot-discount" if purchase.spot_discount is not None else f"{quote.source}, {quote.date}" if quote else None
    expected_usd = hourly * (1 - discount) * spot.hours
    total = math.inf
    if math.isfinite(spot.hours):
        data = _data(run, spot.hours, table, starts=1 + spot.interruptions)
        total = expected_usd + start_usd * (1 - discount) + data.usd
    return _Spot(discount, spot, words, level if math.isfinite(level) else None, expected_usd, total)
