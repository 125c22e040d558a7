"""Placement: which share of the images the GPU decodes, chosen from measured rates and changed when they change.

Pure logic: the loader tells what it measured, batch by batch, and asks how many images of the next batch the GPU decodes.

The model of a step of N images, of which the share g is decoded on the GPU:

    step(g) = max((1 - g) N / cpu,  compute + g N cost,  g N / decoder)

`cpu` and `decoder` are rates in images/s, `compute` the seconds of a step that never waits for input, and `cost` the seconds by
which each image decoded on the GPU lengthens the step. The best g makes the largest term smallest.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from headrace.system.gpu_decoder_rates import NVJPEG_IMG_S
from headrace.system.sizes import percent_text

__all__ = ["DECODE", "Decision", "Decode", "Placement", "Rates", "Seen", "best_share", "predicted_step_s"]

Decode: TypeAlias = Literal["auto", "cpu", "gpu", "split"]

DECODE: tuple[Decode, ...] = ("auto", "cpu", "gpu", "split")
"""The values of `decode=`."""

WINDOW = 8
"""Batches over which rates are medians; decisions are this many batches apart at least."""

SETTLE = 4
"""Batches after a change that are not counted: they were begun before the change."""

LEAST_GAIN = 0.05
"""Change the share only if the predicted step becomes shorter by this much (hysteresis)."""

KEPT_GAIN = 0.02
"""Keep a change only if the measured time per batch became shorter by this much."""

HOLD = 64
"""Batches for which a change that did not help is not tried again; doubled each time, up to MOST_HOLD."""

MOST_HOLD = 4096

STEPS = 16
"""Shares are multiples of 1 / STEPS."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one batch showed. None: not measured in this batch."""

    period_s: float | None  # from the hand-over of the batch before to that of this one
    compute_s: float | None = None  # of the training step, without waits for input
    cpu_img_s: float | None = None  # of all decoding threads, if they did nothing else
    decoder_img_s: float | None = None  # of the GPU decoder, alone


@dataclass(frozen=True, slots=True)
class Rates:
    """The terms of the model. `measured` names those that were measured; the others are estimated."""

    cpu_img_s: float
    compute_s: float
    decoder_img_s: float = NVJPEG_IMG_S
    cost_s: float = 1 / NVJPEG_IMG_S  # the whole GPU, while it decodes: the most that it can cost
    measured: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Decision:
    """A change of the share, after `batch` batches: from the rates at that time."""

    batch: int
    share: float
    reason: str


def predicted_step_s(share: float, images: int, rates: Rates) -> float:
    """Return the seconds of a step if the GPU decodes `share` of its images. Example: `predicted_step_s(0.5, 256, rates)`."""
    on_gpu = share * images
    return max((images - on_gpu) / rates.cpu_img_s, rates.compute_s + on_gpu * rates.cost_s, on_gpu / rates.decoder_img_s)


def best_share(images: int, rates: Rates, *, least: int = 0, most: int = STEPS) -> float:
    """Return the share, a multiple of 1 / STEPS, with the shortest step; the smaller one if two are equal.

    least, most: the bounds of the share, in units of 1 / STEPS.
    """
    shares = [number / STEPS for number in range(least, most + 1)]
    return min(shares, key=lambda share: (predicted_step_s(share, images, rates), share))


