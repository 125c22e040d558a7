"""The three signs by which articles about slow SageMaker jobs tell what is wrong, as named rules with thresholds.

A job that starts long; a GPU that is low while the CPU is high; a job in which everything is low. Articles show them on curves.
The numbers below make them countable; a sign that was not measured cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.diagnosis.rules.curves import CPU_FULL, CPU_LOW, GPU_BUSY
from headrace.launch.finished_job.steady import Steady
from headrace.launch.finished_job.times import JobTimes
from headrace.system.text.sizes import percent_text

__all__ = ["RuleAnswer", "apply_job_rules", "start_share"]

LONG_START_SHARE = 0.30
"""Call a start long when it takes this share of the billed time."""

LONG_START_S = 120.0
"""And so many seconds: two points of CloudWatch."""

ENOUGH_POINTS = 5
"""A mean over fewer points of the training tells nothing."""


@dataclass(frozen=True, slots=True)
class RuleAnswer:
    """The outcome of a rule. fires: None if it cannot tell. why: the numbers."""

    rule: str
    fires: bool | None
    why: str


def apply_job_rules(times: JobTimes, steady: Steady) -> tuple[RuleAnswer, ...]:
    """Return the outcome of the three rules."""
    return (
        _long_start(times, steady),
        _low_gpu("gpu_low_cpu_high", steady, lambda cpu: cpu >= CPU_FULL, percent_text(CPU_FULL)),
        _low_gpu("all_low", steady, lambda cpu: cpu < CPU_LOW, f"below {percent_text(CPU_LOW)}"),
    )


def start_share(times: JobTimes, steady: Steady) -> float:
    """Return the share of the billed time that passes before the GPU works: downloads, and the training's own start."""
    start_s = times.seconds.get("Downloading", 0.0) + (steady.start_s or 0.0)
    return start_s / times.billed_s if times.billed_s > 0 else 0.0


def _long_start(times: JobTimes, steady: Steady) -> RuleAnswer:
    if times.billed_s <= 0:
        return RuleAnswer("long_start", None, "the times of the statuses are not known")
    share = start_share(times, steady)
    start_s = share * times.billed_s
    needed = f"{percent_text(LONG_START_SHARE)} and {LONG_START_S:.0f} s"
    what = "download and start" if steady.start_s is not None else "the download alone"
    why = f"{what} take {start_s:,.0f} s, {percent_text(share)} of the billed time; {needed} needed"
    if share < LONG_START_SHARE and steady.start_s is None and steady.gpus != 0:
        return RuleAnswer("long_start", None, f"{why}; when the GPU first worked was not measured")
    return RuleAnswer("long_start", share >= LONG_START_SHARE and start_s >= LONG_START_S, why)


def _low_gpu(rule: str, steady: Steady, cpu_fits: Callable[[float], bool], cpu_needed: str) -> RuleAnswer:
    """Return the answer of a rule for a low GPU and a certain use of the CPU."""
    missing = _missing(steady)
    if missing:
        return RuleAnswer(rule, None, missing)
    assert steady.gpu is not None and steady.cpu is not None
    gpu = f"GPU {percent_text(steady.gpu)} (below {percent_text(GPU_BUSY)} needed)"
    cpu = f"CPU {percent_text(steady.cpu)} of all cores ({cpu_needed} needed)"
    return RuleAnswer(rule, steady.gpu < GPU_BUSY and cpu_fits(steady.cpu), f"{gpu}, {cpu}")


def _missing(steady: Steady) -> str:
    if steady.gpus == 0:
        return "the instance type has no GPU"
    if steady.gpu is None:
        return "the use of the GPU was not measured"
    if steady.cpu is None:
        return "the use of the CPU was not measured"
    if steady.points < ENOUGH_POINTS:
        return f"{steady.points} points of the training are too few; {ENOUGH_POINTS} needed"
    return ""
