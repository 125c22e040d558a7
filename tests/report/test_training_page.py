"""The page of a training run: one file with the figures of metrics.jsonl, and all text escaped."""

from __future__ import annotations

import contextlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from headrace.errors import SessionError
from headrace.report.pages import training_page

START = {"resumed_from_step": None, "device": "CPU", "images": 1200, "classes": 12, "batch_size": 64, "world_size": 2}


def rows(steps: int) -> list[dict[str, object]]:
    lines: list[dict[str, object]] = [START]
    for step in range(20, steps + 1, 20):
        row = {"step": step, "loss": 3 - step / steps, "learning_rate": 0.1, "img_s": 1000.0 + step, "wait_share": 0.25}
        lines.append(row)
    lines.append({"step": steps, "evaluation": {"top1": 0.8125, "top5": None, "loss": 0.5, "images": 100}})
    return lines


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.names.append(tag)


def test_the_figures_are_those_of_the_file(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows(200)))
    page = training_page.write(metrics, tmp_path / "report.html", title="resnet18 on CPU").read_text()
    for text in ("1,200", "25.0 %", "2.000", "81.25 %", "not measured", "batch 64 × 2 ranks", "resnet18 on CPU"):
        assert text in page.replace("\u00a0", " "), text
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["metrics.jsonl", "report.html"]


def test_the_page_needs_no_network_and_escapes_text() -> None:
    page = training_page.render(rows(100), title="</title><script>alert(1)</script>")
    parser = Tags()
    parser.feed(page)
    assert "script" not in parser.names and "link" not in parser.names
    assert not re.search(r"(?:src|href|url)\s*[=(]", page)


def test_a_long_run_has_a_small_page_with_its_first_and_last_values() -> None:
    page = training_page.render(rows(200_000), title="long")
    assert len(page) < 200_000
    assert "0.00,0.00" in page and "100.00,100.00" in page  # the loss: highest first, lowest last


def test_all_curves_begin_at_the_first_step_and_none_is_empty() -> None:
    first = {"step": 1, "loss": 3.0, "learning_rate": 0.001, "highest_learning_rate": 0.001, "img_s": None, "wait_share": None}
    page = training_page.render([START, first, *rows(60)[1:]], title="from 1").replace("\u00a0", " ")
    assert page.count("steps 1 to 60") == page.count('class="curve"') == 4  # one evaluation is no curve
    short = training_page.render([START, {**first, "img_s": 9.0}], title="one step")
    assert "<svg" not in short and 'class="curves"' not in short


def test_a_first_validation_far_above_the_training_loss_leaves_both_readable() -> None:
    lines = [{"step": step, "evaluation": {"top1": 0.5, "loss": loss}} for step, loss in ((20, 43.2), (40, 2.5), (60, 2.4))]
    page = training_page.render([*rows(60)[:-1], *lines], title="outlier").replace("\u00a0", " ")
    assert "2 to 2.67 (cross entropy), dashed from 43.2" in page


def test_repeated_steps_count_once_with_their_last_values() -> None:
    again = [{**START, "resumed_from_step": 40}, {"step": 60, "loss": 9.5, "learning_rate": 0.1}]
    page = training_page.render([*rows(60), *again], title="resumed").replace("\u00a0", " ")
    assert "9.500" in page and "resumed from step 40" in page
    assert "3 reports" in page


@pytest.mark.parametrize("lines", [[], [START], rows(20)])
def test_a_short_run_has_a_page_too(lines: list[dict[str, object]]) -> None:
    assert "not measured" in training_page.render(lines, title="short")


def test_missing_metrics_are_a_session_error(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="cannot write the report"):
        training_page.write(tmp_path / "absent.jsonl", tmp_path / "report.html", title="x")


def test_configuration_and_environment_are_on_the_page(tmp_path: Path) -> None:
    start = {**START, "environment": {"PyTorch": "9.9 <b>"}}
    metrics = tmp_path / "metrics.jsonl"
    lines = [start, *rows(1000)[1:], *({"step": step, "evaluation": {"top1": 0.5, "loss": 2.0}} for step in (20, 500))]
    metrics.write_text("".join(json.dumps({**line, "image_size": 160 + line.get("step", 0) // 10}) + "\n" for line in lines))
    (tmp_path / "config.toml").write_text(
        'epochs = 7\nseed = 0\nlog = ["tensorboard"]\nlearning_rate = 0.10625\nblurpool = true\n'
    )
    page = training_page.write(metrics, tmp_path / "report.html", title="run").read_text().replace("\u00a0", " ")
    for text in (
        "<dd>7</dd>",
        "<dd>0.1062</dd>",
        "<dd>yes</dd>",
        "9.9 &lt;b&gt;",
        "pixels of training images",
        "in validation",
    ):
        assert text in page, text
    assert page.count('class="default"') == 1  # the seed
    (tmp_path / "config.toml").write_text("no toml")
    assert "configuration</h2>" not in training_page.write(metrics, tmp_path / "report.html", title="run").read_text()


def test_the_page_says_that_a_run_was_interrupted_until_a_later_process_goes_on() -> None:
    stopped = [*rows(60), {"step": 60, "interrupted_by": "SIGINT", "total_steps": 900}]
    page = training_page.render(stopped, title="stopped").replace("\u00a0", " ")
    assert "Interrupted by SIGINT after step 60 of 900" in page
    assert "Interrupted" not in training_page.render([*stopped, *rows(80)[-1:]], title="resumed")
    assert "Interrupted" not in training_page.render(rows(60), title="whole")


def test_every_plot_has_units_and_the_rate_that_was_used_is_named() -> None:
    page = training_page.render(rows(100), title="units").replace("\u00a0", " ")
    assert page.count('class="curve"') == sum(
        page.count(f" {unit}</span>")
        for unit in ("(cross entropy)", "of images", "img/s", "of the time", "per update", "pixels")
    )
    assert "highest learning rate used" in page


def test_one_rank_is_a_rank() -> None:
    start = {"resumed_from_step": None, "step": 0, "device": "CPU", "images": 1, "classes": 2, "batch_size": 4, "world_size": 1}
    page = training_page.render([*rows(100), start], title="one").replace("\u00a0", " ")
    assert "1 rank" in page and "1 ranks" not in page and "1 image of 2 classes" in page


@pytest.mark.parametrize(
    "line",
    [
        *(
            "no json",
            "[]",
            "3",
            '{"loss": 1}',
            '{"loss": 1, "step": "x"}',
            '{"loss": 1, "step": []}',
            '{"loss": 1e400, "step": 1}',
        ),
        *('{"evaluation": 3, "step": 1}', '{"resumed_from_step": 1}', '{"interrupted_by": 1}', "[" * 100_000),
    ],
)
def test_lines_that_no_training_wrote_are_an_error_in_words(line: str, tmp_path: Path) -> None:
    """A run that goes on in a folder of somebody else ends with the page of all its lines."""
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows(200)) + line + "\n")
    with contextlib.suppress(SessionError):
        training_page.write(metrics, tmp_path / "report.html", title="theirs")
