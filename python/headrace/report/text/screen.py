"""The first screen as data: verdict, rates, the bar of one step, at most five fixes, what was not measured.

`terminal` and `html` draw the same `FirstScreen`, so that they cannot disagree.
"""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from headrace.diagnosis.findings.reachable import gain_of
from headrace.diagnosis.measure.prediction import NO_HELP
from headrace.diagnosis.result.kinds import VerdictKind, verdict_kind
from headrace.diagnosis.result.model import SHARES, Diagnosis, End, Fix, Note, ending_words
from headrace.report.text import numbers
from headrace.report.text.step_parts import part_style
from headrace.session.model import Session
from headrace.system.text.sizes import count_text

__all__ = ["MAX_FIXES", "FirstScreen", "FixLine", "StepPart", "capitalised", "first_screen", "simulated_note"]

MAX_FIXES = 5
ORDER_NOTE = "The order of these fixes is not established: their intervals overlap."
MOST_COMMAND, MOST_FIX_COMMAND = 400, 4000
"""Characters of a command at the top of a screen, and in the row of a fix: a shell may have put 100,000 files into it."""
ROUNDING = 1.005
"""Call two rates equal if their ratio is below this: printed with three digits they look the same."""

PLACED = re.compile(r"\S+ \([^()]+:\d+\)")
"""A function and where it is, as at the beginning of a clause."""

SIMULATED = re.compile(r"sim:[A-Za-z0-9-]+")


@dataclass(frozen=True, slots=True)
class StepPart:
    """One part of a step. percent: whole per cent of the step; all parts sum to 100. mean_s: mean seconds per step."""

    key: str
    label: str
    short: str
    share: float
    percent: int
    mean_s: float | None


@dataclass(frozen=True, slots=True)
class FixLine:
    """One row of the table of fixes.

    helps: whether the measured gain (else the predicted one) reaches 3 % (`NO_HELP`); None if neither is known. then: what
    limits the rate once the fix is applied.
    """

    fix: Fix
    helps: bool | None
    then: str

    @property
    def command(self) -> str | None:
        """The command that applies the fix, shortened if very long; None if the fix needs an edit."""
        return None if self.fix.command is None else _shortened(self.fix.command, MOST_FIX_COMMAND)

    @property
    def gain_words(self) -> str:
        """The gain as text: "×2.3", "+4 %", "≈ 0" or "not predicted"."""
        if self.fix.gain is None:
            return "not predicted"
        return numbers.gain(self.fix.gain) if self.fix.gain >= NO_HELP else "≈ 0"


@dataclass(frozen=True, slots=True)
class FirstScreen:
    """Everything on the first screen, in words and numbers. None means "not measured".

    `share`: of the leading finding, 0 to 1, of `share_of`. `reachable_img_s`, `reachable_words`: rate with the best fix, and
    its gain in words. `recoverable`: hours of every 100 `hours_unit` that the best fix saves; `usd`: their price. `no_gain`:
    what is said in their place where there are fixes and none is known to help, else empty.
    `spread`: (name, p50, p95) in seconds of the waiting part and of the computing part of the steps. `absent_parts`: parts of
    the step that were not measured. `quality`: noise, cost of measuring, time to the verdict. `simulated`: label of a simulated
    device. `advice`: what to do where no fix is predicted. `notes`: as in the diagnosis. `is_healthy`: whether the
    verdict reports no problem; it decides the colour. `end`, `end_evidence`: how the command
    ended if it did not end as it should, else empty.
    """

    command: str
    kind: str
    headline: str
    explanation: str
    share: float | None
    share_of: str
    confidence: float
    confidence_word: str
    scope: tuple[str, ...]
    evidence: tuple[str, ...]
    img_s: float | None
    reachable_img_s: float | None
    reachable_words: str
    ceiling_img_s: float | None
    ceiling_words: str
    recoverable: float | None
    hours_unit: str
    usd: float | None
    no_gain: str
    order_note: str | None
    parts: tuple[StepPart, ...]
    absent_parts: tuple[str, ...]
    step_s: float | None
    step_p95_s: float | None
    spread: tuple[tuple[str, float, float], ...]
    fixes: tuple[FixLine, ...]
    more_fixes: int
    not_measured: tuple[str, ...]
    quality: tuple[str, ...]
    simulated: str | None
    advice: str | None
    notes: tuple[Note, ...]
    is_healthy: bool
    end: str = ""
    end_evidence: tuple[str, ...] = ()

    @property
    def no_fix(self) -> str:
        """The sentence to print in place of the table of fixes when there is no fix."""
        return verdict_kind(self.kind).without_fix or self.advice or "No fix is known for this."

    @property
    def nothing_missing(self) -> str:
        """The sentence to print when the list of what was not measured is empty."""
        return "No step was timed." if self.step_s is None else "Everything that headrace looks for was measured."


