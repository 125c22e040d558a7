"""Time and money until the first batch and for each epoch, for each input mode (how the data reach the instance).

`file`: SageMaker downloads everything first. `fastfile`: files appear at once and are read from S3 when they are opened.
`pipe`: one sequential stream per epoch. `stream`: headrace reads ranges of shards into a cache. `fsx`, `efs`: a shared file
system. `local`: the data lie on the instance already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.cost.estimates.estimate import Estimate, exactly
from headrace.cost.estimates.floors import SHARD_BYTES, InputMode, Job, cpu_ratio, object_count
from headrace.cost.market.prices import Instance, PriceTable, Service

__all__ = ["DataCost", "PackPlan", "Start", "cached", "data_cost", "missing_parts", "pack_plan", "refusal", "start"]

FILE_MODE_OBJECTS_S = (500.0, 200.0, 2000.0)
"""Small objects that File mode downloads per second: point, low, high. Estimated: GETs of 30 to 100 ms, tens of connections."""

LISTED_OBJECTS_S = 5_000.0
"""Objects that S3 lists per second, in pages of 1,000. Assumed."""

HOURS_PER_MONTH = 730.0

EMPTY = "SageMaker starts each job on an empty instance"


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from ordering the machine to the first batch, and how many of them are billed."""

    seconds: Estimate
    billed_s: float


READ_FROM_STORE: frozenset[InputMode] = frozenset({"file", "fastfile", "pipe", "stream", "fsx"})
"""Input modes that send GET requests for the objects. A file system of FSx sends them when it fills itself."""


@dataclass(frozen=True, slots=True)
class DataCost:
    """What the data of a run cost in USD: volumes or file systems, requests, the copy from another region.

    arithmetic: storage and requests in words.
    """

    storage_usd: float = 0.0
    requests_usd: float = 0.0
    copy_usd: float = 0.0
    arithmetic: str = "nothing"

    @property
    def usd(self) -> float:
        """The sum of the parts."""
        return self.storage_usd + self.requests_usd + self.copy_usd


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
    objects = object_count(job).point
    if job.input_mode in ("fastfile", "pipe", "stream"):
        return exactly(objects / LISTED_OBJECTS_S, "listing the objects", "estimated")
    if job.input_mode != "file" or job.dataset_bytes is None:
        return exactly(0.0, "nothing to download")
    rate = table.document["storage"]["file_mode_mb_s"]
    network = (instance.network_gbit_s or 10.0) * 125e6
    # The guide's rate is a lower bound: machines with more network download faster, up to half of it.
    point = job.dataset_bytes / min(rate["value"] * 1e6, network)
    low = job.dataset_bytes / max(rate["value"] * 1e6, network / 2)
    high = 1.5 * point
    middle, slow, fast = (objects / each for each in FILE_MODE_OBJECTS_S)
    point, low, high = max(point, middle), max(low, fast), max(high, slow)
    return Estimate(point, low, high, "estimated", rate["source"])


def cached(job: Job, instance: Instance) -> bool:
    """Return whether headrace's cache on the instance holds the whole dataset, so that only the first epoch reads the store."""
    return job.dataset_bytes is not None and job.dataset_bytes <= 0.9e9 * instance.nvme_gb


def refusal(job: Job, instance: Instance, service: Service) -> str | None:
    """Return why the job's input mode cannot be used on the instance, in words; None if it can."""
    mode, size = job.input_mode, job.dataset_bytes or 0.0
    if service == "ec2" and mode in ("file", "fastfile", "pipe"):
        return "a SageMaker input mode"
    if service == "sagemaker" and mode == "local":
        return EMPTY
    if mode == "stream" and job.loader == "pytorch":
        return "needs headrace's loader"
    if mode in ("file", "local") and instance.nvme_gb and size > instance.nvme_gb * 1e9:
        return f"{size / 1e9:,.0f} GB do not fit on {instance.nvme_gb:,.0f} GB of NVMe"
    return None


def missing_parts(job: Job, service: Service, table: PriceTable) -> tuple[str, ...]:
    """Return what the cost of a run lacks because the job does not say it, each with the option that gives it."""
    mode, found = job.input_mode, []
    if job.dataset_bytes is None:
        lacking = {"file": "download and volume", "fsx": "file system beyond 1,200 GB", "efs": "file system"}.get(mode)
        found += [f"the {lacking} (--bytes N)"] if lacking else []
        found += ["the copy between regions (--bytes N)"] if _copied(job, table) else []
    if mode == "local" and service == "sagemaker":
        found.append(f"the way of the data to the instance (--input-mode auto): {EMPTY}")
    return tuple(found)


def data_cost(
    job: Job, hours: float, instance: Instance, table: PriceTable, *, instances: int = 1, starts: float = 1.0
) -> DataCost:
    """Return what the data cost in a run that holds `instances` for `hours` and starts `starts` times."""
    prices = table.document["storage"]
    copied_gb = (job.dataset_bytes or 0.0) / 1e9 if _copied(job, table) else 0.0
    copy = copied_gb * prices["egress_usd_per_gb"]["value"] / job.reuse_runs
    storage, stored = _storage(job, hours, instance, prices, instances)
    reads = _reads_of_each(job, instance, instances, starts) if job.input_mode in READ_FROM_STORE else 0.0
    requests = object_count(job).point * reads
    words = [f"{requests:,.0f} GET requests"] if requests else []
    arithmetic = ", ".join([*words, *stored]) or "nothing"
    return DataCost(storage, requests / 1000 * prices["s3_usd_per_1000_get"]["value"], copy, arithmetic)


def _copied(job: Job, table: PriceTable) -> bool:
    return job.data_region is not None and job.data_region != table.region


def _storage(job: Job, hours: float, instance: Instance, prices: Mapping[str, Any], instances: int) -> tuple[float, list[str]]:
    """Return the USD that volumes or file systems cost one run, and the arithmetic in words."""
    gigabytes = (job.dataset_bytes or 0.0) / 1e9

    def held(size: float, name: str) -> float:
        return size * float(prices[name]["value"]) * hours / HOURS_PER_MONTH

    if job.input_mode == "efs":
        read = gigabytes * job.epochs * float(prices["efs_read_usd_per_gb"]["value"])
        words = f"{gigabytes * job.epochs:,.0f} GB read, {gigabytes:,.0f} GB held for {hours:.1f} h"
        return read + held(gigabytes, "efs_usd_per_gb_month"), [words]
    if job.input_mode == "fsx":
        size = max(1200.0, gigabytes)  # the smallest file system
        return held(size, "fsx_usd_per_gb_month"), [f"{size:,.0f} GB of file system for {hours:.1f} h"]
    if job.input_mode == "file" and not instance.nvme_gb:
        size = gigabytes if job.sharded else gigabytes * instances
        return held(size, "gp3_usd_per_gb_month"), [f"{size:,.0f} GB of gp3"]
    return 0.0, []


def _reads_of_each(job: Job, instance: Instance, instances: int, starts: float) -> float:
    """Return how often each object is read in a run. Hosts that get all objects read them once each, others share them."""
    hosts = 1 if job.sharded else instances
    if job.input_mode == "file":
        return starts * hosts
    if job.input_mode == "pipe":
        return job.epochs * hosts
    if job.input_mode == "stream" and cached(job, instance):
        return min(1.0, job.epochs) * starts
    return min(1.0, job.epochs) if job.input_mode == "fsx" else job.epochs


def pack_plan(
    job: Job, instance: Instance, usd_per_hour: float, table: PriceTable, *, shard_bytes: float = SHARD_BYTES
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
