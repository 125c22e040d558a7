"""Placement: choose from measured rates which share of the images the GPU decodes, and which share it only augments.

Pure logic: the loader tells what it measured, batch by batch, and asks how many images of the next batch the GPU decodes, and
how many of the others it augments after the CPU has decoded and cropped them.

The model of a step of N images. The GPU decodes the share g of them. The CPU decodes the rest, and of that rest the GPU
augments the share a:

    step(g, a) = max((1 - g) (1 - a + a crop) N / cpu,
                     compute + (g cost + (1 - g) a augment) N,
                     (g / decoder + (1 - g) a / augmenter) N)

`cpu`, `decoder` and `augmenter` are rates in images/s, `crop` the share of the CPU's time for an image that is left where the
GPU augments, `compute` the seconds of a step that never waits for input, `cost` and `augment` the seconds by which each image
lengthens the step. The best g and a make the largest term smallest. One of them is changed at a time, to measure its effect.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from headrace.system.hardware.cuda_decoder_facts import DECODER_IMG_S
from headrace.system.text.sizes import count_text, percent_text

__all__ = [
    "DECODE",
    "Decision",
    "Decode",
    "Placement",
    "Rates",
    "Seen",
    "best_augmented",
    "best_share",
    "predicted_step_s",
]

Decode: TypeAlias = Literal["auto", "cpu", "gpu", "split"]

DECODE: tuple[Decode, ...] = ("auto", "cpu", "gpu", "split")
"""The values of `decode=`."""

WINDOW = 8
"""Rates are medians over this many batches, and decisions are at least this many batches apart. A larger value reacts later."""

PREFETCH = 3
"""Batches that a loader decodes ahead, if the caller does not say."""

LEAST_GAIN = 0.05
"""Change the GPU's share only if the predicted step time falls by at least this share (hysteresis)."""

KEPT_GAIN = 0.02
"""Keep a changed GPU share only if the measured time per batch fell by at least this share; else change it back."""

HOLD = 64
"""Do not retry a change that did not help for this many batches. Doubled each time, up to `MOST_HOLD`."""

MOST_HOLD = 4096

MOST_PAUSE = 1024
"""Longest back-off after GPU failures, in batches that only the CPU decodes."""

EASE = 64
"""Back-off: halve the next pause of the GPU for every `EASE` batches in which it took part since its last failure.

A GPU that fails more often than that is short of memory for good: its pauses grow up to `MOST_PAUSE`. After a single failure
long ago, the GPU is used again after one batch.
"""

STEPS = 16
"""The GPU's shares are multiples of 1 / STEPS."""

CROP_SHARE = 0.5
"""Assumed until measured: the share of the CPU's time per image that decoding and cropping take; the rest is augmentation."""

AUGMENTER_IMG_S = 8000.0
"""Assumed until measured: images/s that a GPU augments. A cautious guess, far below the decoder's rate."""

LEAST_CONTRAST = 0.25
"""Measure `CROP_SHARE` only between batches whose shares of GPU augmentation differ by this much: below, noise decides."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The measured times of one batch. None: not measured in this batch."""

    period_s: float | None  # seconds between the hand-over of the previous batch and that of this one
    compute_s: float | None = None  # seconds of the training step, without waits for input
    cpu_img_s: float | None = None  # images/s that all decoding threads together would reach if they did nothing else
    decoder_img_s: float | None = None  # images/s of the GPU decoder while it decodes
    augmenter_img_s: float | None = None  # images/s of the GPU while it augments images that the CPU decoded


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates and times in the model of a step. `measured` names those that were measured; the others are estimates."""

    cpu_img_s: float  # images that the CPU both decodes and augments
    compute_s: float
    decoder_img_s: float = DECODER_IMG_S
    cost_s: float = 1 / DECODER_IMG_S  # seconds by which an image decoded on the GPU lengthens the step; default: worst case
    crop_share: float = CROP_SHARE
    augmenter_img_s: float = AUGMENTER_IMG_S
    augment_cost_s: float = 1 / AUGMENTER_IMG_S
    measured: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Decision:
    """One change of the GPU's shares, made after `batch` batches. share, augmented: the new values, as in `Placement`."""

    batch: int
    share: float
    reason: str
    augmented: float = 0.0


