"""The verdict while the command runs, the conditions of --fail-if, and what fixes can be tried from outside."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.fail_if import Condition
from headrace.diagnosis.model import Diagnosis, Fix
from headrace.errors import HeadraceError, UsageError
from headrace.profiling.first_verdict import FirstVerdict
from headrace.profiling.verify_fixes import launch_with
from headrace.session.model import Session
from session_factory import example_session, make_session


def test_first_verdict_comes_from_a_growing_session(tmp_path: Path) -> None:
    told: list[Diagnosis] = []
    came = threading.Event()

    def tell(diagnosis: Diagnosis) -> None:
        told.append(diagnosis)
        came.set()

    with FirstVerdict(tmp_path, tell) as first:
        example_session().save(tmp_path)
        assert came.wait(20)
    assert [diagnosis.verdict for diagnosis in told] == ["CPU_PREP"]
    assert first.after_s is not None


def test_no_first_verdict_without_steps(tmp_path: Path) -> None:
    Session(command=("a",)).save(tmp_path)
    with FirstVerdict(tmp_path, lambda diagnosis: pytest.fail("too early")) as first:
        pass
    assert first.after_s is None


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("input_share>0.1", True),
        ("input_share > 0.1 and steps >= 100000", False),
        ("verdict == 'CPU_PREP' or img_s < 1", True),
        ("not (wait_share > 0.99)", True),
        ("0.1 < input_share < 0.99", True),
    ],
)
def test_conditions(text: str, holds: bool) -> None:
    assert Condition(text).holds(diagnose(example_session())) is holds


@pytest.mark.parametrize("text", ["input_share >", "__import__('os')", "speed > 1", "img_s.real > 1", "img_s", "verdict > 3"])
def test_conditions_that_are_none_are_usage_errors(text: str) -> None:
    if text == "img_s":
        assert Condition(text).holds(diagnose(example_session()))
        return
    with pytest.raises(UsageError):
        Condition(text).holds(diagnose(example_session()))


def test_condition_on_what_was_not_measured_is_an_error() -> None:
    with pytest.raises(HeadraceError, match="not measured"):
        Condition("img_s > 1").holds(diagnose(Session(command=("a",))))


def test_fixes_that_can_be_tried_from_outside() -> None:
    loader = make_session(workers=2).loaders[0]
    launch = launch_with(Fix("num_workers=6", ""), loader)
    assert launch is not None
    assert json.loads(dict(launch.env)["HEADRACE_OVERRIDES"]) == {
        "match": {"num_workers": 2, "batch_size": 32},
        "set": {"num_workers": 6},
    }
    assert "headrace.accelerate.hook" in (launch_with(Fix("headrace_run", ""), loader) or launch).hooks
    assert launch_with(Fix("pack", ""), loader) is None
    assert launch_with(Fix("remove_sync", ""), loader) is None
