"""The rates that GPU, CPU, network, requests and disk of an instance allow; the lowest binds.

A floor is the time an epoch takes if only one resource works. Here it is a rate: images a second that the resource allows.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.cost.estimates.estimate import Estimate, Kind, exactly
from headrace.cost.market.prices import Instance, PriceTable
from headrace.errors import UsageError
from headrace.system.text.sizes import number_text, percent_text

__all__ = [
    "INPUT_MODES",
    "LOADERS",
    "SHARD_BYTES",
    "Floor",
    "InputMode",
    "Job",
    "binding",
    "cpu_rate",
    "floors",
    "gpu_rate",
    "input_vcpus",
    "object_count",
    "one_gpu_rate",
]

Resource = Literal["given", "gpu", "cpu", "network", "requests", "disk"]
InputMode = Literal["local", "file", "fastfile", "pipe", "stream", "fsx", "efs"]
INPUT_MODES: tuple[InputMode, ...] = ("local", "file", "fastfile", "pipe", "stream", "fsx", "efs")
LOADERS = ("pytorch", "headrace", "headrace-packed")

REMOTE: frozenset[InputMode] = frozenset({"fastfile", "pipe", "stream", "fsx", "efs"})
"""Input modes in which each epoch reads over the network."""

NETWORK_SHARE = (0.8, 0.4, 1.0)
"""Share of the nominal network bandwidth that a job gets: point, low, high. AWS's "up to" bandwidths hold for minutes only."""

SCALING = (0.9, 0.84, 0.98)
"""Share of one GPU's rate that each of several GPUs reaches: point, low, high. Published for 8 × V100: 0.87, 8 × A100: 0.84."""

CPU_SPREAD, ASSUMED_CPU_SPREAD, UNKNOWN_CPU_SPREAD = 1.2, 1.35, 2.0
"""Uncertainty of the speed ratio of two processors, as a factor up and down: both known, one assumed, one unknown.

The ratio depends on the benchmark (integer, compression, one thread) by about the first factor.
"""

STREAM_REQUESTS = 64
"""Requests that headrace keeps in flight when it streams. With FastFile each worker (one per vCPU) waits for its one file."""

SHARD_BYTES = 128 * 2**20
"""Size of the shards that `headrace pack` writes."""

CACHE_SHARE = 0.7
"""A dataset of at most this share of the memory stays in the page cache: later epochs do not read the disk."""


@dataclass(frozen=True, slots=True)
class Job:
    """The training to estimate: model, data, loader, and the rates that are known.

    model: a name of the table (`resnet50`), or None if `img_s` or `gpu_img_s` is given.
    images: images of an epoch. epochs: passes over them.
    dataset_bytes, objects: size of the dataset and number of its objects in the store; None where unknown. objects_source:
    where that number comes from. sharded: each of several hosts gets a part of the objects, not all.
    data_region: where the data lie, if they must be copied from there, once for `reuse_runs` runs (default: where it runs).
    loader: `pytorch`, `headrace` (folder) or `headrace-packed`. augmentation: a load of the table, `light` or `heavy`.
    img_s: the rate of the whole job, which replaces all floors. img_s_per_core: the loader's rate per vCPU, measured on
    `measured_cpu` (a name of the table; None: unknown). gpu_img_s: the model's rate on one GPU, without waiting for input.
    """

    images: int
    epochs: float
    model: str | None = None
    dataset_bytes: float | None = None
    objects: int | None = None
    objects_source: str = "given"
    sharded: bool = False
    data_region: str | None = None
    reuse_runs: int = 1
    loader: str = "headrace-packed"
    augmentation: str | None = None
    input_mode: InputMode = "local"
    img_s: float | None = None
    img_s_per_core: Estimate | None = None
    measured_cpu: str | None = None
    gpu_img_s: Estimate | None = None

    @property
    def image_bytes(self) -> float | None:
        """Mean bytes of an image."""
        return None if self.dataset_bytes is None else self.dataset_bytes / self.images


def object_count(job: Job) -> Estimate:
    """Return the number of objects in the store: the job's, else one an image, as in a folder that nobody packed."""
    if job.objects is not None:
        return exactly(job.objects, job.objects_source)
    return exactly(job.images, "estimated as one an image", "estimated")


@dataclass(frozen=True, slots=True)
class Floor:
    """The highest rate in images/s that one resource of an instance allows, and its calculation in words."""

    resource: Resource
    img_s: Estimate
    arithmetic: str = field(default="")


