"""The rules for settings that cost a job speed, on a GPU or on any device, whatever its verdict is.

They need no timing, only what the training process reported of its model and software (`attach.model_settings`) and NVML.
A rule returns its evidence, or None when the setting is as it should be or was not seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from headrace.diagnosis.fixes.registry import propose_fixes
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.result.kinds import SETTINGS
from headrace.diagnosis.result.model import Finding
from headrace.diagnosis.rules.finding import duration
from headrace.diagnosis.rules.input import INPUT_SHARE
from headrace.system.text.sizes import count_text, percent_text

__all__ = ["find_gpu_settings", "find_slow_settings"]

TENSOR_CORES = (7, 0)
"""Least compute capability of NVIDIA GPUs with tensor cores (Volta)."""

TF32 = (8, 0)
"""Least compute capability of NVIDIA GPUs that compute in TF32 (Ampere)."""

PINNING_SHARE = 0.02
"""Report unpinned batches when copies to the GPU take at least this share of the step."""

FREE_MEMORY_SHARE = 0.60
"""Report a small batch when at least this share of the GPU's memory is never used."""

LEAST_CUDNN: Mapping[int, int] = {8: 8000, 9: 8900, 10: 90500, 12: 90700}
"""The first cuDNN with kernels made for a major compute capability (its release notes): 8.0, 8.9, 9.5, 9.7."""

LEAST_RATE = 1e-8
"""Call a learning rate near 0 below this: a weight of 1 then changes by less than float32 resolves, in thousands of steps."""

LEAST_STEPS = 64
"""Ignore the learning rate and the profiler before this many steps: a warm-up begins near 0, and a short profile is meant."""

LEAST_SLOWER = 2.0
"""Report denormal numbers where a product with them takes at least this many times as long."""

RECOMPILED = 3
"""Report compilations in later steps from this many on: a last, smaller batch costs one or two."""

SIZES = re.compile(r"tensor '?([^' ]+)'? (?:size|stride) mismatch at index (\d+)\. expected (\d+), actual (\d+)")

Settings = Mapping[str, Any]


def find_gpu_settings(job: MeasuredJob) -> tuple[Finding, ...]:
    """Return all findings about settings, in a fixed order; none when the job runs on no GPU or did not report its settings."""
    if job.settings.get("device") != "cuda":
        return ()
    rules: tuple[tuple[str, Callable[[MeasuredJob, Settings], str | None]], ...] = (
        ("FP32_ON_TENSOR_CORES", _float32),
        ("CHANNELS_FIRST", _channels_first),
        ("NOT_PINNED", _not_pinned),
        ("DATA_PARALLEL", _data_parallel),
        ("SMALL_BATCH", _small_batch),
        ("OLD_SOFTWARE", _old_software),
        ("DRIVER_MISMATCH", _old_driver),
    )
    return tuple(_finding(job, kind, words) for kind, rule in rules if (words := rule(job, job.settings)) is not None)


def _finding(job: MeasuredJob, kind: str, evidence: str) -> Finding:
    fixes = tuple(propose_fixes(job, kind, SETTINGS[kind].fixes))
    return Finding(kind, None, (evidence,), fixes, summary=SETTINGS[kind].summary)


def _capability(settings: Settings) -> tuple[int, int]:
    major, minor = settings.get("capability") or (0, 0)
    return int(major), int(minor)


def _float32(job: MeasuredJob, settings: Settings) -> str | None:
    """Return the evidence if the model computes in float32; None for a compiled model, which may use autocast unseen."""
    capability = _capability(settings)
    if settings.get("parameter_format") != "float32" or settings.get("autocast") or settings.get("compiled"):
        return None
    if capability < TENSOR_CORES:
        return None
    matmul = "matrix products included" if settings.get("matmul_precision") != "highest" else "matrix products not"
    tf32 = f"; convolutions may use TF32, {matmul}" if capability >= TF32 else ""
    return f"parameters are float32 and no autocast region was entered{tf32}"


