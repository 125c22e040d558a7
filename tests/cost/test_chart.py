"""The PNG chart of `headrace cost`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from headrace.cli.main import main
from headrace.cost.answer import Answer, Question, answer
from headrace.cost.chart import pareto_figure
from headrace.cost.estimates.budget import Limits
from headrace.cost.estimates.floors import Job
from headrace.cost.estimates.runs import Purchase
from headrace.cost.market.prices import PriceTable
from PIL import Image

WORDS = ["cost", "--model", "resnet50", "--images", "1281167", "--epochs", "16"]


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PRICES", str(tmp_path / "prices"))
    monkeypatch.setenv("HEADRACE_CALIBRATION", str(tmp_path / "calibration.json"))


def asked(*names: str) -> Answer:
    table = PriceTable.load()
    chosen = [(table.instance(name), "ec2") for name in names]
    question = Question(Job(1_281_167, 16, "resnet50"), None, (), chosen, Purchase(), Limits(None, None))  # type: ignore[arg-type]
    return answer(question, [table])


def test_every_row_is_a_point_and_unbeaten_rows_have_their_name() -> None:
    pytest.importorskip("matplotlib")
    found = asked("g5.xlarge", "g5.48xlarge", "p5.48xlarge", "g6.xlarge")
    (axes,) = pareto_figure(found, title="four").axes
    points = sorted(tuple(map(float, place)) for drawn in axes.collections[:2] for place in drawn.get_offsets())
    assert points == sorted((row.total_hours, row.best_usd) for row in found.rows)
    assert {text.get_text() for text in axes.texts} == {row.instance for row in found.pareto}
    (chosen,) = axes.collections[2].get_offsets()
    assert found.choice.row is not None
    assert tuple(map(float, chosen)) == (found.choice.row.total_hours, found.choice.row.best_usd)


def test_the_command_writes_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main([*WORDS, "--png", str(tmp_path / "cost.png")]) == 0
    assert "chart: " in capsys.readouterr().out
    with Image.open(tmp_path / "cost.png") as picture:
        assert (picture.format, picture.size) == ("PNG", (1350, 825))
        assert len(picture.convert("RGB").getcolors(1 << 20) or []) > 3
    assert main([*WORDS, "--png", str(tmp_path / "no" / "folder.png")]) == 2
    assert "cannot write the chart" in capsys.readouterr().err


def test_without_matplotlib_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*WORDS, "--png", str(tmp_path / "cost.png")]) == 1
    printed = capsys.readouterr().err
    assert "--png needs matplotlib" in printed and "'.[plot]'" in printed and "Traceback" not in printed
    assert not (tmp_path / "cost.png").exists()


def test_the_names_in_the_page_s_chart_do_not_lie_over_each_other(tmp_path: Path) -> None:
    page = tmp_path / "cost.html"
    words = ["cost", "--model", "resnet50", "--images", "1281167", "--epochs", "16", "--bytes", "141e9", "--deadline", "10"]
    assert main([*words, "--html", str(page)]) == 0
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)">([^<]+)</text>', page.read_text(encoding="utf-8"))
    assert len(found) >= 4
    boxes = []
    for left, height, anchor, name in found:
        first = float(left) - (6 * len(name) if anchor == "end" else 0)
        boxes.append((first, first + 6 * len(name), float(height)))
    for number, one in enumerate(boxes):
        for other in boxes[:number]:
            assert one[1] <= other[0] or other[1] <= one[0] or abs(one[2] - other[2]) >= 11