def floors(job: Job, instance: Instance, table: PriceTable) -> list[Floor]:
    """Return the rate that each resource of an instance allows, lowest first; if the job's rate is given, that rate alone."""
    if job.img_s is not None:
        return [Floor("given", exactly(job.img_s, "--img-s"), f"{job.img_s:g} img/s, given")]
    found = [_gpu(job, instance, table), _cpu(job, instance, table), *_input(job, instance, table)]
    return sorted(found, key=lambda floor: floor.img_s.point)


def binding(found: list[Floor]) -> Floor:
    """Return the lowest of the rates: that resource limits the job."""
    return min(found, key=lambda floor: floor.img_s.point)


def input_vcpus(found: list[Floor], vcpus: int) -> float | None:
    """Return the vCPUs that the input needs for the rate that the other resources allow; None if unknown.

    vcpus: those of the machine.
    """
    cpu = next((floor for floor in found if floor.resource == "cpu"), None)
    others = [floor for floor in found if floor.resource != "cpu"]
    return vcpus * binding(others).img_s.point / cpu.img_s.point if cpu and others else None


def gpu_rate(model: str, gpu: str, table: PriceTable) -> Estimate:
    """Return the training rate in img/s of a model on one GPU that never waits, with mixed precision, 224 × 224 pixels.

    Raises `UsageError` for a model that the table does not know.
    """
    models: dict[str, Any] = table.document["models"]
    if model not in models:
        near = difflib.get_close_matches(model, models, n=3, cutoff=0.4)
        raise UsageError(
            f"the throughput of {model!r} is not in the table",
            hint=f"known: {', '.join(near or models)}; --gpu-img-s gives the rate of one GPU that never waits",
        )
    base = _resnet50_rate(gpu, table)
    entry, reference = models[model], models["resnet50"]
    by_work = reference["gflops"] / entry["gflops"]
    ratio = entry.get("of_resnet50", by_work)
    if ratio == by_work == 1:
        return base
    source = entry.get("source", "ratio of the models' multiplications")
    low, high = sorted((ratio, by_work)) if ratio != by_work else (0.7 * ratio, 1.3 * ratio)
    return base.times(ratio, low, high, source=f"{model} = {ratio:.2f} × resnet50 ({source})")


def _resnet50_rate(gpu: str, table: PriceTable) -> Estimate:
    entry = table.document["gpus"][gpu]
    if entry["resnet50_img_s"] is not None:
        kind: Kind = entry["kind"]
        return exactly(entry["resnet50_img_s"], entry["source"], kind)
    rule, bandwidth = table.document["bandwidth_rule"], entry["bandwidth_gb_s"]
    point, low, high = (bandwidth * rule[part] for part in ("img_s_per_gb_s", "low", "high"))
    # MLPerf's figure is for MXNet, tuned for months: PyTorch stays below it.
    high = max(point, min(high, entry.get("mlperf_img_s", high)))
    words = table.source("estimated_throughput")["source"]
    return Estimate(point, low, high, "estimated", f"{gpu}, {bandwidth:,} GB/s: {words}")


def one_gpu_rate(job: Job, instance: Instance, table: PriceTable) -> Estimate:
    """Return the rate of one GPU of an instance that never waits. Raises `UsageError` where neither rate nor model is known."""
    if job.gpu_img_s is not None:
        return job.gpu_img_s
    if job.model is not None:
        return gpu_rate(job.model, instance.gpu, table)
    raise UsageError(
        "neither the rate nor the model is known", hint="--model NAME, or --img-s RATE, or --gpu-img-s RATE of one GPU"
    )


def _gpu(job: Job, instance: Instance, table: PriceTable) -> Floor:
    one = one_gpu_rate(job, instance, table)
    if instance.gpus == 1:
        return Floor("gpu", one, f"1 × {instance.gpu} at {one.point:,.0f} img/s")
    point, low, high = _scaling(instance, table)
    whole = one.times(instance.gpus * point, instance.gpus * low, instance.gpus * high, source="scaling over GPUs estimated")
    together = f"each at {percent_text(point)} when they work together"
    return Floor("gpu", whole, f"{instance.gpus} × {instance.gpu} at {one.point:,.0f} img/s, {together}")


def _scaling(instance: Instance, table: PriceTable) -> tuple[float, float, float]:
    """Return the share of one GPU's rate that each of several reaches: as published for eight, else SCALING."""
    entry = table.document["gpus"][instance.gpu]
    if instance.gpus == 8 and entry.get("eight"):
        share = entry["eight"] / (8 * entry["resnet50_img_s"])
        return share, share, SCALING[2]
    return SCALING


