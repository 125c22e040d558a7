"""What all charts share: round marks, and places on a scale."""

from __future__ import annotations

import pytest
from headrace.report.drawing.plot import round_marks, scale
from hypothesis import given
from hypothesis import strategies as st


@given(st.floats(1e-9, 1e15), st.integers(2, 10))
def test_marks_are_multiples_of_a_round_number_up_to_the_end(end: float, least: int) -> None:
    marks = round_marks(end, least)
    step = marks[1]
    assert f"{step:.3e}"[:5] in ("1.000", "2.000", "5.000")
    assert marks == [pytest.approx(step * number) for number in range(len(marks))]
    assert least < len(marks) <= 3 * least + 2
    assert marks[-2] < end <= marks[-1] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("end", "marks"), [(12, [0, 2, 4, 6, 8, 10, 12]), (0.3, [0, 0.1, 0.2, 0.3]), (366, [0, 100, 200, 300, 400])]
)
def test_marks_of_an_axis(end: float, marks: list[float]) -> None:
    assert round_marks(end, 3) == pytest.approx(marks)


def test_values_beyond_a_scale_stand_at_its_ends() -> None:
    place = scale(10, 20, 100, 0)
    assert [place(value) for value in (0, 10, 12.5, 20, 99)] == [100, 100, 75, 0, 0]
    assert scale(5, 5, 0, 100)(5) == 0
