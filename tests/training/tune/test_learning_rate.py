"""The learning-rate range test: the rate grows, the rule picks a rate, the page draws it; flat losses get a note."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from headrace.attach.experiments.range_curve import RangePoint, rate_at
from headrace.cli.main import main
from headrace.report.pages import learning_rate_page
from headrace.training.settings.optimization import OptimizationOptions
from headrace.training.settings.options import Options
from headrace.training.tune.batch_size import batch_words
from headrace.training.tune.compute_rate import ComputeRate
from headrace.training.tune.learning_rate import choose_rate

HELPERS = Path(__file__).parents[2] / "helpers"
OPTIONS = Options(model="m", data="/d", out="/o", batch_size=64)


def points(loss_at: list[float]) -> list[RangePoint]:
    return [RangePoint(rate_at(update, len(loss_at)), loss, loss) for update, loss in enumerate(loss_at)]


def test_the_rate_grows_exponentially_from_a_millionth_to_ten() -> None:
    assert (rate_at(0), rate_at(99)) == (1e-6, pytest.approx(10.0))
    assert rate_at(50) / rate_at(49) == pytest.approx(rate_at(2) / rate_at(1))


def test_the_chosen_rate_is_a_tenth_of_that_of_the_smallest_loss() -> None:
    measured = points([2.0, 2.0, 1.9, 1.2, 1.0, 1.5])
    found = choose_rate(measured, OPTIONS, global_batch=64, diverged=True)
    assert found.rate == pytest.approx(measured[4].rate / 10)
    assert found.learning_rate == pytest.approx(4 * measured[4].rate / 10, rel=0.01)  # for a batch of 256: SGD, linear
    assert found.steepest == measured[2].rate and found.note is None


def test_a_higher_rate_is_suggested_only_where_the_loss_is_smallest_at_the_end() -> None:
    falling, bent = [2.0 - 0.01 * update for update in range(100)], [abs(update - 60) / 60 + 1.0 for update in range(100)]
    at_the_end = choose_rate(points(falling), OPTIONS, global_batch=64, diverged=False)
    behind = choose_rate(points(bent), OPTIONS, global_batch=64, diverged=False)
    assert "may be higher" in str(at_the_end.note)
    assert behind.note is None and behind.learning_rate is not None


def test_no_rate_is_chosen_where_the_loss_does_not_fall() -> None:
    found = choose_rate(points([2.0, 2.0, 1.99, 2.5]), OPTIONS, global_batch=64, diverged=True)
    assert found.learning_rate is None and "less than 2 %" in str(found.note)


def test_no_rate_is_chosen_from_the_low_end_of_the_range_alone() -> None:
    falling = points([2.0, 1.9, 1.7, 1.8])
    found = choose_rate(falling, OPTIONS, global_batch=64, diverged=False, complete=False)
    assert found.learning_rate is found.rate is None and "longer --time-limit" in str(found.note)
    assert choose_rate(falling, OPTIONS, global_batch=64, diverged=True, complete=False).learning_rate is not None


def test_the_drawing_cuts_off_where_the_loss_diverges_so_that_the_fall_is_seen() -> None:
    losses = [2.3] * 40 + [2.3 - 0.01 * step for step in range(20)] + [2.2, 3.0, 9.0]
    found = choose_rate(points(losses), OPTIONS, global_batch=64, diverged=True)
    page = learning_rate_page.render(found, title="t")
    assert "2.11 to 2.49 (cut off; up to 9)" in page
    smoothed = re.findall(r'<polyline points="([^"]*)"', page)[1]
    heights = [float(point.partition(",")[2]) for point in smoothed.split()]
    assert heights[0] == pytest.approx(50, abs=1) and max(heights) == 100 and heights[-1] == 0
    falling = choose_rate(points([2.0, 1.9, 1.7, 1.8]), OPTIONS, global_batch=64, diverged=True)
    assert "1.7 to 2;" in learning_rate_page.render(falling, title="t")


def test_the_range_test_is_deterministic_and_writes_page_and_settings(
    two_colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(HELPERS))
    words = ["tune", "--model", "tiny:make", "--data", str(two_colours), "--image-size", "16", "--batch-size", "8"]
    words += ["--device", "cpu", "--find-learning-rate", "--threads", "1", "--deterministic", "--out", str(tmp_path / "run")]
    files = ["--page", str(tmp_path / "page.html"), "--write", str(tmp_path / "tuned.toml")]
    documents = []
    for _ in range(2):
        assert main([*words, *files, "--json"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    found = documents[0]
    assert found == documents[1]
    tested = found["range_test"]["points"]
    assert tested[0]["rate"] == 1e-6 and len(tested) > 50
    assert 1e-4 < found["learning_rate"] < 100 and math.isfinite(found["range_test"]["steepest"])
    assert tomllib.loads((tmp_path / "tuned.toml").read_text())["learning_rate"] == found["learning_rate"]
    page = (tmp_path / "page.html").read_text()
    assert "<polyline" in page and "arXiv 1506.01186" in page and "learning rate of an update, logarithmic" in page
    assert not (tmp_path / "run").exists()
    assert main([*words, *files]) == 0
    assert f"--learning-rate {found['learning_rate']:.3g}" in capsys.readouterr().out
    assert main([*words, *files, "--device", "sim:1000"]) == 2


def test_the_range_test_runs_with_the_measured_batch_size(
    two_colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(HELPERS))
    tried: list[int] = []

    def rate(options: Options, **_: object) -> ComputeRate:
        tried.append(options.batch_size)
        return ComputeRate(options.batch_size, 100.0, None)

    monkeypatch.setattr("headrace.training.tune.tune.measure_compute_rate", rate)
    words = ["tune", "--model", "tiny:make", "--data", str(two_colours), "--image-size", "16", "--batch-size", "auto"]
    words += ["--device", "cpu", "--find-learning-rate", "--threads", "1", "--out", str(tmp_path / "run")]
    files = ["--page", str(tmp_path / "page.html"), "--write", str(tmp_path / "tuned.toml"), "--json"]
    assert main([*words, *files]) == 0
    found = json.loads(capsys.readouterr().out)
    assert tried[0] == found["batch_size"] == found["range_test"]["global_batch"] == 32
    assert tomllib.loads((tmp_path / "tuned.toml").read_text())["batch_size"] == 32
    assert (
        found["batch_note"].startswith("a batch of 32 images: ")
        and "linear in the batch size (Goyal et al. 2017)" in found["batch_note"]
    )


def test_what_a_batch_size_means_follows_optimizer_ranks_and_accumulation() -> None:
    sgd = replace(OPTIONS, epochs=90, batch_size=64, optimization=OptimizationOptions(accumulate=2))
    assert batch_words(sgd, 1_281_167, 8) == (
        "a batch of 1,024 images: 1,251 steps per epoch; sgd's learning rate grows to 1.02 over 6,255 warm-up steps, "
        "linear in the batch size (Goyal et al. 2017)"
    )
    adam = replace(OPTIONS, epochs=90, batch_size=1024, optimization=OptimizationOptions(optimizer="adamw"))
    assert "adamw's learning rate grows to 0.002 over" in batch_words(adam, 1_281_167, 1)
    assert batch_words(adam, 1_281_167, 1).endswith("by the square root of the batch size")


def test_no_rate_is_chosen_where_the_loss_is_smallest_as_the_test_begins() -> None:
    """A noisy loss of small batches falls by chance; the rule would then give a rate below all that were used."""
    losses = [6.1 - 0.03 * update for update in range(8)] + [6.2] * 92
    found = choose_rate(points(losses), OPTIONS, global_batch=64, diverged=True)
    assert found.learning_rate is found.rate is None
    assert "larger --batch-size" in str(found.note)
