"""A verdict comes with the third step, stays, is provisional until enough steps were timed, and is not too sure of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.model import Diagnosis
from headrace.report.pages import html
from headrace.report.text import terminal
from headrace.session.model import Event, Session, Step
from session_factory import MAIN_PID, make_session

STEADY: dict[str, dict[str, Any]] = {
    "compute": {"cpu_s": 0.005, "compute_s": 0.03},
    "few workers": {"workers": 1, "cpu_s": 0.05, "compute_s": 0.01},
    "no workers": {"workers": 0, "cpu_s": 0.03, "compute_s": 0.02},
    "blocked": {"workers": 2, "cpu_s": 0.002, "blocked_s": 0.1, "compute_s": 0.01},
    "many workers": {"workers": 8, "cpu_s": 0.2, "compute_s": 0.01, "cores": 8},
    "slow steps": {"workers": 1, "cpu_s": 9.0, "compute_s": 0.5},
    "busy machine": {"workers": 0, "cpu_s": 0.03, "queue_s": 0.06, "compute_s": 0.01, "cores": 2, "foreign_cores": 1.9},
}


def prefix(session: Session, count: int) -> Session:
    """Return the session as it was after `count` steps."""
    steps = session.steps[:count]
    end_s = steps[-1].start_s + steps[-1].step_s if steps else session.steps[0].start_s
    return replace(
        session,
        steps=steps,
        batches=tuple(batch for batch in session.batches if batch.start_s + batch.wall_s <= end_s),
        samples=tuple(sample for sample in session.samples if sample.time_s <= end_s),
        events=tuple(event for event in session.events if event.start_s + event.duration_s <= end_s),
        exit_code=None,
        duration_s=None,
    )


def growing(session: Session) -> list[Diagnosis]:
    return [diagnose(prefix(session, count)) for count in range(len(session.steps) + 1)]


def check_monotone(found: list[Diagnosis]) -> None:
    has_verdict = [diagnosis.verdict != "INSUFFICIENT_DATA" for diagnosis in found]
    assert has_verdict == sorted(has_verdict), "a verdict that was there does not vanish"
    settled = [not diagnosis.provisional for diagnosis in found if diagnosis.verdict != "INSUFFICIENT_DATA"]
    assert settled == sorted(settled), "a settled verdict does not become provisional again"


@pytest.mark.parametrize("name", STEADY)
def test_verdict_of_a_growing_session_comes_with_the_third_step_and_stays(name: str) -> None:
    found = growing(make_session(steps=60, **STEADY[name]))
    check_monotone(found)
    assert [diagnosis.verdict == "INSUFFICIENT_DATA" for diagnosis in found] == [True] * 3 + [False] * 58
    assert found[3].provisional
    assert not found[-1].provisional
    for diagnosis in found[3:]:
        assert diagnosis.img_s is not None
        assert diagnosis.wait_share is not None
        assert diagnosis.confidence <= found[-1].confidence + 0.05, (diagnosis.steps, diagnosis.confidence)
        assert not diagnosis.provisional or diagnosis.confidence <= 0.45


def test_verdict_does_not_vanish_during_the_experiment_of_headrace() -> None:
    session = make_session(steps=40, workers=2, blocked_s=0.1, cpu_s=0.01)
    first = session.steps[1]
    check_monotone(growing(replace(session, events=(Event(MAIN_PID, "probe", first.start_s, 1.0),))))


def test_verdict_does_not_vanish_when_the_training_loader_starts_after_a_validation() -> None:
    session = make_session(steps=40, workers=1, cpu_s=0.03)
    second = replace(session.loaders[0], loader=1)

    def moved(step: Step, number: int) -> Step:
        return replace(step, loader=0, optimizer_steps=0) if number < 5 else replace(step, loader=1)

    steps = tuple(moved(step, number) for number, step in enumerate(session.steps))
    found = growing(replace(session, loaders=(session.loaders[0], second), steps=steps, batches=()))
    has_verdict = [diagnosis.verdict != "INSUFFICIENT_DATA" for diagnosis in found]
    assert has_verdict == sorted(has_verdict)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_insufficient_data_is_never_sure_and_says_what_was_seen_and_what_is_enough(count: int) -> None:
    diagnosis = diagnose(prefix(make_session(cpu_s=0.05), count))
    assert diagnosis.verdict == "INSUFFICIENT_DATA"
    assert diagnosis.confidence <= 0.3
    assert diagnosis.confidence_word == "low"
    if count:
        words = diagnosis.findings[0].evidence[0]
        assert words.startswith(f"{count} step")
        assert "in 0." in words
        assert "3 steps" in words
        assert "20 after the start" in words


def test_long_steps_settle_a_verdict_before_many_steps_do() -> None:
    session = make_session(steps=19, workers=1, cpu_s=9.0, compute_s=0.5)
    diagnosis = diagnose(session)
    assert diagnosis.steps < 20
    assert not diagnosis.provisional


def test_pages_call_a_provisional_verdict_so_and_say_what_would_be_enough() -> None:
    session = make_session(steps=6, workers=1, cpu_s=0.03, compute_s=0.01)
    diagnosis = diagnose(session)
    page, screen = html.render(diagnosis, session=session), terminal.render(diagnosis, session=session).plain
    assert "provisional" in screen
    assert "provisional" in page
    assert any("6 steps in 0." in words and "20 steady steps" in words for words in diagnosis.findings[0].evidence)
    settled = diagnose(make_session(steps=60, workers=1, cpu_s=0.03, compute_s=0.01))
    assert "provisional" not in terminal.render(settled).plain
    assert diagnosis.to_json()["provisional"] is True
