"""`compare_sessions`: faster only beyond the noise, parts of the step that changed, settings that differ."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from headrace.cli.main import main
from headrace.diagnosis.diagnose import diagnose
from headrace.report.compare_sessions import SessionComparison, compare_sessions
from headrace.session.model import Session
from session_factory import make_session


def compared(before: Session, after: Session) -> SessionComparison:
    return compare_sessions(before, after, diagnose(before), diagnose(after))


def test_more_workers_are_seen_as_the_cause_of_a_faster_run() -> None:
    found = compared(make_session(workers=1, cpu_s=0.06), make_session(workers=4, cpu_s=0.06))
    assert found.word == "faster"
    assert found.change is not None and found.change > 2
    assert [(one.name, one.before, one.after) for one in found.differences] == [("num_workers", "1", "4")]
    assert found.moved[0].part == "input_cpu" and found.moved[0].change_s < -0.02
    assert "faster" in found.sentences[0] and found.sentences[2].startswith("Per step, waiting for input: decode")


def test_equal_runs_that_differ_by_noise_are_about_the_same() -> None:
    found = compared(make_session(jitter=0.1, seed=1), make_session(jitter=0.1, seed=2))
    assert found.word == "about the same"
    assert found.differences == ()
    assert found.noise is not None and 0 < found.noise < 0.2


def test_fewer_workers_are_slower() -> None:
    assert compared(make_session(workers=4, cpu_s=0.06), make_session(workers=1, cpu_s=0.06)).word == "slower"


def test_steps_of_other_size_are_compared_per_image() -> None:
    found = compared(make_session(batch_size=32), make_session(batch_size=64))
    assert found.per == "1,000 images"
    assert found.change == pytest.approx(2, rel=0.05)
    assert sum(part.before_s or 0 for part in found.moved) == pytest.approx(1000 / (found.before_img_s or 1))


def test_a_session_without_steps_is_not_comparable() -> None:
    found = compared(Session(), make_session())
    assert found.word == "not comparable" and found.change is None and found.noise is None
    assert "not measured" in found.sentences[0]


def test_short_runs_have_no_known_noise() -> None:
    short = make_session(steps=12)
    assert compared(short, replace(short)).noise is None


@pytest.mark.parametrize("as_json", [True, False])
def test_the_verb_prints_json_or_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    before = make_session(workers=1, cpu_s=0.06).save(tmp_path / "a")
    after = make_session(workers=4, cpu_s=0.06).save(tmp_path / "b")
    assert main(["compare", str(before), str(after), *(["--json"] if as_json else [])]) == 0
    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out)["word"] == "faster"
    else:
        assert "The second run is faster" in out and "num_workers" in out


def test_the_verb_names_a_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(tmp_path / "none"), str(tmp_path)]) == 1
    assert str(tmp_path / "none") in capsys.readouterr().err