def _channels_first(job: MeasuredJob, settings: Settings) -> str | None:
    count, last = settings.get("convolutions") or 0, settings.get("channels_last") or 0
    is_half = settings.get("autocast") or settings.get("parameter_format") in ("float16", "bfloat16")
    if not is_half or count == 0 or last > 0 or _capability(settings) < TENSOR_CORES:
        return None
    return f"none of {count} convolutions has channels-last weights, so cuDNN reorders their inputs"


def _not_pinned(job: MeasuredJob, settings: Settings) -> str | None:
    copy_s, loader = job.rank.h2d_s, job.rank.loader
    if loader.pin_memory or loader.family != "torch" or copy_s is None or job.share(copy_s) < PINNING_SHARE:
        return None
    return f"pin_memory=False, and copies to the GPU take {copy_s * 1e3:.3g} ms of each {job.rank.step_s * 1e3:.3g} ms step"


def _data_parallel(job: MeasuredJob, settings: Settings) -> str | None:
    gpus = settings.get("data_parallel") or 0
    return f"nn.DataParallel copies the model to {gpus} GPUs and back in every step, in one process" if gpus >= 2 else None


def _small_batch(job: MeasuredJob, settings: Settings) -> str | None:
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
    return f"{percent_text(1 - max(used))} of the GPU's memory is never used; a batch has {job.rank.items:.0f} images"


def _old_software(job: MeasuredJob, settings: Settings) -> str | None:
    major, minor = _capability(settings)
    version, architectures = settings.get("cudnn"), settings.get("architectures") or []
    if version and version < LEAST_CUDNN.get(major, 0):
        return f"cuDNN {_cudnn_words(version)} has no kernels made for a GPU of capability {major}.{minor}"
    runs = [int(name[3:].rstrip("af")) for name in architectures if name.startswith("sm_") and name[3:].rstrip("af").isdigit()]
    if runs and not any(10 * major <= number <= 10 * major + minor for number in runs):
        built_for = " ".join(architectures)
        return f"torch carries code for {built_for}, none for sm_{major}{minor}: kernels are compiled at each start"
    return None


def _cudnn_words(version: int) -> str:
    """Return major and minor version of cuDNN's number: 90100 is 9.1, 8907 is 8.9."""
    return f"{version // 10000}.{version // 100 % 100}" if version >= 90000 else f"{version // 1000}.{version // 100 % 10}"


def _old_driver(job: MeasuredJob, settings: Settings) -> str | None:
    driver = next((gpu.cuda for gpu in job.session.host.gpus if gpu.cuda), None)
    built = settings.get("cuda")
    if driver is None or not built or _version(built) <= _version(driver):
        return None
    return f"torch is built for CUDA {built}, the driver offers {driver}: features of the newer one are off"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def find_slow_settings(job: MeasuredJob) -> tuple[Finding, ...]:
    """Return the findings about settings that cost time on any device, in a fixed order."""
    settings: Mapping[str, Any] = job.session.facts.get("slow_settings") or {}
    rules: tuple[tuple[str, Callable[[MeasuredJob, Mapping[str, Any]], str | None]], ...] = (
        ("ANOMALY_MODE", _anomaly),
        ("PROFILER_ON", _profiler),
        ("DENORMALS", _slow_denormals),
        ("RECOMPILATION", _recompilation),
        ("DETERMINISTIC", _deterministic),
        ("FIND_UNUSED", _find_unused),
        ("NO_LEARNING", _no_learning),
        ("SLOW_FORMAT", _slow_format),
    )
    found = []
    for kind, rule in rules:
        words = rule(job, settings)
        if words is not None:
            fixes = tuple(propose_fixes(job, kind, SETTINGS[kind].fixes))
            found.append(Finding(kind, _share(job, kind), (words,), fixes, summary=SETTINGS[kind].summary))
    return tuple(found)