def predicted_step_s(share: float, images: int, rates: Rates, augmented: float = 0.0) -> float:
    """Return the seconds of a step if the GPU decodes `share` of its images, and augments `augmented` of the others.

    Example: `predicted_step_s(0.5, 256, rates)`.
    """
    on_gpu = share * images
    cropped = augmented * (images - on_gpu)
    on_cpu = images - on_gpu - cropped
    return max(
        (on_cpu + cropped * rates.crop_share) / rates.cpu_img_s,
        rates.compute_s + on_gpu * rates.cost_s + cropped * rates.augment_cost_s,
        on_gpu / rates.decoder_img_s + cropped / rates.augmenter_img_s,
    )


def best_share(images: int, rates: Rates, *, least: int = 0, most: int = STEPS, augmented: float = 0.0) -> float:
    """Return the share of images to decode on the GPU that gives the shortest predicted step; of equal ones the smallest.

    least, most: the bounds of the share, in units of 1 / STEPS. augmented: share of the others that the GPU augments.
    """
    shares = [number / STEPS for number in range(least, most + 1)]
    return min(shares, key=lambda share: (predicted_step_s(share, images, rates, augmented), share))


def best_augmented(images: int, rates: Rates, share: float) -> float:
    """Return the share of CPU-decoded images to augment on the GPU that gives the shortest predicted step; of equal ones the
    smallest.

    share: share of the images that the GPU decodes.
    """
    shares = [number / STEPS for number in range(STEPS + 1)]
    return min(shares, key=lambda augmented: (predicted_step_s(share, images, rates, augmented), augmented))


def _part_of(images: int, share: float, owed: float) -> tuple[int, float]:
    """Return how many of the images are that share, with the remainder `owed` of earlier batches, and the new remainder."""
    wanted = share * images + owed
    count = min(images, int(wanted + 1e-9))
    return count, min(1.0, wanted - count)


