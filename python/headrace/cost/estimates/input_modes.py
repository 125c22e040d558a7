"""Time and money until the first batch and for each epoch, for each input mode (how the data reach the instance).

`file`: SageMaker downloads everything first. `fastfile`: files appear at once and are read from S3 when they are opened.
`pipe`: one sequential stream per epoch. `stream`: headrace reads ranges of shards into a cache. `fsx`, `efs`: a shared file
system. `local`: the data lie on the instance already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.cost.estimates.estimate import Estimate, exactly
from headrace.cost.estimates.floors import INPUT_MODES, InputMode, Job, binding, cpu_ratio, floors
from headrace.cost.market.prices import Instance, PriceTable, Service

__all__ = ["ModePlan", "PackPlan", "Start", "pack_plan", "plan_modes", "start"]

FILE_MODE_OBJECTS_S = (500.0, 200.0, 2000.0)
"""Small objects that File mode downloads per second: point, low, high. Estimated: GETs of 30 to 100 ms, tens of connections."""

LISTED_OBJECTS_S = 5_000.0
"""Objects that S3 lists per second, in pages of 1,000. Assumed."""

HOURS_PER_MONTH = 730.0


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from ordering the machine to the first batch, and how many of them are billed."""

    seconds: Estimate
    billed_s: float


@dataclass(frozen=True, slots=True)
class ModePlan:
    """Time and money of one run of a job on an instance with one input mode.

    usd: instance time (start and epochs) plus storage_usd (requests, file system, volume). binds: the limiting resource.
    refused: why the mode cannot be used here, in words; then the numbers are None.
    """

    mode: InputMode
    start_s: float | None
    seconds_per_epoch: float | None
    binds: str | None
    storage_usd: float | None
    usd: float | None
    arithmetic: str
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class PackPlan:
    """Time and money of packing the dataset once before training, on one instance of the same type; number of shards."""

    seconds: float
    usd: float
    shards: int
    arithmetic: str


def start(job: Job, instance: Instance, service: Service, table: PriceTable) -> Start:
    """Return the time to the first batch: provisioning the instance, then the input mode's work before training."""
    entry = table.document["start"][f"{service}_s"]
    provision = Estimate(entry["value"], entry["low"], entry["high"], "estimated", table.document["start"]["source"])
    fetch = _fetch(job, instance, table)
    low, high = provision.low + fetch.low, provision.high + fetch.high
    whole = Estimate(provision.point + fetch.point, low, high, "estimated", f"{provision.source}; {fetch.source}")
    # EC2 bills from the boot on. SageMaker bills download and training, not provisioning.
    return Start(whole, fetch.point + (provision.point if service == "ec2" else 0.0))


def _fetch(job: Job, instance: Instance, table: PriceTable) -> Estimate:
    """Return the seconds that the input mode takes before the first batch."""
    if job.input_mode in ("fastfile", "pipe", "stream") and job.objects is not None:
        return exactly(job.objects / LISTED_OBJECTS_S, "listing the objects", "estimated")
    if job.input_mode != "file" or job.dataset_bytes is None:
        return exactly(0.0, "nothing to download")
    rate = table.document["storage"]["file_mode_mb_s"]
    network = (instance.network_gbit_s or 10.0) * 125e6
    # The guide's rate is a lower bound: machines with more network download faster, up to half of it.
    point = job.dataset_bytes / min(rate["value"] * 1e6, network)
    low = job.dataset_bytes / max(rate["value"] * 1e6, network / 2)
    high = 1.5 * point
    if job.objects is not None:
        middle, slow, fast = FILE_MODE_OBJECTS_S
        point, low, high = max(point, job.objects / middle), max(low, job.objects / fast), max(high, job.objects / slow)
    return Estimate(point, low, high, "estimated", rate["source"])


def plan_modes(
    job: Job, instance: Instance, service: Service, usd_per_hour: float, table: PriceTable, *, runs: int = 1
) -> list[ModePlan]:
    """Return all input modes for a job, the cheapest first, refused ones last. `runs`: runs that will use the data.

    The job must know `dataset_bytes` and `objects`.
    """
    plans = [_plan(job, mode, instance, service, usd_per_hour, table, runs) for mode in INPUT_MODES]
    return sorted(plans, key=lambda plan: (plan.refused is not None, plan.usd or 0.0))


