"""The PNG chart of `headrace cost`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from headrace.cli.main import main
from headrace.cost import page, page_chart
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


Box = tuple[float, float, float, float]


DENSE = ("g5.xlarge", "g5.2xlarge", "g5.48xlarge", "g6.xlarge", "g6.2xlarge", "g6e.2xlarge", "g6e.4xlarge", "p5.48xlarge")


@pytest.mark.parametrize("names", [DENSE, DENSE[:2], ("p5.48xlarge", "p4d.24xlarge", "g4dn.xlarge", "g5.2xlarge")])
def test_no_name_in_the_page_s_chart_lies_over_a_dot_or_a_name_and_the_axes_have_values(names: tuple[str, ...]) -> None:
    drawn = page_chart.chart(asked(*names))
    assert drawn is not None
    drawings = re.findall(r'<svg viewBox="0 0 (\d+) (\d+)"', drawn)
    assert drawings == [("800", "340"), ("350", "380")], "one for wide screens, one that a phone shows whole"
    for svg in re.findall(r"<svg viewBox.*?</svg>", drawn, re.DOTALL):
        width = float(svg.split('"')[1].split()[2])
        dots = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg)]
        texts = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)" class="([\w-]+)">([^<]+)</text>', svg)
        shown = [text for text in texts if text[3] == "name"]
        assert {text[4] for text in shown} == {row.instance for row in asked(*names).pareto[: page_chart.LABELLED]}
        assert sum(text[4].startswith("$") for text in texts) >= 2  # amounts on the upright axis
        assert sum(text[4].replace(".", "").isdecimal() for text in texts) >= 2  # hours on the other
        boxes: list[Box] = []
        for left, base, anchor, _, name in shown:
            first = float(left) - {"start": 0, "middle": 3, "end": 6}[anchor] * len(name)
            boxes.append((first, float(base) - 9, first + 6 * len(name), float(base) + 2))
        for number, (left_x, upper, right_x, lower) in enumerate(boxes):
            assert left_x >= 0 and right_x <= width
            assert not [dot for dot in dots if left_x - 5 < dot[0] < right_x + 5 and upper - 5 < dot[1] < lower + 5]
            for other in boxes[:number]:
                assert right_x <= other[0] or other[2] <= left_x or lower <= other[1] or other[3] <= upper


def test_the_page_states_cost_and_hours_of_the_choice_once_above_its_tables() -> None:
    text = page.render(asked("g5.2xlarge", "p5.48xlarge"), title="two").replace("\u00a0", " ")
    head = text.partition("<main>")[2].partition("</section>")[0]
    cost = re.search(r'class="value accent">(≥ )?\$([\d.]+)<', head)
    assert cost is not None and head.count(f"${cost[2]}") == 1 and "Choice:" not in head
    assert ": the cheapest</span>" in head


def test_a_notebook_shows_the_cheapest_rows_and_the_sentences() -> None:
    found = asked("g5.2xlarge", "p5.48xlarge")
    html = found._repr_html_()
    assert html.count("<tr>") == 3 and "p5.48xlarge</td>" in html and found.sentences()[0][:20] in html
    assert html.index("g5.2xlarge</td>") < html.index("p5.48xlarge</td>")
