"""The verdict kinds: the closed list of causes, with everything in the package that depends on a kind.

To add a kind, add one record to `_VERDICTS` and write its rule in `headrace.diagnosis.rules`. The report, the JSON schema,
the advice, the colours and the choice of fixes all read the record. docs/reference/diagnosis.md lists the kinds in a table.

The rules are in `headrace.diagnosis.rules`: `input` (storage, network, CPU_*, NO_OVERLAP, COLLATE_IPC, and of `next()` itself
IN_NEXT, GIL_HELD, NEW_ITERATORS), `gpu` (COMPUTE_BOUND, H2D_BOUND, OVERHEAD_BOUND, SYNC_BOUND), `pauses` (STARTUP,
PERIODIC_STALL, SCRIPT_BOUND, GC_PAUSE), `ranks` (RANK_STRAGGLER, COMMUNICATION) and `machine` (THERMAL_THROTTLE, EXTERNAL_CPU,
CPU_QUOTA, MEMORY_GROWTH, and CPU_OVERSUBSCRIBED for the training process). `standstill` finds HANG.
`headrace.diagnosis.diagnose` gives INSUFFICIENT_DATA, `headrace.diagnosis.findings.gpu_settings` the settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["KINDS", "SETTINGS", "SettingKind", "VerdictKind", "verdict_kind"]


@dataclass(frozen=True, slots=True)
class VerdictKind:
    """One cause that sets the pace of a step.

    name: as in the JSON of `headrace diagnose`.
    summary: the cause in a clause that follows a colon.
    headline: one sentence for the top of the report. `{Device}` becomes "The GPU" or "The training", `{share}` becomes
        " 60 % of the time" or nothing, `{summary}` the diagnosis's own summary.
    label: a few words for a table cell.
    advice: what to do when no fix of this kind can be predicted.
    without_fix: replaces the table of fixes when it is empty; by default `advice`.
    fixes: names in `headrace.diagnosis.fixes.registry.FIXES` of the fixes that are offered for this kind.
        Fixes with equal gains keep this order.
    is_input: whether training waits for batches.
    is_step_term: whether the kind is one of the terms that the step model compares. The confidence of such a verdict falls
        when the model misses the measured step.
    is_blocked: whether the wait counts as storage when the making of batches was not timed.
    is_loss: whether the share of the finding is time lost.
    severity: "none" for a healthy job, which the report colours blue instead of orange.
    """

    name: str
    summary: str
    headline: str
    label: str
    advice: str | None = None
    without_fix: str | None = None
    fixes: tuple[str, ...] = ()
    is_input: bool = False
    is_step_term: bool = False
    is_blocked: bool = False
    is_loss: bool = True
    severity: Literal["none", "problem"] = "problem"


@dataclass(frozen=True, slots=True)
class SettingKind:
    """One setting that costs speed whatever the verdict is, or learns nothing. `Diagnosis.configuration` holds them."""

    name: str
    summary: str
    fixes: tuple[str, ...] = ()


BLINDLY = ("num_workers",)
"""The fixes of a wait whose cause was not seen: no pack and no cache, which only help where files are read."""

WHERE_REFUSED = ("pack",)
"""The fixes of a store that refuses requests: fewer, larger ones."""

_CPU_FIXES = ("num_workers", "headrace_run", "pre_resize", "gpu_decode")

_VERDICTS = (
    VerdictKind(
        "COMPUTE_BOUND",
        summary="the model's own computation sets the pace; the input keeps up",
        headline="{Device} is kept busy. The input keeps up.",
        label="compute",
        without_fix="Nothing on the input side would make this run faster.",
        fixes=("num_workers", "amp", "channels_last", "compile"),
        is_step_term=True,
        is_loss=False,
        severity="none",
    ),
    VerdictKind(
        "STORAGE_LATENCY",
        summary="workers wait for storage, one read at a time; more reads in flight would help",
        headline="{Device} waits{share} for storage to answer.",
        label="storage latency",
        advice="Read more files at a time (worker processes or threads), or pack them into shards (headrace pack).",
        fixes=("num_workers", "pack", "cache"),
        is_input=True,
        is_step_term=True,
        is_blocked=True,
    ),
    VerdictKind(
        "STORAGE_BANDWIDTH",
        summary="storage delivers all it can; more workers would not help",
        headline="{Device} waits{share} for storage that already gives all it can.",
        label="storage bandwidth",
        fixes=("num_workers", "cache", "pre_resize"),
        is_input=True,
        is_step_term=True,
        is_blocked=True,
    ),
    VerdictKind(
        "NETWORK",
        summary="workers wait for bytes from the network",
        headline="{Device} waits{share} for bytes from the network.",
        label="network",
        fixes=("num_workers", "pack", "cache"),
        is_input=True,
        is_step_term=True,
        is_blocked=True,
    ),
    VerdictKind(
        "LOCK_WAIT",
        summary="workers wait for one another at a lock that they share, so batches are made one at a time",
        headline="{Device} waits{share} for workers that wait for one another at a lock.",
        label="a lock of the workers",
        advice="Hold the lock for less, or give each worker a file, a connection or a copy of its own.",
        is_input=True,
        is_step_term=True,
    ),
    VerdictKind(
        "CPU_PREP",
        summary="decoding and augmenting take longer than the step, and cores are free for more workers",
        headline="{Device} waits{share} for images to be prepared, while CPU cores are free.",
        label="CPU work",
        advice="Make batches in worker processes (DataLoader with num_workers), or with headrace.Loader.",
        fixes=_CPU_FIXES,
        is_input=True,
        is_step_term=True,
    ),
    VerdictKind(
        "CPU_SATURATED",
        summary="decoding and augmenting use every core there is; more workers would not help",
        headline="{Device} waits{share} for images, and every CPU core is already busy.",
        label="all CPU cores",
        advice="Use less CPU for each image: shrink the images once (headrace pack), or use headrace.Loader.",
        fixes=_CPU_FIXES,
        is_input=True,
        is_step_term=True,
    ),
    VerdictKind(
        "CPU_UNEVEN",
        summary="some cores are full while others idle",
        headline="{Device} waits{share} for images: some cores are full while others idle.",
        label="uneven cores",
        advice="Find what binds the workers to few cores: sched_setaffinity, taskset, OMP_PROC_BIND or KMP_AFFINITY.",
        fixes=("spread_workers",),
        is_input=True,
    ),
    VerdictKind(
        "CPU_OVERSUBSCRIBED",
        summary="more busy threads than cores: they spend their time waiting for one another",
        headline="Too many threads share too few cores.",
        label="too many threads",
        fixes=("num_workers", "threads", "headrace_run"),
        is_input=True,
    ),
    VerdictKind(
        "NO_OVERLAP",
        summary="batches are made in the training process, so nothing overlaps",
        headline="{Device} stands still{share} while the next batch is made.",
        label="no overlap",
        advice="Make batches ahead, in worker processes (DataLoader with num_workers), or with headrace.Loader.",
        fixes=_CPU_FIXES,
        is_input=True,
    ),
    VerdictKind(
        "COLLATE_IPC",
        summary="putting batches together and moving them between processes takes the time",
        headline="{Device} waits{share} while batches are put together and handed over.",
        label="collate and transport",
        fixes=("uint8_batches", "headrace_run", "num_workers"),
        is_input=True,
        is_step_term=True,
    ),
    VerdictKind(
        "IN_NEXT",
        summary="next() takes long in the training process itself, where no worker helps",
        headline="{summary}.",
        label="inside next()",
        advice="Look at the function named above: it runs in the training process for each batch.",
        fixes=("shorter_next",),
        is_input=True,
        is_step_term=True,
    ),
    VerdictKind(
        "GIL_HELD",
        summary="another thread of the training process holds Python's lock (GIL), which next() needs",
        headline="{summary}.",
        label="Python's lock held",
        advice="Move that thread's work to a process of its own (multiprocessing), or into code that releases the lock.",
        fixes=("own_process",),
        is_input=True,
        is_step_term=True,
    ),
    VerdictKind(
        "GIL_IN_STEP",
        summary="another thread of the training process holds Python's lock (GIL), which the training step needs",
        headline="{summary}.",
        label="Python's lock held",
        advice="Move that thread's work to a process of its own (multiprocessing), or into code that releases the lock.",
        fixes=("own_process",),
    ),
    VerdictKind(
        "NEW_ITERATORS",
        summary="the script makes a new iterator of its loader for each batch, or for a few",
        headline="{summary}.",
        label="new iterators",
        fixes=("keep_iterator",),
        is_input=True,
        is_step_term=True,
    ),
    VerdictKind(
        "H2D_BOUND",
        summary="copying batches to the GPU takes the time",
        headline="{Device} waits for batches to be copied to it.",
        label="copy to the GPU",
        fixes=("pin_memory", "uint8_batches"),
    ),
    VerdictKind(
        "OVERHEAD_BOUND",
        summary="Python and kernel launches take longer than the computation; the batch is small",
        headline="The batch is too small: Python takes longer than the computation.",
        label="Python overhead",
        fixes=("batch_size", "compile"),
    ),
    VerdictKind(
        "SYNC_BOUND",
        summary="the script waits for the device again and again (.item(), .cpu()), so nothing overlaps",
        headline="The script stops for the device again and again.",
        label="device waits",
        advice="Read results (.item(), .cpu(), print) every few dozen steps only.",
        fixes=("remove_sync",),
    ),
    VerdictKind(
        "STARTUP",
        summary="much of the time goes before the first step, or at the start of each epoch",
        headline="Much of the time goes before training starts, or before each of its epochs.",
        label="start-up",
        advice="See below which part of the start takes the time, and keep on disk what the next run can use again.",
        fixes=("persistent_workers", "cache", "compile"),
    ),
    VerdictKind(
        "PERIODIC_STALL",
        summary="the step pauses at regular intervals (checkpoint, validation)",
        headline="Training pauses at regular intervals.",
        label="pauses",
        advice="Validate and save less often or beside the training; let the validation loader keep its workers.",
        fixes=("async_checkpoint", "dynamic_shapes"),
    ),
    VerdictKind(
        "GROWING_STEP",
        summary="a step takes longer and longer while the batches stay as large as they were",
        headline="{summary}.",
        label="growing step",
        advice=(
            "Look for what is kept from step to step and read whole: a loss or a state without .detach(), a list, a cache, a "
            "bank of features, hooks that are added again."
        ),
    ),
    VerdictKind(
        "SCRIPT_BOUND",
        summary="functions of the script beside forward, backward and the optimizer's step take the time",
        headline="{summary}.",
        label="the script's own functions",
        advice="Logs, pictures and metrics need not be made in each step, or a thread makes them; a loss must be faster.",
        fixes=("less_often",),
    ),
    VerdictKind(
        "GC_PAUSE",
        summary="Python's garbage collector stops the training process",
        headline="Python's garbage collector keeps stopping the training.",
        label="garbage collection",
        fixes=("remove_gc_collect", "gc_freeze"),
    ),
    VerdictKind(
        "RANK_STRAGGLER",
        summary="one rank is slower, and all others wait for it",
        headline="One rank is slower, and all others wait for it.",
        label="slow rank",
        advice="Compare that rank with the others: its data and files, its GPU, other programs on its machine.",
    ),
    VerdictKind(
        "COMMUNICATION",
        summary="exchanging gradients between ranks takes the time",
        headline="Exchanging gradients takes the time.",
        label="gradient exchange",
        advice=(
            "Exchange less often (no_sync() and gradient accumulation, larger batches) or fewer bytes "
            "(DDP's bf16_compress_hook)."
        ),
    ),
    VerdictKind(
        "THERMAL_THROTTLE",
        summary="the GPU lowers its clock (heat or power)",
        headline="{Device} has lowered its clock.",
        label="lowered clock",
        advice="See nvidia-smi -q -d PERFORMANCE: cooling, the power limit (nvidia-smi -pl), or another machine.",
    ),
    VerdictKind(
        "EXTERNAL_CPU",
        summary="other programs on this machine take the CPU",
        headline="Other programs on this machine take the CPU.",
        label="other programs",
        advice="Give the job cores of its own (taskset, a cpuset), or run it where nothing else does.",
        fixes=("headrace_run",),
    ),
    VerdictKind(
        "CPU_QUOTA",
        summary="the container's CPU quota stops the processes",
        headline="The container's CPU quota holds the training back.",
        label="CPU quota",
        advice="Raise the container's CPU limit (docker run --cpus, limits.cpu in Kubernetes), or use less CPU per image.",
    ),
    VerdictKind(
        "MEMORY_GROWTH",
        summary="memory grows step by step and will run out",
        headline="Memory grows step by step and will run out.",
        label="memory growth",
        advice=(
            "Keep numbers of past steps, not tensors (loss.item(), .detach()); look for lists and caches that grow; keep what "
            "workers read in arrays, not in lists of Python objects."
        ),
        is_loss=False,
    ),
    VerdictKind(
        "HANG",
        summary="no training step comes any more: a worker, a rank or the training thread waits for ever",
        headline="{summary}.",
        label="standstill",
        without_fix="No fix of the steps before makes the next one come: look at the place named above.",
    ),
    VerdictKind(
        "INSUFFICIENT_DATA",
        summary="too little was seen for a verdict",
        headline="Too little was seen for a verdict.",
        label="too little data",
        without_fix=(
            "No fix can be named from so little. Three timed steps give a provisional verdict, "
            "twenty after the start a settled one."
        ),
    ),
)

KINDS: Mapping[str, VerdictKind] = {kind.name: kind for kind in _VERDICTS}
"""All verdict kinds by name, in the order of the table in docs/reference/diagnosis.md."""

_SETTINGS = (
    SettingKind(
        "FP32_ON_TENSOR_CORES",
        summary="the GPU has tensor cores for smaller number formats, and the model computes in float32",
        fixes=("amp",),
    ),
    SettingKind("CHANNELS_FIRST", summary="convolutions run in channels-first memory", fixes=("channels_last",)),
    SettingKind(
        "NOT_PINNED", summary="batches are copied to the GPU from ordinary, not from pinned memory", fixes=("pin_memory",)
    ),
    SettingKind("ANOMALY_MODE", summary="autograd looks for anomalies in each step", fixes=("anomaly_off",)),
    SettingKind("PROFILER_ON", summary="a profiler was left on", fixes=("profiler_off",)),
    SettingKind("DENORMALS", summary="the CPU computes with denormal numbers, which are slow", fixes=("flush_denormal",)),
    SettingKind("RECOMPILATION", summary="torch.compile compiles again for each new shape", fixes=("dynamic_shapes",)),
    SettingKind("DETERMINISTIC", summary="deterministic algorithms are on", fixes=("deterministic_off",)),
    SettingKind("FIND_UNUSED", summary="each step looks for unused parameters", fixes=("find_unused_off",)),
    SettingKind("NO_LEARNING", summary="the learning rate is near 0"),
    SettingKind("SLOW_FORMAT", summary="the CPU computes slowly in autocast's number format", fixes=("autocast_off",)),
    SettingKind("DATA_PARALLEL", summary="one process drives several GPUs (nn.DataParallel)", fixes=("more_gpus",)),
    SettingKind("SMALL_BATCH", summary="most of the GPU's memory is free: a larger batch would fit", fixes=("batch_size",)),
    SettingKind("OLD_SOFTWARE", summary="cuDNN or PyTorch is older than this GPU"),
    SettingKind("DRIVER_MISMATCH", summary="the driver is older than the CUDA that PyTorch is built for"),
)

SETTINGS: Mapping[str, SettingKind] = {kind.name: kind for kind in _SETTINGS}
"""All kinds of findings about settings, by name."""


def verdict_kind(name: str, *, cause_seen: bool = True) -> VerdictKind:
    """Return the record of a kind. For a name that this version does not know, return one that shows the name in words.

    `cause_seen`: False returns the words for a wait in which no file or socket was read, and for a GPU that idles beside a
    training process that only computes (`Finding.cause_seen`).
    """
    words = name.replace("_", " ")
    if not cause_seen and name == "COMPUTE_BOUND":
        return replace(KINDS[name], headline="{summary}.", severity="problem")
    if not cause_seen and name in KINDS and KINDS[name].is_blocked:
        return replace(
            KINDS[name],
            summary="making batches is blocked, cause not seen: no file or socket was read meanwhile",
            headline="{Device} waits{share} for batches whose making is blocked, cause not seen.",
            label="blocked, cause not seen",
            advice="Find what the source waits for (a lock, a sleep, another process).",
            fixes=BLINDLY,
        )
    return KINDS.get(name) or VerdictKind(name, summary="", headline=words.capitalize() + ".", label=words.lower())