def cpu_rate(job: Job, table: PriceTable) -> tuple[Estimate, str | None]:
    """Return the loader's rate per vCPU in img/s, and the processor that it was measured on (None: unknown)."""
    if job.img_s_per_core is not None:
        return job.img_s_per_core, job.measured_cpu
    try:
        entry = table.document["loaders"][job.loader]
    except KeyError:
        raise UsageError(f"there is no loader {job.loader!r}", hint=f"known: {', '.join(LOADERS)}") from None
    if job.augmentation is None:
        return exactly(entry["img_s_per_vcpu"], entry["source"], entry["kind"]), entry["cpu"]
    loads = table.document["augmentation"]
    try:
        rate: float = loads["img_s_per_vcpu"][job.augmentation][job.loader]
    except KeyError:
        raise UsageError(
            f"there is no augmentation load {job.augmentation!r} in the table",
            hint=f"known: {', '.join(loads['img_s_per_vcpu'])}; or CPU milliseconds an image, or a session folder",
        ) from None
    return exactly(rate, loads["source"], loads["kind"]), loads["cpu"]


def cpu_ratio(measured: str | None, cpu: str, table: PriceTable, *, assumed: bool = False) -> Estimate:
    """Return the speed of a vCPU of `cpu` divided by that of a vCPU of `measured`, by the table's independent benchmark.

    `assumed`: nobody measured this processor in the instance in question, which widens the interval.
    """
    source = table.source("cpu")["source"]
    if measured is None:
        return Estimate(
            1.0, 1 / UNKNOWN_CPU_SPREAD, UNKNOWN_CPU_SPREAD, "estimated", "processor of the measurement not in the table"
        )
    if measured == cpu and not assumed:
        return exactly(1.0, "the same processor", "measured")
    ratio = table.cpu_score(cpu) / table.cpu_score(measured)
    spread = ASSUMED_CPU_SPREAD if assumed else CPU_SPREAD
    return Estimate(ratio, ratio / spread, ratio * spread, "estimated", source)


def _cpu(job: Job, instance: Instance, table: PriceTable) -> Floor:
    rate, measured = cpu_rate(job, table)
    ratio = cpu_ratio(measured, instance.cpu, table, assumed=instance.cpu_assumed)
    whole = rate.times(
        instance.vcpus * ratio.point, instance.vcpus * ratio.low, instance.vcpus * ratio.high, source=ratio.source
    )
    words = f"{instance.vcpus} vCPUs × {rate.point:,.0f} img/s ({number_text(1000 / rate.point)} CPU ms an image)"
    if ratio.point != 1:
        words += f" × {ratio.point:.2f} ({instance.cpu} against {measured})"
    return Floor("cpu", whole, words)


def _input(job: Job, instance: Instance, table: PriceTable) -> list[Floor]:
    """Return the floors of network, requests and disk, as far as the input mode uses them and sizes are known."""
    size = job.image_bytes
    found: list[Floor] = []
    if size is not None and job.input_mode in REMOTE and instance.network_gbit_s is not None:
        nominal = exactly(instance.network_gbit_s * 1e9 / 8 / size, "network bandwidth of the instance type", "published")
        found.append(
            Floor(
                "network", nominal.times(*NETWORK_SHARE), f"{instance.network_gbit_s:g} Gbit/s ÷ {size / 1000:,.0f} kB an image"
            )
        )
    if job.input_mode in ("fastfile", "stream"):
        found.append(_requests(job, object_count(job).point, instance, table))
    from_volume = job.input_mode in ("local", "file") and not instance.nvme_gb
    if size is not None and from_volume and (job.dataset_bytes or 0.0) > CACHE_SHARE * instance.memory_gib * 2**30:
        disk = table.document["storage"]["gp3_mb_s"]
        rate = exactly(disk["value"] * 1e6 / size, disk["source"], "published")
        found.append(Floor("disk", rate, f"{disk['value']} MB/s of gp3 ÷ {size / 1000:,.0f} kB an image"))
    return found


def _requests(job: Job, objects: float, instance: Instance, table: PriceTable) -> Floor:
    """Return the floor of the requests: each waits for its first byte, and S3 limits their number."""
    limit, wait = (table.document["storage"][name] for name in ("s3_get_per_s_per_prefix", "first_byte_s"))
    in_flight = STREAM_REQUESTS if job.input_mode == "stream" else instance.vcpus
    images_each = job.images / objects
    point, low, high = (
        min(limit["value"], in_flight / seconds) * images_each for seconds in (wait["value"], wait["high"], wait["low"])
    )
    words = (
        f"{in_flight} requests at a time, {wait['value'] * 1000:.0f} ms to the first byte, "
        f"{number_text(images_each)} images an object"
    )
    return Floor("requests", Estimate(point, low, high, "estimated", f"{wait['source']}; {limit['source']}"), words)