def first_screen(diagnosis: Diagnosis, *, session: Session | None = None, usd_per_hour: float | None = None) -> FirstScreen:
    """Return the first screen of a diagnosis. `usd_per_hour`: price of one GPU-hour, for the wasted money."""
    simulated = simulated_note(diagnosis, session)
    headline = _headline(diagnosis, simulated, _has_gpu(diagnosis, session))
    parts, absent = _parts(diagnosis)
    fixes = diagnosis.fixes
    primary = diagnosis.primary
    lines = [_fix_line(fix) for fix in fixes]
    recoverable = diagnosis.recoverable_gpu_hours_per_100
    img_s, ceiling = diagnosis.img_s, diagnosis.ceiling_img_s
    ended = diagnosis.end if diagnosis.end is not None and diagnosis.end.is_failure else None
    return FirstScreen(
        command=_command(diagnosis.command),
        kind=diagnosis.verdict,
        headline=headline,
        explanation=_explanation(diagnosis, headline),
        share=primary.share if primary else None,
        share_of=primary.share_of if primary else "step",
        confidence=diagnosis.confidence,
        confidence_word=diagnosis.confidence_word,
        scope=_scope(diagnosis),
        evidence=tuple(sentence for sentence in (primary.evidence if primary else ()) if sentence != diagnosis.summary),
        img_s=img_s,
        ceiling_img_s=ceiling,
        ceiling_words=_ceiling_words(diagnosis),
        reachable_img_s=diagnosis.reachable_img_s,
        reachable_words=_reachable_words(diagnosis),
        recoverable=recoverable,
        hours_unit="GPU-hours" if _has_gpu(diagnosis, session) and not simulated else "hours",
        usd=recoverable * usd_per_hour if recoverable is not None and usd_per_hour is not None else None,
        no_gain=_no_gain(lines),
        order_note=ORDER_NOTE if diagnosis.fix_order_established is False else None,
        parts=parts,
        absent_parts=absent,
        step_s=diagnosis.step_s,
        step_p95_s=diagnosis.step_p95_s,
        spread=_spread(diagnosis),
        fixes=tuple(lines[:MAX_FIXES]),
        more_fixes=max(0, len(fixes) - MAX_FIXES),
        not_measured=diagnosis.not_measured,
        quality=_quality(diagnosis),
        simulated=simulated,
        advice=_kind(diagnosis).advice if primary is None or not primary.fixes else None,
        notes=diagnosis.notes,
        is_healthy=_kind(diagnosis).severity == "none",
        end=ended.text if ended is not None else "",
        end_evidence=_end_evidence(ended),
    )


def _end_evidence(ended: End | None) -> tuple[str, ...]:
    """What shows how the command ended, and what to do about it."""
    if ended is None:
        return ()
    return (*ended.evidence, f"what helps: {ended.advice}") if ended.advice else ended.evidence


def capitalised(clause: str) -> str:
    """Return a clause with its first letter capitalised, but code as it is: `next()`, `headrace run`, `log (log.py:9)`."""
    if PLACED.match(clause):
        return clause
    first = clause.split()[0].rstrip(":") if clause.strip() else ""
    return clause[:1].upper() + clause[1:] if first.isalpha() and first != "headrace" else clause


def _kind(diagnosis: Diagnosis) -> VerdictKind:
    return verdict_kind(diagnosis.verdict, cause_seen=_is_seen(diagnosis))


def _is_seen(diagnosis: Diagnosis) -> bool:
    return diagnosis.primary is None or diagnosis.primary.cause_seen