@dataclass(slots=True)
class Placement:
    """Chooses the share of images that the GPU decodes.

    mode: "cpu": 0. "gpu": 1. "split": both take part, in the proportion of their rates. "auto": the CPU decodes as long as it
        keeps up with the training; else the GPU takes the share that makes the step shortest.
    images: of a batch.
    refusal: why the GPU cannot decode here, or None. With a refusal the share is 0.

    Example: `placement = Placement("auto", 256); placement.see(Seen(0.1, 0.05, 2560.0)); placement.on_gpu(256)`.
    """

    mode: Decode
    images: int
    refusal: str | None = None
    share: float = 0.0
    decisions: list[Decision] = field(default_factory=list)
    failures: int = 0
    last_failure: str | None = None
    _batches: int = 0
    _begun: int = 0
    _owed: float = 0.0
    _since: int = 0  # batches since the last change
    _window: deque[Seen] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _compute_at: dict[float, float] = field(default_factory=dict)  # share: seconds of a step, the latest last
    _known: Rates | None = None
    _before: tuple[float, float] | None = None  # share and period before a change that has to prove itself
    _hold_until: int = 0
    _hold: int = HOLD
    _paused_until: int = 0
    _pause: int = 1

    def __post_init__(self) -> None:
        if self.refusal is None:
            self.share = {"cpu": 0.0, "auto": 0.0, "split": 0.5, "gpu": 1.0}[self.mode]

    def on_gpu(self, images: int) -> int:
        """Return how many images of the next batch, of `images`, the GPU decodes. The remainder is carried over."""
        self._begun += 1
        if self.refusal is not None or self._begun <= self._paused_until:
            return 0
        wanted = self.share * images + self._owed
        count = min(images, int(wanted + 1e-9))
        self._owed = min(1.0, wanted - count)
        return count

    def refuse(self, reason: str) -> None:
        """Leave all images to the CPU from now on."""
        self.refusal, self.share = reason, 0.0

    def fail(self, reason: str) -> bool:
        """Leave the next batches to the CPU after the GPU failed: 1, then 2, 4, … up to 1024. Return whether it is the first
        failure, of which the user is told."""
        self.failures, self.last_failure = self.failures + 1, reason
        self._paused_until, self._pause = self._begun + self._pause, min(1024, 2 * self._pause)
        return self.failures == 1

    def see(self, seen: Seen) -> None:
        """Take notice of a batch that was handed over, and change the share if that helps."""
        self._batches += 1
        self._since += 1
        if self.refusal is not None or self.mode in ("cpu", "gpu"):
            self._window.append(seen)
            return
        if self._since <= SETTLE:
            return
        self._window.append(seen)
        if len(self._window) < WINDOW or self._since < SETTLE + WINDOW or self._batches < self._hold_until:
            return
        if not self._prove():
            self._reconsider()

    def _prove(self) -> bool:
        """Take a change back that did not shorten the time per batch. Return whether that was done."""
        before, self._before = self._before, None
        period = self._median("period_s")
        if before is None or period is None or period <= (1 - KEPT_GAIN) * before[1]:
            if before is not None:
                self._hold = HOLD
            return False
        self._hold_until, self._hold = self._batches + self._hold, min(MOST_HOLD, 2 * self._hold)
        self._move(before[0], f"a batch took {period * 1e3:.3g} ms, not less than the {before[1] * 1e3:.3g} ms before")
        return True

    def _reconsider(self) -> None:
        rates, period = self.rates(), self._median("period_s")
        if rates is None:
            return
        least, most = (1, STEPS - 1) if self.mode == "split" else (0, STEPS)
        wanted = best_share(self.images, rates, least=least, most=most)
        now, then = (predicted_step_s(share, self.images, rates) for share in (self.share, wanted))
        # The CPU alone is preferred when it is as fast: a share that no longer helps goes back to 0.
        is_idle = wanted < self.share and then <= now
        if wanted == self.share or not (then <= (1 - LEAST_GAIN) * now or (is_idle and self.mode == "auto" and wanted == 0)):
            return
        if period is not None and not is_idle:
            self._before = (self.share, period)
        self._move(wanted, f"predicted {then * 1e3:.3g} ms per batch in place of {now * 1e3:.3g} ms ({_words(rates)})")

    def _move(self, share: float, reason: str) -> None:
        self.share, self._owed, self._since = share, 0.0, 0
        self._window.clear()
        self.decisions.append(Decision(self._batches, share, reason))

    def rates(self) -> Rates | None:
        """Return the terms of the model as of now; None until the CPU's rate and the step were measured."""
        cpu, compute = self._median("cpu_img_s"), self._median("compute_s")
        known = self._known
        cpu = cpu if cpu is not None else (known.cpu_img_s if known is not None else None)
        if compute is None or cpu is None:
            return known
        measured = {"cpu", "compute"} | (known.measured if known is not None else frozenset())
        rates = replace(known or Rates(cpu, compute), cpu_img_s=cpu)
        decoder = self._median("decoder_img_s")
        if decoder is not None:
            measured.add("decoder")
            rates = replace(rates, decoder_img_s=decoder, cost_s=rates.cost_s if "cost" in measured else 1 / decoder)
        others = {share: step for share, step in self._compute_at.items() if share != self.share}
        if others and self.share > 0:
            share, step = next(reversed(others.items()))  # the one seen last
            rates = replace(rates, cost_s=max(0.0, (compute - step) / ((self.share - share) * self.images)))
            measured.add("cost")
        self._compute_at.pop(self.share, None)
        self._compute_at[self.share] = compute
        alone = max(0.0, compute - self.share * self.images * rates.cost_s)
        self._known = replace(rates, compute_s=alone, measured=frozenset(measured))
        return self._known

    def _median(self, name: str) -> float | None:
        values = [value for seen in self._window if (value := getattr(seen, name)) is not None]
        return statistics.median(values) if values else None

    def describe(self, decoder: str | None) -> list[str]:
        """Return where images are decoded and why, in lines for `explain`. decoder: its name."""
        if self.refusal is not None:
            return [f"decoded on the CPU (decode={self.mode!r}): {self.refusal}"]
        where = {0.0: "on the CPU", 1.0: "on the GPU"}.get(
            self.share, f"{percent_text(self.share)} of each batch on the GPU, the rest on the CPU"
        )
        by = f" by {decoder}" if decoder is not None and self.share > 0 else ""
        lines = [f"decoded {where}{by} (decode={self.mode!r})"]
        if self.mode in ("auto", "split"):
            rates = self.rates()
            lines.append("  not decided yet: rates are not measured" if rates is None else f"  rates: {_words(rates)}")
        lines += [f"  after batch {at.batch}, share {percent_text(at.share)}: {at.reason}" for at in self.decisions[-3:]]
        if self.failures:
            lines.append(
                f"  the GPU failed in {self.failures} batches, which the CPU decoded; the last time: {self.last_failure}"
            )
        return lines


def _words(rates: Rates) -> str:
    """Return the rates as words, each measured or estimated."""

    def source(name: str) -> str:
        return "measured" if name in rates.measured else "estimated"

    return (
        f"CPU {rates.cpu_img_s:,.0f} img/s ({source('cpu')}), step {rates.compute_s * 1e3:.3g} ms without waits "
        f"({source('compute')}), GPU decoder {rates.decoder_img_s:,.0f} img/s ({source('decoder')}), which costs the step "
        f"{rates.cost_s * 1e6:.3g} µs an image ({source('cost')})"
    )
