"""How the report says verdicts, causes and numbers: short sentences for people, the same in terminal and HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

__all__ = [
    "ADVICE",
    "HEADLINES",
    "NEXT_LIMITS",
    "NOT_MEASURED",
    "SHORT_PARTS",
    "bytes_words",
    "count",
    "gain",
    "hours",
    "image_rate",
    "kind_words",
    "milliseconds",
    "percent",
    "rounded_to_whole",
    "seconds",
]

NOT_MEASURED = "not measured"

HEADLINES: Mapping[str, str] = {
    "COMPUTE_BOUND": "{Device} is kept busy. The input keeps up.",
    "STORAGE_LATENCY": "{Device} waits{share} for storage to answer.",
    "STORAGE_BANDWIDTH": "{Device} waits{share} for storage that already gives all it can.",
    "NETWORK": "{Device} waits{share} for bytes from the network.",
    "CPU_PREP": "{Device} waits{share} for images to be prepared, while CPU cores are free.",
    "CPU_SATURATED": "{Device} waits{share} for images, and every CPU core is already busy.",
    "CPU_UNEVEN": "{Device} waits{share} for images: some cores are full while others idle.",
    "CPU_OVERSUBSCRIBED": "Too many threads share too few cores.",
    "NO_OVERLAP": "{Device} stands still{share} while the next batch is made.",
    "COLLATE_IPC": "{Device} waits{share} while batches are put together and handed over.",
    "H2D_BOUND": "{Device} waits for batches to be copied to it.",
    "OVERHEAD_BOUND": "The batch is too small: Python takes longer than the computation.",
    "SYNC_BOUND": "The script stops for the device again and again.",
    "STARTUP": "Much of the time goes before training starts, or before each of its epochs.",
    "PERIODIC_STALL": "Training pauses at regular intervals.",
    "GC_PAUSE": "Python's garbage collector keeps stopping the training.",
    "RANK_STRAGGLER": "One rank is slower, and all others wait for it.",
    "COMMUNICATION": "Exchanging gradients takes the time.",
    "THERMAL_THROTTLE": "{Device} has lowered its clock.",
    "EXTERNAL_CPU": "Other programs on this machine take the CPU.",
    "CPU_QUOTA": "The container's CPU quota holds the training back.",
    "MEMORY_GROWTH": "Memory grows step by step and will run out.",
    "INSUFFICIENT_DATA": "Too little was seen to say anything.",
}
"""One sentence per verdict. {Device}: the GPU, or the training where there is none; {share}: ` 60 % of the time`."""

ADVICE: Mapping[str, str] = {
    "CPU_QUOTA": "Raise the container's CPU limit (docker run --cpus, limits.cpu in Kubernetes), or need less CPU per image.",
    "EXTERNAL_CPU": "Give the job cores of its own (taskset, a cpuset), or run it where nothing else does.",
    "THERMAL_THROTTLE": "See nvidia-smi -q -d PERFORMANCE: cooling, the power limit (nvidia-smi -pl), or another machine.",
    "RANK_STRAGGLER": "See what is different on that rank: its data and files, its GPU, other programs on its machine.",
    "COMMUNICATION": (
        "Exchange less often (no_sync() and gradient accumulation, larger batches) or fewer bytes (DDP's bf16_compress_hook)."
    ),
    "MEMORY_GROWTH": "Keep numbers of past steps, not tensors (loss.item(), .detach()); look for lists and caches that grow.",
    "PERIODIC_STALL": "Validate and save less often or beside the training; let the validation loader keep its workers.",
    "STARTUP": "See below which part of the start takes the time; what can be kept from run to run, keep.",
    "NO_OVERLAP": "Make batches ahead, in worker processes (DataLoader with num_workers), or with headrace.Loader.",
    "CPU_PREP": "Make batches in worker processes (DataLoader with num_workers), or with headrace.Loader.",
    "CPU_SATURATED": "Need less CPU for each image: images made smaller once (headrace pack), or headrace.Loader.",
    "STORAGE_LATENCY": "Read more files at a time (worker processes or threads), or pack them into shards (headrace pack).",
    "CPU_UNEVEN": "See what binds the workers to few cores: sched_setaffinity, taskset, OMP_PROC_BIND or KMP_AFFINITY.",
    "SYNC_BOUND": "Read results (.item(), .cpu(), print) every few dozen steps only.",
}
"""What to do about a verdict for which no change of its own can be predicted."""

NEXT_LIMITS: Mapping[str, str] = {
    "COMPUTE_BOUND": "compute",
    "STORAGE_LATENCY": "storage latency",
    "STORAGE_BANDWIDTH": "storage bandwidth",
    "NETWORK": "network",
    "CPU_PREP": "CPU work",
    "CPU_SATURATED": "all CPU cores",
    "NO_OVERLAP": "no overlap",
    "COLLATE_IPC": "collate and transport",
    "H2D_BOUND": "copy to the GPU",
    "OVERHEAD_BOUND": "Python overhead",
    "SYNC_BOUND": "device waits",
    "COMMUNICATION": "gradient exchange",
}
"""What sets the pace after a fix, in the few words that a table cell holds."""

SHORT_PARTS: Mapping[str, str] = {
    "input_storage": "storage",
    "input_cpu": "decode + augment",
    "input_queue": "CPU queue",
    "input_collate": "collate + transport",
    "h2d": "copy to GPU",
    "compute": "compute",
    "communication": "gradients",
    "sync": "device waits",
    "periodic": "pauses",
    "other": "other",
}
"""Short names of the parts of a step (`headrace.diagnosis.model.SHARES` has the long ones)."""

BINARY_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def kind_words(kind: str) -> str:
    """A verdict or limit in a few words; unknown text is passed through."""
    return NEXT_LIMITS.get(kind, kind.replace("_", " ").lower() if kind.isupper() else kind)


def gain(ratio: float) -> str:
    """How much faster: +3 % for small gains, ×2.4 for large ones."""
    return f"×{ratio:.2g}" if ratio >= 1.195 else f"{100 * (ratio - 1):+.0f} %"


def hours(value: float) -> str:
    """Hours of a hundred: whole, and <1 for little that is not nothing."""
    return "<1" if 0 < value < 0.5 else f"{value:.0f}"


def count(value: float) -> str:
    """A count with thousands separators."""
    return f"{value:,.0f}"


def image_rate(value: float | None) -> str:
    """Images per second without the unit: three significant digits below 100, whole above."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(share: float | None, *, digits: int = 0) -> str:
    """A share of 1 in per cent; something small but not nothing is `<1 %`."""
    if share is None or not math.isfinite(share):
        return NOT_MEASURED
    least = 10.0**-digits
    if 0 < 100 * share < least / 2:
        return f"<{least:g} %"
    return f"{100 * share:.{digits}f} %"