def _ceiling_words(diagnosis: Diagnosis) -> str:
    """Return in words what the ceiling assumes, and whether the best fix exceeds it (`threads=N` also shortens computing)."""
    best = next((fix for fix in diagnosis.fixes if fix.id == diagnosis.reachable_fix), None)
    reached, limit = diagnosis.reachable_img_s, (diagnosis.ceiling_img_s or math.inf) * ROUNDING
    if best is None or reached is None or reached <= limit:
        return "if the input kept up"
    if (best.predicted_img_s or 0.0) <= limit:
        return "if the input kept up, as predicted; the best fix was measured above it"
    return "if only the input kept up; the best fix also shortens the rest of the step"


def _reachable_words(diagnosis: Diagnosis) -> str:
    """Return the gain of the best fix as text, with the word predicted or measured; "" without a fix."""
    fix = next((fix for fix in diagnosis.fixes if fix.id == diagnosis.reachable_fix), None)
    if fix is None:
        return ""
    return f"{numbers.gain(gain_of(fix))} {'predicted' if fix.verified_change is None else 'measured'}"


def simulated_note(diagnosis: Diagnosis, session: Session | None = None) -> str | None:
    """Return the label of figures from a simulated device ("simulated A100"), or None for a real run.

    It is read from the diagnosis, the session, or the command (`--device sim:a100`).
    """
    facts = session.facts if session else {}
    note = diagnosis.environment.get("simulated") or facts.get("simulated")
    if note:
        return str(note)
    devices = (word.removeprefix("--device=") for word in diagnosis.command)
    return next((f"simulated {word.removeprefix('sim:').upper()}" for word in devices if SIMULATED.fullmatch(word)), None)


def _command(argv: Sequence[str]) -> str:
    """Return the command as typed, with the path of Python shortened to its name, cut after `MOST_COMMAND` characters."""
    if not argv:
        return "(command unknown)"
    first = PurePath(argv[0]).name if PurePath(argv[0]).name.startswith("python") else argv[0]
    return _shortened(shlex.join((first, *argv[1:])), MOST_COMMAND)


def _shortened(command: str, most: int) -> str:
    """Return the command; of one longer than `most` characters, its beginning and its length."""
    return command if len(command) <= most else f"{command[:most]}… ({len(command):,} characters)"


def _has_gpu(diagnosis: Diagnosis, session: Session | None) -> bool:
    """Return whether the job computes on a GPU: the machine has one, and the training process did not report another device."""
    if session is not None and (session.facts.get("configuration") or {}).get("device") == "cpu":
        return False
    named = diagnosis.environment.get("gpu") or diagnosis.environment.get("gpus")
    mapped = diagnosis.heat_map is not None and bool(diagnosis.heat_map.gpus)
    return bool(named) or mapped or bool(session and session.host.gpus)


def _headline(diagnosis: Diagnosis, simulated: str | None, has_gpu: bool) -> str:
    device = f"The {simulated}" if simulated else "The GPU" if has_gpu else "The training"
    if diagnosis.verdict == "COMPUTE_BOUND" and _is_seen(diagnosis) and (beside := _beside_computing(diagnosis)):
        return f"{device} computes {beside}."
    wait = _headline_share(diagnosis)
    share = f" {numbers.percent(wait)} of the time" if wait is not None and wait >= 0.01 else ""
    sentence = _kind(diagnosis).headline
    return sentence.format(Device=device, share=share, summary=capitalised(diagnosis.summary))


def _headline_share(diagnosis: Diagnosis) -> float | None:
    """Return the share of the time in the headline: of the wait for input, what the verdict explains; None if not measured."""
    primary = diagnosis.primary
    if diagnosis.wait_share is None or primary is None or primary.share is None or primary.share_of != "step":
        return diagnosis.wait_share
    return primary.share if _kind(diagnosis).is_input else diagnosis.wait_share


def _beside_computing(diagnosis: Diagnosis) -> str:
    """Return the shares of computing and of the largest other cause in words; "" where none of them was measured."""
    primary = diagnosis.primary
    second = next((found for found in diagnosis.findings[1:] if found.share), None)
    if not diagnosis.steps or primary is None or not primary.share or second is None or not second.share:
        return ""
    label = verdict_kind(second.kind, cause_seen=second.cause_seen).label
    return f"{numbers.percent(primary.share)} of the time; next: {label}, {numbers.percent(second.share)}"