@dataclass(slots=True)
class Placement:
    """Chooses the share of images that the GPU decodes, and the share of the others that it augments.

    mode: "cpu": 0. "gpu": 1. "split": both take part, in the proportion of their rates. "auto": the CPU decodes as long as it
        keeps up with the training; else the GPU takes the share that makes the step shortest.
    images: of a batch.
    refusal: why the GPU cannot decode here, or None. With a refusal the share is 0.
    augment_refusal: why the GPU does not augment what the CPU decodes, "" if nothing is augmented, or None. In all modes the
        CPU augments what it decodes as long as it keeps up with the training.
    prefetch: batches that are begun ahead of the one that is handed over (default: `PREFETCH`). So many after a change tell
        nothing of it: they were begun before.

    Example: `placement = Placement("auto", 256); placement.see(Seen(0.1, 0.05, 2560.0)); placement.on_gpu(256)`.
    """

    mode: Decode
    images: int
    refusal: str | None = None
    augment_refusal: str | None = ""
    prefetch: int = PREFETCH
    share: float = 0.0
    augmented: float = 0.0
    decisions: list[Decision] = field(default_factory=list)
    failures: int = 0
    last_failure: str | None = None
    _batches: int = 0
    _begun: int = 0
    _owed: float = 0.0
    _since: int = 0  # batches since the last change
    _window: deque[Seen] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _compute_at: dict[tuple[float, float], float] = field(default_factory=dict)  # (share, augmented) → step s; the latest last
    _known: Rates | None = None
    _before: tuple[float, float, float] | None = None  # shares and period_s before a change that is still being judged
    _whole: tuple[float, float] | None = None  # `augmented` and the CPU's rate before the last change of `augmented`
    _owed_augmented: float = 0.0
    _hold_until: int = 0
    _hold: int = HOLD
    _paused_until: int = 0
    _pause: int = 1
    _seen_failures: int = 0
    _made: int = 0  # batches in which the GPU took part
    _made_until_failure: int = 0

    def __post_init__(self) -> None:
        if self.refusal is None:
            self.share = {"cpu": 0.0, "auto": 0.0, "split": 0.5, "gpu": 1.0}[self.mode]

    def on_gpu(self, images: int) -> int:
        """Return how many of the next batch's `images` the GPU decodes. Fractions of an image carry over to later batches."""
        self._begun += 1
        if self.refusal is not None or self._begun <= self._paused_until:
            return 0
        count, self._owed = _part_of(images, self.share, self._owed)
        return count

    def on_cpu_augmented(self, images: int) -> int:
        """Return how many of the `images` that the CPU decodes are augmented on the GPU. Call after `on_gpu`."""
        if self.augmented == 0 or self.augment_refusal is not None or self._begun <= self._paused_until:
            return 0
        count, self._owed_augmented = _part_of(images, self.augmented, self._owed_augmented)
        return count

    def refuse_augmenting(self, reason: str) -> None:
        """Stop augmenting CPU-decoded images on the GPU, for good. reason: for `explain`."""
        self.augment_refusal, self.augmented, self._before = reason, 0.0, None

    def refuse(self, reason: str) -> None:
        """Leave all images to the CPU from now on. reason: why, as `explain` then says."""
        self.refusal, self.share, self._before = reason, 0.0, None

    def fail(self, reason: str) -> bool:
        """Leave the next batches to the CPU after the GPU failed. Return whether this was the first failure, which is reported.

        The pause is 1 batch, then 2, 4, … up to `MOST_PAUSE`; it shrinks again after a time without failures (`EASE`).
        """
        pause = max(1, self._pause >> (self._made - self._made_until_failure) // EASE)
        self._paused_until, self._pause = self._begun + pause, min(MOST_PAUSE, 2 * pause)
        self._made_until_failure = self._made
        self.failures, self.last_failure = self.failures + 1, reason  # last: `see` looks at them in another thread
        return self.failures == 1

    def see(self, seen: Seen) -> None:
        """Update the rates with one delivered batch, and change the shares if that shortens the predicted step."""
        self._batches += 1
        self._since += 1
        self._made += seen.decoder_img_s is not None or seen.augmenter_img_s is not None
        if self.failures != self._seen_failures:
            # Until the pause is over the CPU makes all images, a failed batch's one by one: this tells nothing of the shares.
            self._seen_failures = self.failures
            self._since = min(0, self._begun - self._paused_until)
            self._window.clear()
        if not self._moves_share and not self._moves_augmented:
            self._window.append(seen)
            return
        if self._since <= self._settle:
            return
        self._window.append(seen)
        if len(self._window) < WINDOW or self._since < self._settle + WINDOW or self._batches < self._hold_until:
            return
        self._measure_crop()
        if not self._prove():
            self._reconsider()

    @property
    def _settle(self) -> int:
        """Batches after a change that are not counted: those begun before it, and the one that waited for them."""
        return self.prefetch + 1

    @property
    def _moves_share(self) -> bool:
        return self.refusal is None and self.mode in ("auto", "split")

    @property
    def _moves_augmented(self) -> bool:
        return self.augment_refusal is None and (self.mode != "gpu" or self.refusal is not None)

    def _measure_crop(self) -> None:
        """Update `crop_share`, the CPU time left where the GPU augments, from the CPU's rates before and after a change."""
        known, now = self._known, self._median("cpu_img_s")
        if self._whole is None or known is None or now is None:
            return
        (before, rate), self._whole = self._whole, None
        longer = rate / now
        if abs(self.augmented - before) < LEAST_CONTRAST or self.augmented - longer * before == 0:
            return
        crop = (longer * (1 - before) - (1 - self.augmented)) / (self.augmented - longer * before)
        self._known = replace(known, crop_share=min(1.0, max(0.02, crop)), measured=known.measured | {"crop"})

    def _prove(self) -> bool:
        """Take a change back that did not shorten the time per batch. Return whether that was done."""
        before, self._before = self._before, None
        period = self._median("period_s")
        if before is None or period is None or period <= (1 - KEPT_GAIN) * before[2]:
            if before is not None:
                self._hold = HOLD
            return False
        self._hold_until, self._hold = self._batches + self._hold, min(MOST_HOLD, 2 * self._hold)
        reason = f"a batch took {period * 1e3:.3g} ms, not less than the {before[2] * 1e3:.3g} ms before"
        self._move(before[0], before[1], reason)
        return True

    def _reconsider(self) -> None:
        rates, period = self.rates(), self._median("period_s")
        if rates is None:
            return
        now = predicted_step_s(self.share, self.images, rates, self.augmented)
        then, share, augmented = min(self._candidates(rates))
        # The CPU alone is preferred when it is as fast: a share that no longer helps goes back to 0.
        is_idle = share <= self.share and augmented <= self.augmented and then <= now
        to_zero = (share == 0 and self.mode == "auto") if share != self.share else augmented == 0
        if (share, augmented) == (self.share, self.augmented) or not (then <= (1 - LEAST_GAIN) * now or (is_idle and to_zero)):
            return
        if period is not None and not is_idle:
            self._before = (self.share, self.augmented, period)
        reason = f"predicted {then * 1e3:.3g} ms per batch in place of {now * 1e3:.3g} ms ({self._words(rates)})"
        self._move(share, augmented, reason)

    def _candidates(self, rates: Rates) -> list[tuple[float, float, float]]:
        """Return the predicted step and the shares of the best change of each share, and of no change."""
        found = [(self.share, self.augmented)]
        if self._moves_share:
            least, most = (1, STEPS - 1) if self.mode == "split" else (0, STEPS)
            found.append((best_share(self.images, rates, least=least, most=most, augmented=self.augmented), self.augmented))
        if self._moves_augmented:
            found.append((self.share, best_augmented(self.images, rates, self.share)))
        return [(predicted_step_s(share, self.images, rates, augmented), share, augmented) for share, augmented in found]

    def _move(self, share: float, augmented: float, reason: str) -> None:
        rate = self._median("cpu_img_s")
        self._whole = (self.augmented, rate) if augmented != self.augmented and rate is not None else None
        self.share, self.augmented = share, augmented
        self._owed, self._owed_augmented, self._since = 0.0, 0.0, 0
        self._window.clear()
        self.decisions.append(Decision(self._batches, share, reason, augmented))

    def rates(self) -> Rates | None:
        """Return the current rates and times of the step model; None until the CPU's rate and the step time were measured."""
        cpu, compute, known = self._median("cpu_img_s"), self._median("compute_s"), self._known
        if compute is None or (cpu is None and known is None):
            return known
        rates = known or Rates(cpu or 0.0, compute)
        if cpu is not None:
            rates = replace(rates, cpu_img_s=cpu * (1 - self.augmented + self.augmented * rates.crop_share))
        rates = self._with_costs(rates, compute, {"cpu", "compute"} | rates.measured)
        self._compute_at.pop((self.share, self.augmented), None)
        self._compute_at[self.share, self.augmented] = compute
        cropped = (1 - self.share) * self.augmented
        alone = max(0.0, compute - self.images * (self.share * rates.cost_s + cropped * rates.augment_cost_s))
        self._known = replace(rates, compute_s=alone)
        return self._known

    def _with_costs(self, rates: Rates, compute: float, measured: set[str]) -> Rates:
        """Return the rates with those of the GPU updated from the window. compute: seconds of a step with the GPU's work."""
        decoder, augmenter = self._median("decoder_img_s"), self._median("augmenter_img_s")
        if decoder is not None:
            measured.add("decoder")
            rates = replace(rates, decoder_img_s=decoder, cost_s=rates.cost_s if "cost" in measured else 1 / decoder)
        if augmenter is not None:
            measured.add("augmenter")
            cost_s = rates.augment_cost_s if "augment" in measured else 1 / augmenter
            rates = replace(rates, augmenter_img_s=augmenter, augment_cost_s=cost_s)
        others = list(reversed(self._compute_at.items()))  # the one seen last first
        for (share, augmented), step in others if self.share > 0 else []:
            if augmented == self.augmented and share != self.share:
                slope = (compute - step) / ((self.share - share) * self.images)
                rates = replace(rates, cost_s=max(0.0, slope + augmented * rates.augment_cost_s))
                measured.add("cost")
                break
        for (share, augmented), step in others if self.augmented > 0 and self.share < 1 else []:
            if share == self.share and augmented != self.augmented:
                images = (self.augmented - augmented) * (1 - share) * self.images
                rates = replace(rates, augment_cost_s=max(0.0, (compute - step) / images))
                measured.add("augment")
                break
        return replace(rates, measured=frozenset(measured))

    def _median(self, name: str) -> float | None:
        values = [value for seen in self._window if (value := getattr(seen, name)) is not None]
        return statistics.median(values) if values else None

    def describe(self, decoder: str | None) -> list[str]:
        """Return where images are decoded and augmented, and why, in lines for `explain`. decoder: its name."""
        if self.refusal is not None:
            lines = [f"decoded on the CPU (decode={self.mode!r}): {self.refusal}"]
        else:
            where = {0.0: "on the CPU", 1.0: "on the GPU"}.get(
                self.share, f"{percent_text(self.share)} of each batch on the GPU, the rest on the CPU"
            )
            by = f" by {decoder}" if decoder is not None and self.share > 0 else ""
            lines = [f"decoded {where}{by} (decode={self.mode!r})"]
        if self._moves_augmented:
            share = {0.0: "by the CPU", 1.0: "by the GPU"}.get(self.augmented, f"{percent_text(self.augmented)} by the GPU")
            lines.append(f"  what the CPU decodes is augmented {share}, with the same pixels")
        elif self.augment_refusal and self.share < 1:
            lines.append(f"  what the CPU decodes it also augments: {self.augment_refusal}")
        if self._moves_share or self._moves_augmented:
            rates = self.rates()
            lines.append("  not decided yet: rates are not measured" if rates is None else f"  rates: {self._words(rates)}")
        lines += [f"  after batch {at.batch}, {self._shares(at)}: {at.reason}" for at in self.decisions[-3:]]
        if self.failures:
            failed = count_text(self.failures, "batch")
            lines.append(f"  the GPU failed in {failed}, which the CPU made; the last time: {self.last_failure}")
        return lines

    def _shares(self, at: Decision) -> str:
        augmented = "" if self.augment_refusal == "" else f", of the rest {percent_text(at.augmented)} augmented"
        return f"share {percent_text(at.share)}{augmented}"

    def _words(self, rates: Rates) -> str:
        """Return the rates as words, each measured or estimated."""

        def source(name: str) -> str:
            return "measured" if name in rates.measured else "estimated"

        words = [
            f"CPU {rates.cpu_img_s:,.0f} img/s ({source('cpu')})",
            f"step {rates.compute_s * 1e3:.3g} ms without waits ({source('compute')})",
        ]
        if self._moves_share:
            words.append(f"GPU decoder {rates.decoder_img_s:,.0f} img/s ({source('decoder')}), which costs the step")
            words[-1] += f" {rates.cost_s * 1e6:.3g} µs an image ({source('cost')})"
        if self._moves_augmented:
            words.append(f"without augmentation the CPU takes {percent_text(rates.crop_share)} of its time ({source('crop')})")
            words.append(f"GPU augmentation {rates.augmenter_img_s:,.0f} img/s ({source('augmenter')}), which costs the step")
            words[-1] += f" {rates.augment_cost_s * 1e6:.3g} µs an image ({source('augment')})"
        return ", ".join(words)
