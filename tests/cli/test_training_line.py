"""The progress line of a training run fits its terminal and always holds rate and time left."""

from __future__ import annotations

import pytest
from headrace.cli.output import training_line

WORDS = "resnet50 epoch 12 step 123456/900000 loss 2.301 wait 13% top-1 76.1%"


@pytest.mark.parametrize("width", [60, 79, 80, 100, 200])
def test_the_line_fits_and_ends_with_rate_and_time_left(width: int) -> None:
    line = training_line(WORDS, 1e6, 4e6, 100.0, 12_345.0, width)
    assert len(line) < width
    assert line.endswith("12,345 img/s  left 0:04:03")
    assert "epoch 12 step 123456/900000" in line or width < 60
    assert line.startswith("resnet50 ") == (width >= 100)


def test_the_time_left_is_there_before_a_rate_is_measured() -> None:
    assert training_line("m epoch 1 step 4/40", 40.0, 400.0, 10.0, None, 80) == "m epoch 1 step 4/40  left 0:01:30"
    assert training_line("m: preparing", 0.0, None, 1.0, None, 80).endswith("left -:--:--")