def milliseconds(value_s: float | None, *, digits: int = 3) -> str:
    """A short duration in ms (s from 1 s on), with `digits` significant digits."""
    if value_s is None or not math.isfinite(value_s):
        return NOT_MEASURED
    if value_s >= 10:
        return seconds(value_s)
    if value_s >= 0.9995:
        return f"{value_s:.{digits}g} s"
    return f"{1000 * value_s:.0f} ms" if value_s >= 0.1 else f"{1000 * value_s:.{digits}g} ms"


def seconds(value_s: float | None) -> str:
    """A duration as 0.25 s, 7.4 s, 2 min 5 s or 3 h 20 min."""
    if value_s is None or not math.isfinite(value_s):
        return NOT_MEASURED
    if value_s < 10:
        return f"{value_s:.2g} s" if value_s < 1 else f"{value_s:.1f} s"
    whole = round(value_s)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def bytes_words(value: float | None) -> str:
    """An amount of memory in binary units."""
    if value is None:
        return NOT_MEASURED
    for size, unit in BINARY_UNITS:
        if value >= size:
            return f"{value / size:.{3 if value < 999.5 * size else 4}g} {unit}"
    return f"{value:.0f} B"


def rounded_to_whole(shares: Sequence[float], *, total: int = 100) -> list[int]:
    """Whole numbers in the proportion of `shares` that sum to exactly `total` (largest remainder method)."""
    whole = math.fsum(shares)
    if whole <= 0:
        return [0] * len(shares)
    exact = [total * share / whole for share in shares]
    floors = [math.floor(value) for value in exact]
    order = sorted(range(len(shares)), key=lambda index: floors[index] - exact[index])
    for index in order[: total - sum(floors)]:
        floors[index] += 1
    return floors
