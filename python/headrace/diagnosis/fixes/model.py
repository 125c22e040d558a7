"""The fixes of the model's own computation: number format, memory format, compiled kernels, one process per GPU, modes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.diagnosis.fixes.fix_kind import FixKind, Rerun
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.prediction import predicted_fix
from headrace.diagnosis.measure.step_model import without_share
from headrace.diagnosis.result.kinds import KINDS
from headrace.diagnosis.result.model import Fix
from headrace.diagnosis.rules.pauses import PAUSE_SHARE
from headrace.diagnosis.rules.startup import LARGE_PART, startup_parts_s

__all__ = ["AMP", "CHANNELS_LAST", "COMPILE", "FLUSH_DENORMAL", "MODES", "MORE_GPUS"]


def _faster_compute(job: MeasuredJob, name: str, change: str, command: str, *, is_used: bool) -> Fix | None:
    """Propose faster computation, predicted from a replayed batch. Without a replay, name the fix for jobs on a GPU only."""
    if is_used:
        return None
    seconds = job.replay_s
    if name in seconds and job.model is not None:
        after = job.model.changed(compute_s=job.model.compute_s * seconds[name] / seconds["base"])
        return predicted_fix(job, name, change, after, command, basis="a replayed batch", effort="a few lines", error=0.05)
    if job.machine.gpu_busy is None:
        return None
    return Fix(name, change, command=command, basis="not predicted: depends on the model; measure it", effort="a few lines")


def _amp(job: MeasuredJob, kind: str) -> Fix | None:
    settings = job.settings
    return _faster_compute(
        job,
        "amp",
        "bf16 arithmetic on the tensor cores",
        "with torch.autocast('cuda', torch.bfloat16): ...",
        is_used=bool(settings.get("autocast")) or settings.get("parameter_format") in ("float16", "bfloat16"),
    )


AMP = FixKind("amp", _amp, is_replayed=True)


def _channels_last(job: MeasuredJob, kind: str) -> Fix | None:
    settings: Mapping[str, Any] = job.settings
    return _faster_compute(
        job,
        "channels_last",
        "channels-last memory, as cuDNN prefers it",
        "model.to(memory_format=torch.channels_last)",
        is_used=bool(settings.get("channels_last")) or settings.get("convolutions") == 0,
    )


CHANNELS_LAST = FixKind("channels_last", _channels_last, is_replayed=True)


def _compile(job: MeasuredJob, kind: str) -> Fix | None:
    if kind == "STARTUP":
        return _keep_kernels(job)
    return _faster_compute(
        job,
        "compile",
        "kernels fused by the compiler",
        "model = torch.compile(model)",
        is_used=bool(job.settings.get("compiled")) or any(event.name == "compile" for event in job.session.events),
    )


def _keep_kernels(job: MeasuredJob) -> Fix | None:
    """Propose to keep compiled kernels from one start to the next. How long the next start then takes is unknown."""
    parts = startup_parts_s(job.session, job.rank)
    if parts.get("compile", 0.0) <= LARGE_PART * sum(parts.values()):
        return None
    return Fix(
        "compile",
        "compiled kernels kept from run to run",
        command="TORCHINDUCTOR_CACHE_DIR=/a/disk/that/stays",
        basis="not predicted: the next start was not measured",
        effort="one variable",
    )


COMPILE = FixKind("compile", _compile)


def _more_gpus(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose DistributedDataParallel to a job that uses nn.DataParallel."""
    gpus = job.settings.get("data_parallel") or 0
    if gpus < 2:
        return None
    return Fix(
        "more_gpus",
        f"one process per GPU (DistributedDataParallel) instead of one for all {gpus}",
        command=_torchrun(job.session.command, gpus),
        basis="not predicted: the change was not measured",
        effort="a few lines",
    )


def _torchrun(command: Sequence[str], gpus: int) -> str | None:
    """Return the command under torchrun, or None when it is not `python SCRIPT …` or `python -m MODULE …`."""
    program, arguments = Path(command[0]).name if command else "", list(command[1:])
    if not program.startswith("python") or not arguments or (arguments[0].startswith("-") and arguments[0] != "-m"):
        return None
    return shlex.join(["torchrun", "--nproc-per-node", str(gpus), *arguments])


MORE_GPUS = FixKind("more_gpus", _more_gpus)


def _mode(name: str, change: str, command: str | None, cost_s: Callable[[MeasuredJob], float]) -> FixKind:
    """Return the fix that leaves out a mode of PyTorch, predicted from its cost per step where that was seen.

    It is proposed beside the setting, and for a verdict only where that cost was seen.
    """

    def propose(job: MeasuredJob, kind: str) -> Fix | None:
        seconds, model = cost_s(job), job.model
        if kind in KINDS and job.share(seconds) < PAUSE_SHARE:
            return None  # a verdict of another cause
        if model is None or seconds <= 0 or job.rank.compute_s <= 0:
            return Fix(name, change, command=command, basis="not predicted: its cost was not seen", effort="one line")
        after = without_share(model, seconds / job.rank.compute_s)
        return predicted_fix(job, name, change, after, command, basis="the time measured", effort="one line", error=0.1)

    return FixKind(name, propose)


MODES = (
    _mode(
        "anomaly_off",
        "anomaly detection only while a NaN is looked for (what it costs beyond the stacks is not predicted)",
        "torch.autograd.set_detect_anomaly(False)",
        lambda job: job.traceback_s,
    ),
    _mode("profiler_off", "the profiler around a few steps only", None, lambda job: 0.0),
    _mode(
        "dynamic_shapes",
        "one compilation for all shapes, or batches of one size (drop_last=True, padding)",
        "torch.compile(model, dynamic=True)",
        lambda job: job.recompile_s,
    ),
    _mode(
        "deterministic_off",
        "fast kernels, where the same bits in each run are not needed",
        "torch.use_deterministic_algorithms(False)",
        lambda job: 0.0,
    ),
    _mode(
        "autocast_off",
        "no autocast on the CPU: it has no fast arithmetic for this number format",
        "torch.autocast(..., enabled=False)",
        lambda job: 0.0,
    ),
    _mode(
        "find_unused_off",
        "no search for unused parameters, where all have gradients",
        "DistributedDataParallel(..., find_unused_parameters=False)",
        lambda job: 0.0,
    ),
)
"""The fixes that leave out a mode of PyTorch."""


def _flush_denormal(job: MeasuredJob, kind: str) -> Fix | None:
    change = "denormal numbers taken for 0, before the first batch"
    basis = "not predicted: --verify measures it"
    return Fix("flush_denormal", change, command="torch.set_flush_denormal(True)", basis=basis, effort="one line")


FLUSH_DENORMAL = FixKind("flush_denormal", _flush_denormal, rerun=lambda number, loader: Rerun(flush_denormal=True))
