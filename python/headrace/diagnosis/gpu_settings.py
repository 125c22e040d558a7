"""Settings that cost a job on a GPU speed whatever its verdict is: each a finding of its own list, with its fix.

They need no timing, only what the training process said of itself (`attach.configuration`) and what NVML said. Where
something was not seen, the rule abstains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.diagnosis.fixes import bigger_batch, pin_memory, unpredicted
from headrace.diagnosis.job import MeasuredJob
from headrace.diagnosis.kinds import SETTINGS
from headrace.diagnosis.model import Finding, Fix
from headrace.diagnosis.rules.input import INPUT_SHARE

__all__ = ["find_gpu_settings"]

TENSOR_CORES = (7, 0)
"""Compute capability from which NVIDIA GPUs have them (Volta)."""

PINNING_SHARE = 0.02
"""Of the step, in copies to the GPU: below it, pinning cannot matter."""

FREE_MEMORY_SHARE = 0.60
LEAST_CUDNN: Mapping[int, int] = {8: 8000, 9: 8900, 10: 90500, 12: 90700}
"""Major compute capability: first cuDNN with kernels made for it (its release notes): 8.0, 8.9, 9.5, 9.7."""


def find_gpu_settings(job: MeasuredJob) -> tuple[Finding, ...]:
    """All that apply, in a fixed order. Empty where the job runs on no GPU, or was not looked at."""
    facts: Mapping[str, Any] = job.session.facts.get("configuration") or {}
    if facts.get("device") != "cuda":
        return ()
    rules = (_number_format, _memory_format, _pinning, _data_parallel, _batch_size, _cudnn, _driver)
    return tuple(found for rule in rules if (found := rule(job, facts)) is not None)


def _found(kind: str, evidence: str, *fixes: Fix) -> Finding:
    return Finding(kind, None, (evidence,), fixes, summary=SETTINGS[kind].summary)


def _capability(facts: Mapping[str, Any]) -> tuple[int, int]:
    major, minor = facts.get("capability") or (0, 0)
    return int(major), int(minor)


def _number_format(job: MeasuredJob, facts: Mapping[str, Any]) -> Finding | None:
    """A compiled model may enter autocast where it is not seen."""
    capability = _capability(facts)
    if facts.get("parameter_format") != "float32" or facts.get("autocast") or facts.get("compiled"):
        return None
    if capability < TENSOR_CORES:
        return None
    tf32 = ", matrix products included" if facts.get("matmul_precision") != "highest" else ", matrix products not"
    own = f"; convolutions may use TF32{tf32}" if capability >= (8, 0) else ""
    return _found(
        "FP32_ON_TENSOR_CORES", f"parameters are float32 and no autocast region was entered{own}", *unpredicted(job, "amp")
    )


def _memory_format(job: MeasuredJob, facts: Mapping[str, Any]) -> Finding | None:
    count, last = facts.get("convolutions") or 0, facts.get("channels_last") or 0
    low = facts.get("autocast") or facts.get("parameter_format") in ("float16", "bfloat16")
    if not low or count == 0 or last > 0 or _capability(facts) < TENSOR_CORES:
        return None
    words = f"none of {count} convolutions has channels-last weights, so cuDNN reorders their inputs"
    return _found("CHANNELS_FIRST", words, *unpredicted(job, "channels_last"))


def _pinning(job: MeasuredJob, facts: Mapping[str, Any]) -> Finding | None:
    copied = job.rank.h2d_s
    if job.rank.loader.pin_memory or job.rank.loader.family != "torch" or copied is None:
        return None
    if job.share(copied) < PINNING_SHARE:
        return None
    words = f"pin_memory=False, and copies to the GPU take {copied * 1e3:.3g} ms of each {job.rank.step_s * 1e3:.3g} ms step"
    return _found("NOT_PINNED", words, *pin_memory(job))


def _data_parallel(job: MeasuredJob, facts: Mapping[str, Any]) -> Finding | None:
    gpus = facts.get("data_parallel") or 0
    if gpus < 2:
        return None
    fix = Fix(
        "more_gpus",
        f"one process per GPU (DistributedDataParallel) instead of one for all {gpus}",
        command=f"torchrun --nproc-per-node {gpus} " + " ".join(job.session.command[1:]),
        basis="not predicted: it was not tried",
        effort="a few lines",
    )
    return _found(
        "DATA_PARALLEL", f"nn.DataParallel copies the model to {gpus} GPUs and back in every step, in one process", fix
    )


def _batch_size(job: MeasuredJob, facts: Mapping[str, Any]) -> Finding | None:
    total = {gpu.index: gpu.memory_bytes for gpu in job.session.host.gpus}
    used = [
        gpu.memory_used_bytes / size
        for sample in job.session.samples
        for gpu in sample.gpus
        if gpu.memory_used_bytes is not None and (size := total.get(gpu.index))
    ]
    if not used or 1 - max(used) < FREE_MEMORY_SHARE or job.share(job.rank.exposed_wait_s) >= INPUT_SHARE:
        return None
    if job.machine.gpu_busy is None or job.rank.items is None:
        return None
    words = f"{1 - max(used):.0%} of the GPU's memory is never used; a batch has {job.rank.items:.0f} images"
    return _found("SMALL_BATCH", words, *bigger_batch(job))


def _cudnn(job: MeasuredJob, facts: Mapping[str, Any]) -> Finding | None:
    major, minor = _capability(facts)
    version, architectures = facts.get("cudnn"), facts.get("architectures") or []
    if version and version < LEAST_CUDNN.get(major, 0):
        return _found(
            "OLD_SOFTWARE", f"cuDNN {_cudnn_words(version)} has no kernels made for a GPU of capability {major}.{minor}"
        )
    runs = [int(name[3:].rstrip("af")) for name in architectures if name.startswith("sm_") and name[3:].rstrip("af").isdigit()]
    if runs and not any(10 * major <= number <= 10 * major + minor for number in runs):
        words = (
            f"torch carries code for {' '.join(architectures)}, none for sm_{major}{minor}: kernels are compiled at each start"
        )
        return _found("OLD_SOFTWARE", words)
    return None


def _cudnn_words(version: int) -> str:
    """9.1.0 is 90100, 8.9.7 is 8907."""
    return f"{version // 10000}.{version // 100 % 100}" if version >= 90000 else f"{version // 1000}.{version // 100 % 10}"


def _driver(job: MeasuredJob, facts: Mapping[str, Any]) -> Finding | None:
    driver = next((gpu.cuda for gpu in job.session.host.gpus if gpu.cuda), None)
    built = facts.get("cuda")
    if driver is None or not built or _version(built) <= _version(driver):
        return None
    return _found(
        "DRIVER_MISMATCH", f"torch is built for CUDA {built}, the driver offers {driver}: features of the newer one are off"
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