def _share(job: MeasuredJob, kind: str) -> float | None:
    """Return the share of the step that a setting costs; None where nothing shows that."""
    seconds = job.traceback_s if kind == "ANOMALY_MODE" else job.recompile_s if kind == "RECOMPILATION" else 0.0
    return round(job.share(seconds), 4) if seconds else None


def _anomaly(job: MeasuredJob, settings: Mapping[str, Any]) -> str | None:
    if not settings.get("anomaly"):
        return None
    known = job.share(job.traceback_s)
    cost = f"; keeping the stack of each operation takes at least {percent_text(known)} of the step" if known > 0 else ""
    return f"torch.autograd.set_detect_anomaly(True) is on: each gradient is looked through for NaN{cost}"


def _profiler(job: MeasuredJob, settings: Mapping[str, Any]) -> str | None:
    if not settings.get("profiler") or settings.get("steps", 0) < LEAST_STEPS:
        return None
    return f"a profiler of PyTorch still records after {settings['steps']:,} steps: each operation is noted, and memory grows"


def _slow_denormals(job: MeasuredJob, settings: Mapping[str, Any]) -> str | None:
    found = settings.get("denormals")
    if not found or found["slower"] < LEAST_SLOWER:
        return None  # on many processors they cost nothing
    shares = ", ".join(
        f"{percent_text(share)} of the {kind}" for kind, share in found.items() if kind != "slower" and share > 0
    )
    return f"{shares} are denormal numbers (below 1.2e-38); a product with them takes {found['slower']:g} times as long here"


def _recompilation(job: MeasuredJob, settings: Mapping[str, Any]) -> str | None:
    events = job.recompilations
    if len(events) < RECOMPILED:
        return None
    total_s = sum(event.duration_s for event in events)
    words = f"torch.compile compiled again in {count_text(len(events), 'later step')}, {duration(total_s)} in all"
    sizes: dict[str, set[int]] = {}
    for match in (SIZES.search(event.detail or "") for event in events):
        if match:
            sizes.setdefault(f"dimension {match[2]} of {match[1]}", set()).update((int(match[3]), int(match[4])))
    shapes = "; ".join(f"{place} had sizes {', '.join(map(str, sorted(seen)[:6]))}" for place, seen in sizes.items())
    reason = next((event.detail for event in reversed(events) if event.detail), None)
    return f"{words}: {shapes or reason}" if shapes or reason else words


def _deterministic(job: MeasuredJob, settings: Mapping[str, Any]) -> str | None:
    if not settings.get("deterministic"):
        return None
    return "torch.use_deterministic_algorithms(True) is on: operations take slower kernels that give the same bits in each run"


def _find_unused(job: MeasuredJob, settings: Mapping[str, Any]) -> str | None:
    if not settings.get("find_unused_parameters"):
        return None
    unused = settings.get("without_gradient") or 0
    need = (
        "every parameter has a gradient, so nothing needs it"
        if not unused
        else f"{count_text(unused, 'parameter')} have no gradient"
    )
    return f"DistributedDataParallel walks the whole graph in each step (find_unused_parameters=True); {need}"


def _slow_format(job: MeasuredJob, settings: Mapping[str, Any]) -> str | None:
    name, slower = job.settings.get("autocast"), job.settings.get("autocast_slower")
    if not name or not slower or slower < LEAST_SLOWER:
        return None
    return (
        f"torch.autocast computes in {name} on the CPU: a product of matrices takes {slower:g} times as long here as in float32"
    )


def _no_learning(job: MeasuredJob, settings: Mapping[str, Any]) -> str | None:
    rate = settings.get("learning_rate")
    if rate is None or rate >= LEAST_RATE or settings.get("steps", 0) < LEAST_STEPS:
        return None
    return f"the largest learning rate is {rate:g} after {settings['steps']:,} steps: the weights hardly change"
