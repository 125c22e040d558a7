"""No table on a terminal breaks a number over two lines, however narrow the terminal is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from headrace.cli.profile import compare
from headrace.cli.shared import output
from headrace.cli.train import evaluate, predict
from headrace.report.pages import tables
from headrace.training.inputs.inference import Prediction
from headrace.training.weights.evaluation import Scores
from rich.console import Console

LONG = "a_class_with_a_rather_long_name"


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Console:
    """The console of results, 44 columns wide; it records what is printed."""
    console = Console(width=44, record=True, highlight=False)
    monkeypatch.setattr(output, "stdout_console", console, raising=False)
    return console


def show_predictions() -> None:
    predict._render([Prediction("folder/an_image_of_something.jpg", ((LONG, 0.9734), ("b", 0.0213)))] * 2, None)


def show_evaluation() -> None:
    rows = [{"class": LONG, "images": 123_456, "top1": 0.8765, "mistaken_for": LONG}]
    evaluate._render("resnet50", Scores(0.8765, None, 1.0, 123_456), 1234.0, rows)


def show_comparison() -> None:
    rows = [(LONG, "1,234.5 ms", "12,345.6 ms")]
    output.stdout_console.print(compare._table(("per step of a long name", "before", "after"), rows, whole_values=True))


@pytest.mark.parametrize(
    ("show", "numbers"),
    [
        (show_predictions, ["97.3", "2.1"]),
        (show_evaluation, ["123,456", "87.6 %"]),
        (show_comparison, ["1,234.5 ms", "12,345.6 ms"]),
    ],
)
def test_numbers_stay_whole_in_a_narrow_terminal(narrow: Console, show: Callable[[], None], numbers: list[str]) -> None:
    show()
    printed = narrow.export_text()
    assert all(number in printed for number in numbers), printed


def test_numbers_of_a_page_stay_on_one_line_with_their_units() -> None:
    text = tables.table("t", ("", "why"), [("rule", "first step after 12 s; 28 % of 4 GiB")], numeric_from=3)
    assert "12\u00a0s" in text and "28\u00a0%" in text and "4\u00a0GiB" in text
