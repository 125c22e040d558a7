"""The progress bar of the other verbs stays on one line of its terminal, with whole counts, rate and time left."""

from __future__ import annotations

import re
import sys

import pytest
from terminal import Terminal

PROGRAM = """
import time
from headrace.cli.shared import output
with output.progress("packing, 28.9 MiB", 12_000) as bar:
    for _ in range(12):
        bar.advance(1000)
        time.sleep(0.1)
"""


@pytest.mark.parametrize("columns", [60, 80, 100, 140])
def test_the_bar_is_one_line(columns: int) -> None:
    terminal = Terminal(columns)
    terminal.start([sys.executable, "-c", PROGRAM])
    assert terminal.finish() == 0
    for at_s, lines in terminal.frames:
        assert len([line for line in lines if line]) <= 1, (at_s, lines)
    (last,) = [line for line in terminal.screen.text() if line]
    assert re.search(r"12,000/12,000 img  [\d,]+ img/s .*left 0:00:00$", last), last
    assert last.startswith("packing")
