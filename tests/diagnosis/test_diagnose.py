"""A whole diagnosis: missing data, confidence, and what was not measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from diagnosis_checks import check
from headrace.diagnosis.diagnose import diagnose
from headrace.session.machine import Host
from headrace.session.model import Event, Session
from session_factory import MAIN_PID, make_session


@pytest.mark.parametrize(
    ("session", "words"),
    [
        (Session(command=("ls",)), "no PyTorch DataLoader was seen"),
        (replace(make_session(), steps=(), batches=(), loaders=(), samples=()), "no DataLoader was iterated"),
        (replace(make_session(), steps=(), batches=()), "gave no step"),
        (replace(make_session(), steps=make_session().steps[:2]), "2 steps in "),
        (Session(command=("python", "t.py"), exit_code=-15, facts={"time_limit_s": 20}), "for example --seconds 80"),
        (replace(make_session(), steps=(), batches=(), facts={"time_limit_s": 5}), "no step was timed in the 5 s"),
    ],
    ids=["nothing", "no loader", "no step", "two steps", "ended early", "ended before the first batch"],
)
def test_insufficient_data_says_what_was_missing(session: Session, words: str) -> None:
    diagnosis = check(session, "INSUFFICIENT_DATA")
    assert words in diagnosis.findings[0].evidence[0]
    assert diagnosis.img_s is None


def test_missing_sources_are_listed_and_give_none_instead_of_zero() -> None:
    session = make_session(workers=2, cpu_s=0.05, compute_s=0.01, cores=2)
    batches = tuple(replace(batch, queue_s=None) for batch in session.batches)
    diagnosis = diagnose(replace(session, batches=batches, samples=(), host=Host()))
    assert any("scheduler statistics" in words for words in diagnosis.not_measured)
    assert any("no samples" in words for words in diagnosis.not_measured)
    assert diagnosis.heat_map is None
    assert diagnosis.noise is None


def test_confidence_falls_when_other_programs_use_the_cpu() -> None:
    quiet = diagnose(make_session(workers=1, cpu_s=0.03, compute_s=0.015))
    noisy = diagnose(make_session(workers=1, cpu_s=0.03, compute_s=0.015, foreign_cores=1.0))
    assert noisy.confidence < quiet.confidence


def test_loader_iterated_by_another_thread_has_no_ceiling() -> None:
    session = make_session(workers=1, cpu_s=0.03, compute_s=0.0001, cores=2)
    elsewhere = replace(session, events=(Event(MAIN_PID, "iterated_elsewhere", 3.0, 0.0, "loader 0"),))
    seen, unseen = diagnose(session), diagnose(elsewhere)
    assert seen.ceiling_img_s is not None
    assert unseen.ceiling_img_s is None
    assert unseen.wasted_gpu_hours_per_100 is None
    assert unseen.confidence < seen.confidence
    assert any("another thread" in words for words in unseen.not_measured)
