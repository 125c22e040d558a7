"""What sets the pace of a training of which only curves of the machine are known.

That is a job that already ran, or one whose loader no hook knows (MXNet, JAX, a program in C++). Curves do not show steps, so a
wait is inferred, not timed. What two causes would look alike on the curves gets a low confidence, and the evidence names both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.diagnosis.measure.machine import WORKS, gpus_of_job
from headrace.diagnosis.measure.stats import mean, mean_of_known, percentile
from headrace.session.machine import Sample
from headrace.session.model import Session
from headrace.system.text.sizes import number_text, percent_text

__all__ = [
    "CPU_FULL",
    "CPU_LOW",
    "GPU_BUSY",
    "PREP_CORES",
    "CurveCause",
    "MeanUse",
    "cause_of",
    "use_words",
    "watched_cause",
    "watched_use",
]

GPU_BUSY = 0.80
"""Call a GPU low below this mean share of time with a kernel."""

CPU_FULL = 0.80
"""Call the CPU high above this mean share of all cores: the rest goes into moments in which cores wait for one another."""

CPU_LOW = 0.30
"""Call the CPU low below this mean share of all cores."""

PREP_CORES = 0.6
"""Cores that are busy beside those which drive the GPUs: from here on somebody makes batches, below it all wait."""

SEEN_IO_WAIT = 0.05
"""Name the disk as the cause when cores wait for it for this share of the time."""

SEEN_NETWORK_BYTES_S = 1e6
"""Name the network as the cause when so many bytes a second arrive: less does not feed a training."""

BUSY_IS_NOT_FULL = "busy means that some kernel ran, not that the GPU was full"

LEAST_WATCHED_S = 30.0
"""A mean over less time after the first work tells nothing."""

FOREIGN_SHARE = 0.2
"""Lower the confidence when other programs use this share of the cores: the CPU's curve is not the job's alone."""

QUEUE_SHARE = 0.3
"""Name these programs as the cause when the job's threads wait for a core for this share of their runnable time."""


@dataclass(frozen=True, slots=True)
class MeanUse:
    """Means over the time in which a job trained. Shares are 0 to 1; None: not measured.

    gpu, gpu_p5, gpu_p95: share of the time with a kernel, its mean over the GPUs at work and percentiles. cpu: of all cores.
    busy_cores: cores that were busy, beyond one for each GPU at work, whose driver waits on a core. io_wait: share in which
    cores or programs waited for a disk. network_bytes_s: that arrived. foreign_share: of the cores, used by other programs.
    queue_share: of the time in which the job's threads could run, without a core.
    """

    gpu: float | None = None
    gpu_p5: float | None = None
    gpu_p95: float | None = None
    cpu: float | None = None
    cores: float | None = None
    busy_cores: float | None = None
    io_wait: float | None = None
    network_bytes_s: float | None = None
    foreign_share: float | None = None
    queue_share: float | None = None


@dataclass(frozen=True, slots=True)
class CurveCause:
    """What set the pace, by the curves: a verdict kind, what speaks for it, how sure that is, and whether a cause was seen."""

    kind: str
    evidence: tuple[str, ...]
    confidence: float
    cause_seen: bool = True


def cause_of(use: MeanUse) -> CurveCause | None:
    """Return what set the pace of a training on a GPU, or None where the curves cannot tell. The first that holds decides:

    - COMPUTE_BOUND: the GPU is busy.
    - CPU_SATURATED: all cores are.
    - CPU_PREP: some cores work beside those that drive the GPUs.
    - STORAGE_LATENCY, NETWORK: nothing is busy, so something waits.
    """
    if use.gpu is None:
        return None
    if use.gpu >= GPU_BUSY:
        return CurveCause("COMPUTE_BOUND", (BUSY_IS_NOT_FULL,), 0.65 if use.gpu >= GPU_BUSY + 0.05 else 0.5)
    if use.cpu is None:
        return None
    if use.cpu >= CPU_FULL:
        return CurveCause("CPU_SATURATED", (), 0.65)
    if use.busy_cores is None:
        return None
    if use.busy_cores >= PREP_CORES:
        words = f"{use.busy_cores:.1f} cores worked beside those that drive the GPUs, and the others were free"
        if use.cpu >= CPU_LOW:
            return CurveCause("CPU_PREP", (words,), 0.55)
        alike = "few workers that wait for storage, or Python between the steps, would look alike"
        return CurveCause("CPU_PREP", (words, alike), 0.4)
    return _waiting(use) or CurveCause(
        "STORAGE_LATENCY",
        ("nothing was busy, so something waits: for S3 or a file system, a lock, or another host",),
        0.35,
        cause_seen=False,
    )


