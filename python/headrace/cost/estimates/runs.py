"""The rows of a cost estimate: each instance, service and rate with its time and money.

job = Job(images=1_281_167, epochs=100, img_s=400)
row = estimate_row(job, table.instance("p2.16xlarge"), "ec2", Purchase(spot_discount=0.89), table)
row.hours, row.on_demand_usd  # 88.97, 1281.17
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from headrace.cost.estimates.estimate import Estimate, Kind
from headrace.cost.estimates.floors import Floor, Job, floors, one_gpu_rate
from headrace.cost.estimates.input_modes import Start, start
from headrace.cost.market.prices import Instance, Price, PriceTable, Service
from headrace.cost.market.spot import SpotRun, break_even_hours, expected_run, hours_between_interruptions
from headrace.diagnosis.result.gpu_gate import gpu_gate

__all__ = ["Purchase", "Row", "estimate_row", "estimate_rows", "hours_row"]


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
    """Time and money of the run on one instance type of one service, at one rate.

    `hours` is training alone, for all epochs; `start_s` comes before it. `usd_low`, `usd_high`: interval of `on_demand_usd`.
    `gpu_scaling`: the rate over that of one GPU that never waits, times the number of GPUs; None of one GPU or a given rate.
    `spot_usd` is price × hours; `spot_expected_usd` includes interruptions (infinite: the run would never end). None: no spot
    discount is known. `break_even_hours`: spot is cheaper if interruptions are rarer than this.
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
    copy_usd: float = 0.0
    gpu_scaling: float | None = None

    @property
    def gate(self) -> str | None:
        """Why the GPUs of this row are too many, in a clause; None where they are not."""
        return gpu_gate(self.gpu_scaling, gpus=self.gpus * self.instances, limit=f"the {self.binds}")

    @property
    def best_usd(self) -> float:
        """USD of the run with its start, as recommended: on demand, or spot with its expected interruptions."""
        if self.recommended != "spot" or self.spot_expected_usd is None:
            return self.on_demand_usd + self.start_usd
        start_usd = (self.start_usd - self.copy_usd) * (1 - (self.spot_discount or 0.0))
        return self.spot_expected_usd + start_usd + self.copy_usd

    @property
    def total_hours(self) -> float:
        """Hours from ordering the machine to the last step, with the recommended purchase (on demand or spot)."""
        hours = self.spot_expected_hours if self.recommended == "spot" and self.spot_expected_hours else self.hours
        return hours + self.start_s / 3600


def estimate_rows(
    job: Job,
    instances: Iterable[tuple[Instance, Service]],
    purchase: Purchase,
    table: PriceTable,
    *,
    rates: Sequence[float] = (),
) -> list[Row]:
    """Return a row per instance and rate. rates: img/s of the whole job (default: what each instance's resources allow)."""
    jobs = [replace(job, img_s=rate) for rate in rates] or [job]
    return [estimate_row(each, instance, service, purchase, table) for instance, service in instances for each in jobs]


def estimate_row(
    job: Job, instance: Instance, service: Service, purchase: Purchase, table: PriceTable, *, instances: int = 1
) -> Row:
    """Return the row of one job on `instances` instances of a type (default: 1)."""
    found = floors(job, instance, table)
    rate = found[0].img_s
    factor = purchase.calibration.get(machine_kind(instance, service), 1.0)
    whole = _over_instances(rate, instances)
    if job.img_s is None and factor != 1:
        whole = whole.times(1 / factor, source="calibrated with finished runs")
    seconds = job.images / whole.point
    hours = job.epochs * job.images / whole.point / 3600
    began = start(job, instance, service, table)
    gpus = instance.gpus * instances
    scaling = whole.point / (gpus * one_gpu_rate(job, instance, table).point) if gpus > 1 and job.img_s is None else None
    row = _priced(
        _Run(
            instance,
            service,
            instances,
            tuple(found),
            found[0].resource,
            whole,
            seconds,
            hours,
            began,
            job.epochs,
            (job.epochs * job.images / whole.high / 3600, job.epochs * job.images / whole.low / 3600),
        ),
        purchase,
        table,
    )
    return replace(row, gpu_scaling=scaling)


def hours_row(hours: float, instance: Instance, service: Service, purchase: Purchase, table: PriceTable) -> Row:
    """Return the row of a run that takes `hours` of training. Its rate is None."""
    run = _Run(instance, service, 1, (), "given", None, None, hours, None, None, (hours, hours))
    return _priced(run, purchase, table)


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
    epochs: float | None
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
    discount, spot, spot_kind, break_even = _spot(run, purchase, table)
    on_demand = hourly * run.hours
    expected_usd = None if spot is None or discount is None else hourly * (1 - discount) * spot.hours
    start_s = run.start.seconds.point if run.start else 0.0
    billed_s = run.start.billed_s if run.start else 0.0
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
        start_s=start_s,
        usd_per_hour=price.usd_per_hour,
        price_kind=price.kind,
        price_date=price.date,
        price_source=price.source,
        usd_per_epoch=on_demand / run.epochs if run.epochs else None,
        on_demand_usd=on_demand,
        usd_low=hourly * run.hours_interval[0],
        usd_high=hourly * run.hours_interval[1],
        start_usd=hourly * billed_s / 3600,
        spot_discount=discount,
        spot_usd=None if discount is None else on_demand * (1 - discount),
        spot_expected_usd=expected_usd,
        spot_expected_hours=spot.hours if spot else None,
        spot_interruptions=spot.interruptions if spot else None,
        spot_kind=spot_kind,
        break_even_hours=break_even,
        recommended="spot" if expected_usd is not None and expected_usd < on_demand else "on demand",
    )


def _spot(run: _Run, purchase: Purchase, table: PriceTable) -> tuple[float | None, SpotRun | None, str | None, float | None]:
    """Return the discount, the expected run, the source of the discount, and the break-even hours between interruptions."""
    model, quote = table.document["spot_model"], table.spot(run.instance)
    discount = purchase.spot_discount if purchase.spot_discount is not None else quote.discount if quote else None
    if discount is None:
        return None, None, None, None
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
    return discount, spot, words, level if math.isfinite(level) else None
