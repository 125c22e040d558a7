"""Two sessions compared: whether the rate changed beyond the noise, which parts of the step changed, which settings differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.diagnosis.measure.stats import mean
from headrace.diagnosis.result.model import SHARES, Diagnosis
from headrace.report.sessions.compare_jobs import JobFigure, compared_epochs, job_figures
from headrace.report.sessions.session_settings import Difference, differences
from headrace.report.text import numbers
from headrace.report.text.notebook import notebook_html
from headrace.session.model import Session

__all__ = ["MATERIAL", "PER_STEP", "PartChange", "SessionComparison", "compare_sessions", "noise_words", "whole_s"]

MATERIAL = 0.03
"""Call a change of the rate below this share "about the same", even beyond the noise. TraceML calls 3 % moderate."""

MATERIAL_UNKNOWN_NOISE = 0.08
"""`MATERIAL` where the noise of the runs is unknown. A larger value reports fewer changes. TraceML calls 8 % material."""

BLOCKS = 8
"""Divide a run into this many equal stretches. The spread of their rates is the noise."""

MIN_STEPS_PER_BLOCK = 3

LEAST_SHARE = 0.002
"""Leave out a part of the step that takes less than this share of it in both runs."""

NAMED_CHANGE = 0.02
"""Name a part of the step if its time changed by at least this share of the earlier step, and beyond the noise."""


@dataclass(frozen=True, slots=True)
class PartChange:
    """One part of the step: mean seconds before and after, per `SessionComparison.per`. None: not measured.

    within_noise: whether two equal runs could differ as much; None where the noise or a side was not measured.
    """

    part: str
    label: str
    before_s: float | None
    after_s: float | None
    within_noise: bool | None = None

    @property
    def change_s(self) -> float:
        """Seconds by which the part takes longer in the later run (negative: shorter); 0 if one run did not measure it."""
        return 0.0 if self.before_s is None or self.after_s is None else self.after_s - self.before_s

    def change_words(self, whole_s: float) -> str:
        """Return the change as text ("+1.2 ms", "none", "within noise", "not measured"). whole_s: sets the number of digits."""
        if self.before_s is None or self.after_s is None:
            return numbers.NOT_MEASURED
        if self.change_s == 0:
            return "none"
        if self.within_noise:
            return "within noise"
        text = numbers.part_of(abs(self.change_s), whole_s)
        return text if text.startswith("<") else f"{'+' if self.change_s > 0 else '−'}{text}"


@dataclass(frozen=True, slots=True)
class SessionComparison:
    """The result of comparing two sessions (`compare_sessions`). The field names are those of `headrace compare --json`.

    `change`: later rate over earlier rate. `noise`: relative difference that two equal runs could show (95 %). `word`: faster,
    slower, about the same or not comparable. `moved`: parts of the step, largest change first. `per`: the unit of their times,
    a step or, where the batch sizes differ, 1,000 images. `jobs`: figures of two finished jobs; their rate is that of epochs.
    """

    before_img_s: float | None
    after_img_s: float | None
    change: float | None
    noise: float | None
    word: str
    per: str
    verdict_before: str
    verdict_after: str
    moved: tuple[PartChange, ...]
    differences: tuple[Difference, ...]
    sentences: tuple[str, ...]
    jobs: tuple[JobFigure, ...] = ()

    @property
    def whole_s(self) -> float:
        """Seconds per step (or per 1,000 images) of the slower run. The number of digits of all parts depends on this value."""
        return max(sum(getattr(part, name) or 0.0 for part in self.moved) for name in ("before_s", "after_s"))

    @property
    def shown(self) -> tuple[PartChange, ...]:
        """The parts that take at least `LEAST_SHARE` of the step in one of the runs."""
        least_s = LEAST_SHARE * self.whole_s
        return tuple(part for part in self.moved if max(part.before_s or 0.0, part.after_s or 0.0) >= least_s)

    def part_rows(self) -> list[tuple[str, str, str, str]]:
        """Return name, time before, time after and change of each part in `shown`, as text."""
        whole = self.whole_s
        return [
            (part.label, numbers.part_of(part.before_s, whole), numbers.part_of(part.after_s, whole), part.change_words(whole))
            for part in self.shown
        ]

    def _repr_html_(self) -> str:
        """Return the sentences and the parts of the step, which notebooks show."""
        return notebook_html(self.sentences, (f"per {self.per}", "before", "after", "change"), self.part_rows())


def compare_sessions(before: Session, after: Session, was: Diagnosis, now: Diagnosis) -> SessionComparison:
    """Return the changes of rate and step from `before` to `after`. `was` and `now`: the diagnoses of the two sessions."""
    change = now.img_s / was.img_s if was.img_s and now.img_s else None
    epochs_s = compared_epochs(before, after)
    if epochs_s is not None:
        change = epochs_s[0] / epochs_s[1]
    noise = _noise(before, after)
    per = PER_STEP if _same_size(was, now) else PER_IMAGES
    longest_s = max(whole_s(was, per) or 0.0, whole_s(now, per) or 0.0)
    noise_s = None if noise is None else noise * longest_s
    moved = tuple(sorted(_moved(was, now, per, noise_s), key=lambda part: -abs(part.change_s)))
    word = _word(change, noise)
    return SessionComparison(
        before_img_s=was.img_s,
        after_img_s=now.img_s,
        change=change,
        noise=noise,
        word=word,
        per=per,
        verdict_before=was.verdict,
        verdict_after=now.verdict,
        moved=moved,
        differences=differences(before, after),
        sentences=tuple(_sentences(was, now, change, noise, word, moved, per, epochs_s)),
        jobs=job_figures(before, after, was, now),
    )


def _word(change: float | None, noise: float | None) -> str:
    if change is None:
        return "not comparable"
    if abs(change - 1) <= (MATERIAL_UNKNOWN_NOISE if noise is None else max(MATERIAL, noise)):
        return "about the same"
    return "faster" if change > 1 else "slower"


def _noise(before: Session, after: Session) -> float | None:
    """Return the half-width of the 95 % interval of the ratio of two mean rates, as a share of it; None for too few steps."""
    errors = [_relative_error(session) for session in (before, after)]
    known = [error for error in errors if error is not None]
    # Twice the standard error; the errors of a quotient add in quadrature.
    return 2 * math.hypot(*known) if len(known) == 2 else None


def _relative_error(session: Session) -> float | None:
    """Return the standard error of the mean step time as a share of the mean, from means of stretches, which include drift."""
    steps = [step.step_s for step in session.steps][1:]  # the first step waits for the first batch
    size = len(steps) // BLOCKS
    if size < MIN_STEPS_PER_BLOCK:
        return None
    blocks = [math.fsum(steps[start : start + size]) / size for start in range(0, size * BLOCKS, size)]
    centre = mean(blocks)
    if not centre:
        return None
    variance = math.fsum((block - centre) ** 2 for block in blocks) / (BLOCKS - 1)
    return math.sqrt(variance / BLOCKS) / centre


PER_STEP = "step"
PER_IMAGES = "1,000 images"


def _images(diagnosis: Diagnosis) -> float | None:
    """Return the images per step of the whole job; None where not measured."""
    return None if diagnosis.img_s is None or diagnosis.step_s is None else diagnosis.img_s * diagnosis.step_s


def _same_size(was: Diagnosis, now: Diagnosis) -> bool:
    before, after = _images(was), _images(now)
    return not before or not after or math.isclose(before, after, rel_tol=0.02)


def _moved(was: Diagnosis, now: Diagnosis, per: str, noise_s: float | None) -> Iterator[PartChange]:
    for part, label in SHARES.items():
        before_s, after_s = _part_s(was, part, per), _part_s(now, part, per)
        if before_s or after_s:
            found = PartChange(part, label, before_s, after_s)
            known = noise_s is not None and before_s is not None and after_s is not None
            yield replace(found, within_noise=abs(found.change_s) <= (noise_s or 0.0)) if known else found


def _part_s(diagnosis: Diagnosis, part: str, per: str) -> float | None:
    share, time_s = diagnosis.share_of_step.get(part), whole_s(diagnosis, per)
    return None if share is None or time_s is None else share * time_s


def whole_s(diagnosis: Diagnosis, per: str) -> float | None:
    """Return the seconds per step (per: "step") or per 1,000 images; None where not measured."""
    if per == PER_STEP:
        return diagnosis.step_s
    return 1000 / diagnosis.img_s if diagnosis.img_s else None


def _sentences(
    was: Diagnosis,
    now: Diagnosis,
    change: float | None,
    noise: float | None,
    word: str,
    moved: Sequence[PartChange],
    per: str,
    epochs_s: tuple[float, float] | None,
) -> Iterator[str]:
    if change is None:
        yield "The rates cannot be compared: one of them was not measured."
    elif epochs_s is not None:
        times = f"an epoch takes {epochs_s[1]:,.1f} s in place of {epochs_s[0]:,.1f} s ({numbers.gain(change)} epochs an hour)"
        yield f"The second job is {word}: {times}; {noise_words(change, noise)}."
    else:
        rates = f"from {numbers.image_rate(was.img_s)} to {numbers.image_rate(now.img_s)} img/s ({numbers.gain(change)})"
        yield f"The second run is {word}: {rates}; {noise_words(change, noise)}."
    if was.verdict == now.verdict:
        yield f"The verdict is the same: {was.verdict}."
    else:
        yield f"The verdict changed from {was.verdict} to {now.verdict}."
    if before_s := whole_s(was, per):
        longest_s = max(before_s, whole_s(now, per) or 0.0)
        named = [part for part in moved if abs(part.change_s) >= NAMED_CHANGE * before_s and not part.within_noise][:3]
        for part in named:
            times = f"{numbers.part_of(part.before_s, longest_s)} before, {numbers.part_of(part.after_s, longest_s)} after"
            yield f"Per {per}, {part.label}: {times}."


def noise_words(change: float | None, noise: float | None) -> str:
    """Return a clause such as "within the noise: equal runs could differ by 4 %". change: later rate ÷ earlier rate."""
    if noise is None:
        return "the noise was not measured"
    within = "within the noise: " if change is not None and abs(change - 1) <= noise else ""
    return f"{within}equal runs could differ by {numbers.percent(noise)}"
