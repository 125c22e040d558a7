"""The conditions of `diagnose --fail-if`."""

from __future__ import annotations

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.fail_if import Condition
from headrace.errors import HeadraceError, UsageError
from headrace.session.model import Session
from session_factory import example_session


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("input_share>0.1", True),
        ("input_share > 0.1 and steps >= 100000", False),
        ("verdict == 'CPU_PREP' or img_s < 1", True),
        ("not (wait_share > 0.99)", True),
        ("0.1 < input_share < 0.99", True),
        ("img_s", True),
        ("not img_s", False),
    ],
)
def test_a_condition_is_evaluated_on_the_diagnosis(text: str, holds: bool) -> None:
    assert Condition(text).holds(diagnose(example_session())) is holds


@pytest.mark.parametrize("text", ["input_share >", "__import__('os')", "speed > 1", "img_s.real > 1", "verdict > 3"])
def test_a_text_that_is_no_condition_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        Condition(text).holds(diagnose(example_session()))


def test_a_condition_on_a_value_that_was_not_measured_is_an_error() -> None:
    with pytest.raises(HeadraceError, match="not measured"):
        Condition("img_s > 1").holds(diagnose(Session(command=("a",))))
