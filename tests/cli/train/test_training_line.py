"""The progress line of a training run fits its terminal and always holds rate and time left, or the seconds so far."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from headrace.cli.train.training_line import TrainingLine
from terminal import Terminal

WORDS = "resnet50 epoch 12 step 123456/900000 loss 2.301 wait 13 % top-1 76.1 %"


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("width", [60, 79, 80, 100, 200])
def test_the_line_fits_and_ends_with_rate_and_time_left(width: int) -> None:
    line = TrainingLine("resnet50", Clock())
    line.update(WORDS, images=1_000_000, left=3_000_000, rate=12_345.0)
    text = line.text(width)
    assert len(text) < width
    assert text.endswith("12,345 img/s  left 0:04:03")
    assert "epoch 12 step 123456/900000" in text or width < 60
    assert text.startswith("resnet50 ") == (width >= 100)


def test_the_time_left_is_there_before_a_rate_is_measured_and_counts_down() -> None:
    clock = Clock()
    line = TrainingLine("m", clock)
    clock.now_s += 50  # of preparing, which is no training
    line.begin("first step")
    clock.now_s += 10
    line.update("m epoch 1 step 4/40", images=40, left=360, rate=None)
    assert line.text(80) == "m epoch 1 step 4/40  left 0:01:30"
    clock.now_s += 7
    assert line.text(80) == "m epoch 1 step 4/40  left 0:01:23"


@pytest.mark.parametrize("width", [48, 60, 80])
def test_a_phase_without_steps_shows_the_seconds_that_have_passed(width: int) -> None:
    clock = Clock()
    line = TrainingLine("m", clock)
    clock.now_s += 12
    assert line.text(width) == "m: preparing … 12 s"
    line.update(WORDS, images=8, left=8, rate=2.0)
    line.begin("evaluating")
    clock.now_s += 3
    text = line.text(width)
    assert ": evaluating … 3 s  2 img/s  left 0:00:01" in text and len(text) < width
    line.end()
    assert "evaluating" not in line.text(width)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80])
def test_a_training_run_in_a_terminal(image_folder: Callable[..., Path], tmp_path: Path, columns: int) -> None:
    """Steps of 1.2 s: the line is one line, follows each step, and ends with the last step after Ctrl-C."""
    data = image_folder(classes=2, per_class=12)
    words = ["--model", "resnet20", "--image-size", "32", "--batch-size", "12", "--device", "sim:10", "--threads", "1"]
    words += ["--epochs", "200", "--data", str(data), "--val", str(data), "--out", str(tmp_path / "out")]
    terminal = Terminal(columns)
    terminal.start([sys.executable, "-m", "headrace", "train", *words])
    terminal.wait_for(r"preparing … \d+ s")
    terminal.wait_for(r"first step … \d+ s")
    terminal.wait_for(r"step 4/\d+")
    terminal.type("\x03")
    assert terminal.finish() == 130
    shown = "\n".join(terminal.screen.text())
    (last,) = re.findall(r"stopped after (\d+) steps?", shown)
    progress = [line for line in terminal.screen.text() if re.search(r"epoch \d+ step \d+/|preparing", line)]
    assert len(progress) == 1, shown  # one line, which was never wrapped or drawn twice
    assert re.search(rf"step {last}/\d+ .*left \d+:\d\d:\d\d$", progress[0]), progress
    steps = [
        (at_s, int(found[1]))
        for at_s, lines in terminal.frames
        for found in [re.search(r" step (\d+)/", "\n".join(lines))]
        if found
    ]
    seen = sorted({number for _, number in steps})
    # The line follows each step; a busy machine may skip drawings, so some of the steps in between are enough.
    assert seen[-1] == int(last) and [number for _, number in steps] == sorted(number for _, number in steps)
    assert 2 * len(seen) >= int(last), seen
    for at_s, lines in terminal.frames:
        line = next((line for line in lines if "epoch" in line and " step " in line), None)
        assert line is None or len(line) < columns, (at_s, line)
        assert line is None or "left" in line or "first step … " in line, (at_s, line)
        assert "-:--" not in "\n".join(lines), at_s
