"""`--instance` and `--usd-per-hour` of the verbs that show money."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from headrace.cli.main import main
from headrace.cli.shared.price_options import add_price_options, gpu_usd_per_hour, machine_usd_per_hour
from headrace.errors import UsageError


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PRICES", str(tmp_path / "prices"))


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_price_options(parser, of="this machine")
    return parser.parse_args(words)


def test_the_price_of_an_instance_is_shared_by_its_gpus() -> None:
    args = parsed("--instance", "g5.12xlarge")
    assert machine_usd_per_hour(args) == 5.672
    assert gpu_usd_per_hour(args) == pytest.approx(5.672 / 4)
    assert machine_usd_per_hour(parsed("--instance", "ml.g5.12xlarge")) == 7.09


def test_a_given_price_is_taken_as_it_is() -> None:
    args = parsed("--usd-per-hour", "3.06")
    assert (machine_usd_per_hour(args), gpu_usd_per_hour(args)) == (3.06, 3.06)
    assert machine_usd_per_hour(parsed()) is None
    assert gpu_usd_per_hour(parsed()) is None


@pytest.mark.parametrize("value", ["-1", "nan", "inf"])
def test_a_price_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="--usd-per-hour"):
        machine_usd_per_hour(parsed("--usd-per-hour", value))


def test_an_unknown_instance_is_refused_before_anything_is_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words in (
        ["tune", "--model", "resnet18"],
        ["train", "--model", "resnet18"],
        ["diagnose", "--out", str(tmp_path / "s")],
    ):
        tail = ["--", "true"] if words[0] == "diagnose" else ["--data", str(tmp_path)]
        assert main([*words, "--instance", "g5.xlrge", *tail]) == 2
        assert "g5.xlarge" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_a_finished_run_says_what_it_cost(image_folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    data = str(image_folder(classes=2, per_class=8))
    words = ["train", "--model", "resnet18", "--data", data, "--out", str(tmp_path / "run"), "--batch-size", "4"]
    options = ["--epochs", "1", "--image-size", "32", "--device", "sim:10000", "--usd-per-hour", "36"]
    assert main([*words, *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["usd"] == pytest.approx(found["seconds"] / 100)