def _plan(
    job: Job, mode: InputMode, instance: Instance, service: Service, usd_per_hour: float, table: PriceTable, runs: int
) -> ModePlan:
    if (refused := _refusal(job, mode, instance, service)) is not None:
        return ModePlan(mode, None, None, None, None, None, "", refused)
    this = replace(job, input_mode=mode)
    found = floors(this, instance, table)
    began = start(this, instance, service, table)
    seconds = job.images / binding(found).img_s.point
    if mode == "stream" and _cached(job, instance):
        later = job.images / binding(floors(replace(job, input_mode="local"), instance, table)).img_s.point
        seconds = (seconds + (job.epochs - 1) * later) / job.epochs if job.epochs > 1 else seconds
    hours = (began.billed_s + job.epochs * seconds) / 3600
    storage, words = _storage_usd(this, hours, instance, table.document["storage"], runs)
    return ModePlan(mode, began.seconds.point, seconds, binding(found).resource, storage, hours * usd_per_hour + storage, words)


def _cached(job: Job, instance: Instance) -> bool:
    """Return whether headrace's cache on the instance holds the whole dataset, so that only the first epoch reads the store."""
    return (job.dataset_bytes or 0.0) <= 0.9e9 * instance.nvme_gb


def _refusal(job: Job, mode: InputMode, instance: Instance, service: Service) -> str | None:
    if service == "ec2" and mode in ("file", "fastfile", "pipe"):
        return "a SageMaker input mode"
    if service == "sagemaker" and mode == "local":
        return "SageMaker starts each job on an empty instance"
    if mode == "stream" and job.loader == "pytorch":
        return "needs headrace's loader"
    size = job.dataset_bytes or 0.0
    if mode in ("file", "local") and instance.nvme_gb and size > instance.nvme_gb * 1e9:
        return f"{size / 1e9:,.0f} GB do not fit on {instance.nvme_gb:,.0f} GB of NVMe"
    return None


def _storage_usd(job: Job, hours: float, instance: Instance, prices: Mapping[str, Any], runs: int) -> tuple[float, str]:
    """Return the USD that requests, volumes or file systems cost one run, and the arithmetic in words."""
    gigabytes, objects = (job.dataset_bytes or 0.0) / 1e9, job.objects or 0
    if job.input_mode == "efs":
        read = gigabytes * job.epochs * prices["efs_read_usd_per_gb"]["value"]
        held = gigabytes * prices["efs_usd_per_gb_month"]["value"] * hours / HOURS_PER_MONTH
        return read + held, f"{gigabytes * job.epochs:,.0f} GB read, {gigabytes:,.0f} GB held for {hours:.1f} h"
    if job.input_mode == "fsx":
        held_gb = max(1200.0, gigabytes)  # the smallest file system
        cost = held_gb * prices["fsx_usd_per_gb_month"]["value"] * hours / HOURS_PER_MONTH
        return cost, f"{held_gb:,.0f} GB of file system for {hours:.1f} h"
    if job.input_mode == "local":
        return 0.0, "nothing"
    passes = 1.0 if job.input_mode in ("file", "stream") else job.epochs
    requests = objects * passes / 1000 * prices["s3_usd_per_1000_get"]["value"]
    volume = 0.0
    if job.input_mode == "file" and not instance.nvme_gb:
        volume = gigabytes * prices["gp3_usd_per_gb_month"]["value"] * hours / HOURS_PER_MONTH
    return requests + volume, f"{objects * passes:,.0f} GET requests" + (f", {gigabytes:,.0f} GB of gp3" if volume else "")


def pack_plan(
    job: Job, instance: Instance, usd_per_hour: float, table: PriceTable, *, shard_bytes: float = 128 * 2**20
) -> PackPlan:
    """Return time and money of packing the dataset once, on one instance of the type. The job must know `dataset_bytes`."""
    entry = table.document["loaders"]["pack"]
    ratio = cpu_ratio(entry["cpu"], instance.cpu, table, assumed=instance.cpu_assumed)
    per_second = entry["img_s_per_vcpu"] * ratio.point * instance.vcpus
    size = job.image_bytes or 0.0
    network = (instance.network_gbit_s or 10.0) * 125e6 / 2  # half reads, half writes
    per_second = min(per_second, network / size if size else per_second)
    seconds = job.images / per_second
    requests = (job.objects or job.images) / 1000 * table.document["storage"]["s3_usd_per_1000_get"]["value"]
    return PackPlan(
        seconds,
        seconds / 3600 * usd_per_hour + requests,
        max(1, round((job.dataset_bytes or 0.0) / shard_bytes)),
        f"{job.images:,} images at {per_second:,.0f} img/s, and {job.objects or job.images:,} GET requests",
    )
