"""`headrace cost`: the articles' figures, through the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.main import main
from headrace.cost.market.prices import PriceTable

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def no_kept_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PRICES", str(tmp_path / "prices"))
    monkeypatch.setenv("HEADRACE_CALIBRATION", str(tmp_path / "calibration.json"))


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(*words: str) -> dict[str, Any]:
        assert main(["cost", *words, "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return run


def test_a_hundred_epochs_on_sixteen_k80_cost_what_the_article_says(ask: Ask) -> None:
    words = "--model resnet50 --images 1281167 --epochs 100 --instance p2.16xlarge --img-s 400,700 --spot-discount 0.89"
    slow, fast = ask(*words.split())["rows"]
    assert [round(row["seconds_per_epoch"] / 60, 1) for row in (slow, fast)] == [53.4, 30.5]
    assert [round(row["hours"], 2) for row in (slow, fast)] == [88.97, 50.84]
    assert [round(row["on_demand_usd"], 2) for row in (slow, fast)] == [1281.17, 732.10]
    assert [round(row["spot_usd"], 2) for row in (slow, fast)] == [140.93, 80.53]
    assert [row["img_s"] for row in (slow, fast)] == [400, 700]
    assert {(row["service"], row["binds"], row["price_date"]) for row in (slow, fast)} == {("ec2", "given", "2026-07-20")}
    assert slow["usd_per_epoch"] == pytest.approx(12.8117, abs=1e-4)


def test_fifty_hours_cost_what_the_article_says(ask: Ask) -> None:
    (row,) = ask("--hours", "50", "--instance", "p2.16xlarge", "--spot-discount", "0.89")["rows"]
    assert (round(row["on_demand_usd"], 2), round(row["spot_usd"], 2)) == (720.00, 79.20)
    assert row["hours"] == 50
    assert row["img_s"] is None
    assert row["spot_expected_usd"] > row["spot_usd"]


def test_a_sagemaker_name_is_priced_by_sagemaker(ask: Ask) -> None:
    (row,) = ask("--hours", "1", "--instance", "ml.g5.xlarge")["rows"]
    assert (row["service"], row["instance"], row["on_demand_usd"], row["price_kind"]) == (
        "sagemaker", "g5.xlarge", 1.408, "listed",
    )  # fmt: skip
    (row,) = ask("--hours", "1", "--instance", "ml.g6e.16xlarge")["rows"]
    assert (row["price_kind"], row["on_demand_usd"]) == ("rule", pytest.approx(7.57719 * 1.25))


def test_all_sources_and_dates_are_in_the_document(ask: Ask) -> None:
    found = ask("--model", "resnet50", "--images", "1281167", "--epochs", "16", "--bytes", "141e9", "--input-mode", "auto")
    for row in found["rows"]:
        assert row["price_source"]
        assert row["price_date"].startswith("2026-")
        assert all(floor["img_s"]["source"] and floor["arithmetic"] for floor in row["floors"])
    assert not any(row["historic"] for row in found["rows"])
    assert found["choice"]["best_usd"] == min(row["best_usd"] for row in found["rows"])
    assert {plan["mode"] for plan in found["input_modes"]} == {"local", "file", "fastfile", "pipe", "stream", "fsx", "efs"}
    assert found["pack"]["shards"] == round(141e9 / 2**27)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--hours", "1", "--instance", "p3.2xlrge"], "no instance type 'p3.2xlrge'", "p3.2xlarge"),
        (["--images", "9", "--model", "resnet5", "--instance", "g5.xlarge"], "'resnet5'", "resnet50"),
        (["--images", "9", "--instance", "g5.xlarge"], "neither the rate nor the model", "--model"),
        (["--model", "resnet50"], "number of images", "--images"),
        (["--hours", "1"], "--instance", "--list"),
        (["--hours", "1", "--instance", "g5.xlarge", "--region", "eu-west-1"], "holds us-east-1 only", "refresh"),
        (["--hours", "1", "--instance", "g5.xlarge", "--spot-discount", "60"], "share", "-h"),
        (["--hours", "0", "--instance", "g5.xlarge"], "not a positive number", "-h"),
        (["--model", "resnet50", "--images", "9", "--cpu", "EPYC 7R33", "--img-s-per-core", "9"], "processor", "7R32"),
        (["--model", "resnet50", "--images", "9", "--input-mode", "auto"], "size of the dataset", "--bytes"),
        (["--model", "resnet50", "--images", "9", "--max-instances", "0"], "at least 1", None),
    ],
)
def test_a_wrong_question_is_refused_with_the_remedy(
    words: list[str], message: str, hint: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", *words]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert hint is None or hint in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(("region", "near"), [("us-eest-1", "us-east-1"), ("eu-central1", "eu-central-1"), ("eu-west-1", None)])
def test_an_unknown_region_gets_near_names(region: str, near: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--hours", "5", "--instance", "g5.xlarge", "--region", region]) == 2
    printed = capsys.readouterr().err
    assert ("near names:" in printed) is (near is not None) and (near or "refresh --region") in printed


def test_a_deadline_that_nothing_keeps_names_the_nearest(ask: Ask) -> None:
    found = ask(
        "--model", "resnet152", "--images", "1281167", "--epochs", "600", "--deadline", "0.1", "--instance", "g5.xlarge"
    )
    assert found["choice"] is None
    assert found["nearest"]["instance"] == "g5.xlarge"


def test_figures_of_the_loaders_are_those_of_the_results() -> None:
    results = Path(__file__).parents[2] / "benchmarks" / "results" / "data"
    packing = json.loads((results / "pack.json").read_text())["rows"]
    feed = json.loads((results / "gpu.json").read_text())
    table = PriceTable.load().document
    for name in ("pytorch", "headrace", "headrace-packed"):
        entry = table["loaders"][name]
        (row,) = [row for row in feed["rows"] if row["source"] == entry["row"] and row["model"] is None]
        assert entry["img_s_per_vcpu"] == row["img_s"] / feed["settings"]["workers"], name
    (row,) = [row for row in packing if row["way"] == table["loaders"]["pack"]["row"]]
    assert table["loaders"]["pack"]["img_s_per_vcpu"] == row["cpu_img_s"]["median"]
    assert table["gpus"]["H200"]["resnet50_img_s"] in _numbers(feed)


def _numbers(value: object) -> set[float]:
    if isinstance(value, dict):
        return set().union(*map(_numbers, value.values())) if value else set()
    if isinstance(value, list):
        return set().union(*map(_numbers, value)) if value else set()
    return {float(value)} if isinstance(value, int | float) else set()
