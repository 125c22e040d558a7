"""Checks of a diagnosis that the tests of all rules share."""

from __future__ import annotations

import re

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.kinds import KINDS
from headrace.diagnosis.result.model import SHARES, Diagnosis, Fix
from headrace.report.text.screen import first_screen
from headrace.report.text.step_parts import WAITING, part_style
from headrace.session.model import Session


def input_share(diagnosis: Diagnosis) -> float:
    return sum(share for name, share in diagnosis.share_of_step.items() if part_style(name).group == WAITING)


def check_agreement(session: Session) -> Diagnosis:
    """Diagnose a session, and check that all places that speak of waiting for input agree."""
    diagnosis = diagnose(session)
    if diagnosis.step_s is None or diagnosis.wait_share is None:
        return diagnosis
    assert sum(diagnosis.share_of_step.values()) == pytest.approx(1)
    assert input_share(diagnosis) == pytest.approx(diagnosis.wait_share, abs=1e-6), "the bar and wait_share"
    evidence = [words for found in (*diagnosis.findings, *diagnosis.configuration) for words in found.evidence]
    assert not [words for words in evidence if re.search(r"\d%", words)], "per cent are written as `28 %`"
    starts = ("that ", "it ", "which ", "and ", "so ", "but ", "of ", "in between ")
    assert not [words for words in evidence if words.startswith(starts)], "every sentence stands for itself"
    if diagnosis.share_of_step["standstill"]:
        return diagnosis  # of a step that never ended, no part is known
    rows = {row.name: row for row in diagnosis.percentiles}
    wait, rest, step = rows["wait for input"], rows["compute"], rows["step"]
    mean_wait_s = diagnosis.wait_share * diagnosis.step_s
    assert wait.min - 1e-9 <= mean_wait_s <= wait.max + 1e-9, "the mean wait lies between the extremes of the percentiles"
    assert rest.min - 1e-9 <= diagnosis.step_s - mean_wait_s <= rest.max + 1e-9
    assert step.min - 1e-9 <= diagnosis.step_s <= step.max + 1e-9
    if wait.min > 0.9 * step.max:
        assert diagnosis.wait_share > 0.9, "every step is nearly all input"
    screen = first_screen(diagnosis, session=session)
    drawn = sum(part.percent for part in screen.parts if part_style(part.key).group == WAITING)
    assert drawn == pytest.approx(100 * diagnosis.wait_share, abs=len(screen.parts)), "the drawn bar, in whole per cent"
    return diagnosis


def fix(diagnosis: Diagnosis, start: str) -> Fix:
    """Return the first fix whose id begins with `start`."""
    return next(item for item in diagnosis.fixes if item.id.startswith(start))


def check(session: Session, verdict: str) -> Diagnosis:
    """Diagnose a session, and check the verdict and what holds for every diagnosis."""
    diagnosis = check_agreement(session)
    assert diagnosis.verdict == verdict, (diagnosis.verdict, diagnosis.findings)
    assert diagnosis.verdict in KINDS
    assert diagnosis.primary is not None
    assert diagnosis.primary.evidence
    assert sum(diagnosis.share_of_step.values()) == pytest.approx(1)
    assert list(diagnosis.share_of_step) == list(SHARES)
    assert all(share >= 0 for share in diagnosis.share_of_step.values())
    return diagnosis
