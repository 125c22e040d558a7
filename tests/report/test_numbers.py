"""Numbers with their units: digits that mean something, no minus zero, no powers of ten."""

from __future__ import annotations

import pytest
from headrace.report.text import numbers


@pytest.mark.parametrize(
    ("value_s", "whole_s", "text"),
    [
        (0.0123456, 0.06, "12.3 ms"),
        (0.00000246, 0.06, "<0.1 ms"),
        (0.0, 0.06, "0.0 ms"),
        (0.0123456, 1.2, "12 ms"),
        (0.0000246, 0.0012, "0.02 ms"),
        (1.2345, 1.3, "1.23 s"),
        (75.0, 80.0, "75 s"),
        (-0.0123456, 0.06, "−12.3 ms"),
        (0.0123456, 0.0, "12.3 ms"),
        (None, 0.06, "not measured"),
        (float("nan"), 0.06, "not measured"),
    ],
)
def test_a_part_has_the_digits_of_its_whole(value_s: float | None, whole_s: float, text: str) -> None:
    assert numbers.part_of(value_s, whole_s) == text


@pytest.mark.parametrize(
    ("value_s", "text"),
    [(1e-9, "<0.001 ms"), (0.0, "0 ms"), (-0.5, "−500 ms"), (-2.46e-6, "−0.00246 ms"), (1e-6, "0.001 ms"), (-12.0, "−12 s")],
)
def test_a_duration_has_no_power_of_ten(value_s: float, text: str) -> None:
    assert numbers.milliseconds(value_s) == text


@pytest.mark.parametrize(("ratio", "text"), [(0.996, "±0 %"), (1.004, "±0 %"), (1.0, "±0 %"), (0.99, "-1 %"), (1.01, "+1 %")])
def test_a_gain_of_nothing_has_no_sign(ratio: float, text: str) -> None:
    assert numbers.gain(ratio) == text