def _explanation(diagnosis: Diagnosis, headline: str) -> str:
    """Return the verdict in a clause; empty where the headline says nearly the same."""
    clause = diagnosis.summary or _kind(diagnosis).summary
    alike = difflib.SequenceMatcher(None, clause.lower(), headline.lower()).ratio()
    return "" if alike > 0.75 else clause


def _scope(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the extent of the session in words: steps, ranks, duration, and the command's end if no sentence above says it."""
    known = diagnosis.steps or diagnosis.verdict == "INSUFFICIENT_DATA"  # a finished job has a verdict without steps
    found = [count_text(diagnosis.steps, "step")] if known else []
    if diagnosis.ranks:
        found.append(count_text(diagnosis.ranks, "rank"))
    if diagnosis.duration_s is not None:
        found.append(numbers.seconds(diagnosis.duration_s))
    if diagnosis.time_limit_s is not None:
        found.append("ended by --seconds")
    elif diagnosis.exit_code and (diagnosis.end is None or not diagnosis.end.is_failure):
        found.append(ending_words(diagnosis.exit_code))
    return tuple(found)


def _quality(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return in words the noise, the cost of measuring, and the time to the verdict, as far as they were measured."""
    found = []
    if diagnosis.noise:
        found.append(f"noise {diagnosis.noise}")
    if diagnosis.hook_cost_share is not None:
        found.append(f"measuring cost {numbers.percent(diagnosis.hook_cost_share, digits=2)} of a step")
    if diagnosis.time_to_verdict_s is not None:
        found.append(f"verdict after {numbers.seconds(diagnosis.time_to_verdict_s)}")
    return tuple(found)


def _parts(diagnosis: Diagnosis) -> tuple[tuple[StepPart, ...], tuple[str, ...]]:
    """Return the parts of the bar in order, `other` included, and the labels of the parts that were not measured."""
    given = {key: share for key, share in diagnosis.share_of_step.items() if math.isfinite(share) and share > 0}
    if not given.keys() - {"other"}:  # a bar of `other` alone says nothing
        return (), tuple(SHARES.values()) if diagnosis.share_of_step else ()
    rest = 1.0 - math.fsum(given.values())
    if rest > 1e-6:
        given["other"] = given.get("other", 0.0) + rest
    total = math.fsum(given.values())
    order = [key for key in (*SHARES, *sorted(set(given) - set(SHARES))) if key in given]
    shares = [given[key] / total for key in order]
    mean_s = diagnosis.step_s
    parts = tuple(
        StepPart(
            key=key,
            label=SHARES.get(key, key.replace("_", " ")),
            short=part_style(key).short,
            share=share,
            percent=whole,
            mean_s=None if mean_s is None else share * mean_s,
        )
        for key, share, whole in zip(order, shares, numbers.rounded_to_whole(shares), strict=True)
    )
    return parts, tuple(label for key, label in SHARES.items() if key not in diagnosis.share_of_step)


def _spread(diagnosis: Diagnosis) -> tuple[tuple[str, float, float], ...]:
    rows = {row.name: row for row in diagnosis.percentiles if row.unit == "s"}
    named = (("waiting", rows.get("wait for input") or rows.get("wait")), ("computing", rows.get("compute")))
    return tuple((name, row.p50, row.p95) for name, row in named if row is not None)


def _fix_line(fix: Fix) -> FixLine:
    helps = None if fix.gain is None and fix.verified_change is None else gain_of(fix) >= NO_HELP
    return FixLine(fix=fix, helps=helps, then=_bottleneck_label(fix.next_bottleneck or ""))


def _no_gain(lines: Sequence[FixLine]) -> str:
    """Return a clause for fixes none of which is known to help; empty where one helps, and without fixes."""
    if not lines or any(line.helps for line in lines):
        return ""
    return (
        "no fix below is predicted to help" if all(line.helps is False for line in lines) else "no fix below has a known gain"
    )


def _bottleneck_label(name: str) -> str:
    """Return the label of a verdict kind; other text unchanged."""
    return verdict_kind(name).label if name.isupper() else name