def _waiting(use: MeanUse) -> CurveCause | None:
    """Return what a job waits for in which nothing is busy, as far as it was seen."""
    if use.io_wait is not None and use.io_wait >= SEEN_IO_WAIT:
        return CurveCause("STORAGE_LATENCY", (f"cores waited for a disk {percent_text(use.io_wait)} of the time",), 0.5)
    if use.network_bytes_s is not None and use.network_bytes_s >= SEEN_NETWORK_BYTES_S:
        return CurveCause("NETWORK", (f"{use.network_bytes_s / 1e6:,.0f} MB/s arrived over the network",), 0.4)
    return None


def use_words(use: MeanUse) -> list[str]:
    """Return what the curves show, in clauses."""
    found = []
    if use.gpu is not None:
        assert use.gpu_p5 is not None and use.gpu_p95 is not None
        spread = f"5th percentile {percent_text(use.gpu_p5)}, 95th {percent_text(use.gpu_p95)}"
        found.append(f"the GPU was busy {percent_text(use.gpu)} of the time ({spread})")
    if use.cpu is None:
        return [*found, "the use of the CPU was not measured"]
    return [*found, f"the CPU was busy {percent_text(use.cpu)}{f' of {number_text(use.cores)} cores' if use.cores else ''}"]


def watched_use(session: Session) -> MeanUse | None:
    """Return the mean use of the machine in a watched session since the GPU first worked; None for too short a time.

    Without a GPU at work, since the first sample: a program's start is not told from its training then.
    """
    at_work = gpus_of_job(session, session.samples)
    working = [
        place
        for place, sample in enumerate(session.samples)
        if any(gpu.index in at_work and (gpu.busy or 0.0) >= WORKS for gpu in sample.gpus)
    ]
    samples = session.samples[working[0] : working[-1] + 1] if working else session.samples
    if sum(sample.interval_s for sample in samples) < LEAST_WATCHED_S:
        return None
    gpu = [gpu.busy for sample in samples for gpu in sample.gpus if gpu.index in at_work and gpu.busy is not None]
    own, foreign = (mean_of_known(getattr(sample, name) for sample in samples) for name in ("own_cores", "foreign_cores"))
    cores, gpu_share = session.host.cores, mean(gpu)
    driving = (gpu_share or 0.0) * len(at_work)
    return MeanUse(
        gpu=gpu_share,
        gpu_p5=percentile(gpu, 0.05) if gpu else None,
        gpu_p95=percentile(gpu, 0.95) if gpu else None,
        cpu=None if own is None or not cores else min(1.0, own / cores),
        cores=cores,
        busy_cores=None if own is None else max(0.0, own - driving),
        io_wait=_of(samples, "pressure_io"),
        network_bytes_s=_of(samples, "network_receive_bytes_s"),
        foreign_share=None if foreign is None or not cores else min(1.0, foreign / cores),
        queue_share=_of(samples, "queue_share"),
    )


def _of(samples: Sequence[Sample], name: str) -> float | None:
    return mean_of_known(getattr(sample, name) for sample in samples)


def watched_cause(session: Session, use: MeanUse) -> CurveCause | None:
    """Return what sets the pace of a watched job whose loader is not known, or None where the curves cannot tell.

    On a machine without a GPU at work model and input share the cores: only a job that waits for a disk or the network is
    told, or for cores that other programs use.
    """
    is_shared = (use.foreign_share or 0.0) >= FOREIGN_SHARE
    if is_shared and (use.queue_share or 0.0) >= QUEUE_SHARE and (use.gpu or 0.0) < GPU_BUSY:
        words = f"the job's threads wait for a core {percent_text(use.queue_share or 0.0)} of the time in which they could run"
        others = f"other programs used {percent_text(use.foreign_share or 0.0)} of the cores"
        return CurveCause("EXTERNAL_CPU", (words, others), 0.5)
    if use.gpu is None:
        found = _waiting(use) if use.busy_cores is not None and use.busy_cores < PREP_CORES else None
    else:
        found = cause_of(use)
    if found is None:
        return None
    if not is_shared:
        return found
    words = f"other programs used {percent_text(use.foreign_share or 0.0)} of the cores"
    return CurveCause(found.kind, (*found.evidence, words), found.confidence - 0.1, found.cause_seen)
