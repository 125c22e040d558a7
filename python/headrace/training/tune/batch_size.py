"""Choose a batch size by throughput: the smallest that is nearly as fast as the fastest, not the largest that fits.

Larger batches are faster only up to a knee. Beyond it they cost memory and, without a longer schedule, accuracy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from headrace.errors import UsageError
from headrace.system.text.sizes import count_text, size_text
from headrace.training.settings.optimization import DEFAULTS
from headrace.training.settings.options import Options
from headrace.training.tune.compute_rate import ComputeRate, measure_compute_rate
from headrace.training.tune.deadline import OutOfTime
from headrace.training.tune.memory_growth import predicted_bytes
from headrace.training.tune.memory_limit import memory_limit_bytes

__all__ = ["CPU_SECONDS", "BatchSizeChoice", "batch_words", "candidate_sizes", "choose_batch_size"]

SMALLEST, LARGEST = 32, 8192
ENOUGH_GAIN = 0.02  # end the search after two sizes in a row that gain less than this share
NEARLY = 0.97  # choose the smallest size that reaches this share of the best rate
MEMORY_SHARE = 0.95  # reject sizes whose peak exceeds this share of the GPU's memory
CPU_SECONDS = 120.0  # time limit of a search on the CPU, where steps of large batches take minutes and seldom gain anything
LEAST_STEPS = 2  # least steps of a measurement: one to warm up, one that counts


@dataclass(frozen=True, slots=True)
class BatchSizeChoice:
    """The chosen size per rank, all measurements, the sizes that were left out, and for lack of what ("time", "memory")."""

    batch_size: int
    trials: tuple[ComputeRate, ...]
    left_out: tuple[int, ...] = ()
    lack: Literal["time", "memory"] = "time"
    needed_bytes: int | None = None  # memory predicted for the first size left out, all ranks together
    budget_bytes: int | None = None
    limit_s: float | None = None

    def left_out_message(self) -> str | None:
        """Return a sentence about the sizes that were left out; None if there were none."""
        if not self.left_out:
            return None
        if self.lack == "memory" and self.budget_bytes is not None:
            needed = "" if self.needed_bytes is None else f"{size_text(self.needed_bytes)} are predicted for it, "
            return (
                f"batch sizes from {self.left_out[0]} on are left out: {needed}{size_text(self.budget_bytes)} may be used "
                "(free memory less a reserve of a tenth, at least 1 GiB); --batch-size N uses one of them"
            )
        return (
            f"batch sizes from {self.left_out[0]} on are left out: the next measurement would end after the "
            f"{self.limit_s or CPU_SECONDS:.0f} s that the search has; --batch-size N uses one of them"
        )


def batch_words(options: Options, images: int, processes: int) -> str:
    """Return in words the steps of an epoch, learning rate and warm-up that follow from the batch size of `options`.

    images: of the dataset. processes: ranks, whose batches add up.
    """
    optimization = options.optimization
    batch = options.batch_size * processes * optimization.accumulate
    steps = max(1, images // batch)
    rate, warmup = optimization.peak_rate(batch), optimization.warmup_steps(options.epochs, steps)
    exponent = DEFAULTS[optimization.optimizer][2]
    rule = "linear in the batch size (Goyal et al. 2017)" if exponent == 1.0 else "by the square root of the batch size"
    return (
        f"a batch of {count_text(batch, 'image')}: {count_text(steps, 'step')} per epoch; "
        f"{optimization.optimizer}'s learning rate grows to {rate:.3g} over {count_text(warmup, 'warm-up step')}, {rule}"
    )


def candidate_sizes(smallest: int = SMALLEST, largest: int = LARGEST) -> list[int]:
    """Return the batch sizes to try: powers of two, and one and a half times them: 32, 48, 64, 96, 128 …"""
    found, size = [], smallest
    while size <= largest:
        found += [size, size * 3 // 2]
        size *= 2
    return [size for size in found if size <= largest]


def choose_batch_size(
    options: Options,
    *,
    classes: int,
    images: int,
    memory_bytes: int | None = None,
    host_budget_bytes: int | None = None,
    global_batch: int | None = None,
    processes: int = 1,
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    try_size: Callable[..., ComputeRate] = measure_compute_rate,
    on_trial: Callable[[ComputeRate], None] = lambda trial: None,
) -> BatchSizeChoice:
    """Measure growing sizes until they stop gaining or do not fit, and choose one.

    The batches of all ranks together are at most a tenth of `images`. `memory_bytes` is the GPU's memory. `host_budget_bytes`
    is the memory of the machine that all ranks may use (on the CPU): a size is left out if, by the growth so far, it would need
    more, and each process is limited to its part. With `global_batch`, only sizes are measured of which a whole number on
    `processes` ranks makes it. With `seconds`, a size after the first is left out if, by the rates so far, it would end later.
    `on_trial` receives each measurement. Raises UsageError if not even the smallest size fits.
    """
    trials: list[ComputeRate] = []
    left_out: tuple[list[int], Literal["time", "memory"], int | None] = ([], "time", None)
    began_s = trial_began_s = clock()
    candidates = _candidates(images, global_batch, processes)
    limit = memory_limit_bytes(host_budget_bytes, processes)
    limits = {} if limit is None else {"memory_limit_bytes": limit}
    once = replace(options, optimization=replace(options.optimization, accumulate=1))
    for number, size in enumerate(candidates):
        needed = predicted_bytes(trials, size, options, processes)
        if host_budget_bytes is not None and needed is not None and needed > host_budget_bytes:
            left_out = candidates[number:], "memory", needed
            break
        if seconds is not None and trials:
            now_s = clock()
            rate = trials[-1].img_s or 1.0  # never None here: a size without a rate ends the search
            if now_s - began_s + max(now_s - trial_began_s, LEAST_STEPS * size * processes / rate) > seconds:
                left_out = candidates[number:], "time", None
                break
        trial_began_s = clock()
        try:
            trials.append(try_size(replace(once, batch_size=size), classes=classes, processes=processes, **limits))
        except OutOfTime:
            if not trials:
                raise
            left_out = candidates[number:], "time", None
            break
        on_trial(trials[-1])
        if trials[-1].img_s is None or _too_full(trials[-1], memory_bytes) or _flat(trials):
            break
    fitting = [(one.img_s, one.batch_size) for one in trials if one.img_s is not None and not _too_full(one, memory_bytes)]
    if not fitting:
        what = f"{options.model} at {options.image_size} pixels does not fit with a batch of {candidates[0]}"
        raise UsageError(what, hint="a smaller --image-size or model, --precision bf16, or --batch-size N with a smaller N")
    best = max(rate for rate, _ in fitting)
    chosen = min(size for rate, size in fitting if rate >= NEARLY * best)
    return BatchSizeChoice(chosen, tuple(trials), tuple(left_out[0]), left_out[1], left_out[2], host_budget_bytes, seconds)


def _candidates(images: int, global_batch: int | None, processes: int) -> list[int]:
    """Return the sizes to measure. Raise UsageError if none divides `global_batch`."""
    candidates = candidate_sizes(largest=max(SMALLEST, min(LARGEST, images // 10 // processes)))
    if global_batch is not None:
        candidates = [size for size in candidates if global_batch % (size * processes) == 0]
        if not candidates:
            what = (
                f"no batch size of {SMALLEST} or more on {count_text(processes, 'rank')} divides --global-batch {global_batch}"
            )
            raise UsageError(what, hint="another --global-batch (a power of two), or --batch-size N")
    return candidates


def _flat(trials: list[ComputeRate]) -> bool:
    """Return whether the last two sizes gained less than ENOUGH_GAIN over the best before each of them."""
    rates = [one.img_s for one in trials if one.img_s is not None]
    return len(rates) > 2 and all(rates[at] < (1 + ENOUGH_GAIN) * max(rates[:at]) for at in (-1, -2))


def _too_full(trial: ComputeRate, memory_bytes: int | None) -> bool:
    return memory_bytes is not None and trial.memory_bytes is not None and trial.memory_bytes > MEMORY_SHARE * memory_bytes
