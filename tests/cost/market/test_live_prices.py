"""Prices from AWS. The responses are written by hand after botocore's shapes, and botocore's own models validate them."""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.main import main
from headrace.cost.market import live_prices, spot_advisor
from headrace.cost.market.live_prices import overlaid, read_table, refresh, time_weighted
from headrace.cost.market.prices import PriceTable
from headrace.errors import SourceError, UsageError

boto3 = pytest.importorskip("boto3")
stub = pytest.importorskip("botocore.stub")

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SECRET = "AKIAIOSFODNN7EXAMPLE"

ADVISOR = {
    "ranges": [{"index": 0, "label": "<5%", "dots": 0, "max": 5}, {"index": 1, "label": "5-10%", "dots": 1, "max": 11}],
    "instance_types": {"g5.xlarge": {"cores": 4, "ram_gb": 16.0, "emr": True}},
    "spot_advisor": {
        "eu-central-1": {
            "Linux": {"g5.xlarge": {"s": 62, "r": 3}, "g6.xlarge": {"s": 46, "r": 0}, "g4dn.xlarge": {"s": 0, "r": 4}},
            "Windows": {"g5.xlarge": {"s": 11, "r": 4}},
        }
    },
}
"""The advisor's answer, written after the public file's form."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PRICES", str(tmp_path / "prices"))
    monkeypatch.setenv("HEADRACE_CALIBRATION", str(tmp_path / "calibration.json"))
    monkeypatch.setattr(live_prices, "fetch_advisor", lambda: ADVISOR)


def client(service: str, region: str = "us-east-1") -> Any:
    return boto3.client(service, region_name=region, aws_access_key_id=SECRET, aws_secret_access_key="planted-secret")


def product(attributes: dict[str, str], usd: str) -> str:
    term = {"priceDimensions": {"X.Y.Z": {"unit": "Hrs", "pricePerUnit": {"USD": usd}}}}
    return json.dumps({"product": {"attributes": attributes}, "terms": {"OnDemand": {"X.Y": term}}})


def stubbed(names: dict[str, str], sagemaker: dict[str, str], spot: list[dict[str, Any]]) -> Callable[[str, str], Any]:
    """Return clients that answer as AWS would for a region with these prices."""
    pricing, ec2 = client("pricing"), client("ec2", "eu-west-1")
    answers = stub.Stubber(pricing)
    for name in PriceTable.load().instances:
        found = [product({"instanceType": name}, names[name])] if name in names else []
        answers.add_response("get_products", {"FormatVersion": "aws_v1", "PriceList": found})
    pages = [product({"instanceName": f"ml.{name}", "component": "Training"}, usd) for name, usd in sagemaker.items()]
    answers.add_response("get_products", {"FormatVersion": "aws_v1", "PriceList": pages[:1], "NextToken": "more"})
    answers.add_response("get_products", {"FormatVersion": "aws_v1", "PriceList": pages[1:]})
    history = stub.Stubber(ec2)
    history.add_response("describe_spot_price_history", {"SpotPriceHistory": spot})
    answers.activate()
    history.activate()
    return lambda service, region: pricing if service == "pricing" else ec2


def change(name: str, zone: str, days_ago: float, usd: str) -> dict[str, Any]:
    since = NOW - timedelta(days=days_ago)
    return {
        "InstanceType": name,
        "AvailabilityZone": zone,
        "SpotPrice": usd,
        "Timestamp": since,
        "ProductDescription": "Linux/UNIX",
    }


def test_refreshed_prices_replace_the_offline_ones(capsys: pytest.CaptureFixture[str]) -> None:
    spot = [change("g5.xlarge", "eu-west-1a", 30, "0.60"), change("g5.xlarge", "eu-west-1b", 30, "0.40"),
            change("g5.xlarge", "eu-west-1b", 3.5, "0.20")]  # fmt: skip
    clients = stubbed({"g5.xlarge": "1.123", "g6.xlarge": "0.9"}, {"g5.xlarge": "1.570", "g6.xlarge": "1.2"}, spot)
    found = refresh("eu-west-1", clients, NOW)
    assert found["prices"] == 2 + 2 + 1
    (table,) = read_table("eu-west-1", pytest.fail)
    assert table.region == "eu-west-1"
    assert set(table.instances) == {"g5.xlarge", "g6.xlarge"}
    instance = table.instance("g5.xlarge")
    assert (table.price(instance, "ec2").usd_per_hour, table.price(instance, "sagemaker").usd_per_hour) == (1.123, 1.570)
    assert table.price(instance, "ec2").date == "2026-11-22"
    quote = table.spot(instance)
    assert quote is not None
    assert quote.discount == pytest.approx(1 - 0.30 / 1.123)  # zone b: 0.40 for half of the week, 0.20 for the other half
    assert quote.monthly_interruption is None
    assert main(["cost", "--hours", "10", "--instance", "g5.xlarge", "--region", "eu-west-1", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert (row["region"], row["on_demand_usd"], row["price_date"]) == ("eu-west-1", pytest.approx(11.23), "2026-11-22")


def test_all_regions_are_priced_together_with_the_copy_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    refresh("eu-west-1", stubbed({"g5.xlarge": "0.5"}, {}, []), NOW)
    words = (
        "cost --model resnet50 --images 1000000 --bytes 1e11 --instance g5.xlarge --region all --data-region us-east-1 --json"
    )
    assert main(words.split()) == 0
    home, away = json.loads(capsys.readouterr().out)["rows"]
    assert (home["region"], away["region"]) == ("us-east-1", "eu-west-1")
    assert (home["copy_usd"], away["copy_usd"]) == (0.0, pytest.approx(100 * 0.02))
    assert away["start_usd"] == pytest.approx(home["start_usd"] * 0.5 / 1.006)
    assert away["total_usd"] == pytest.approx(away["on_demand_usd"] + away["start_usd"] + away["copy_usd"])


@pytest.mark.parametrize("code", ["ThrottlingException", "AccessDeniedException", "UnrecognizedClientException"])
def test_a_refusal_of_aws_is_one_line_without_keys(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    pricing = client("pricing")
    answers = stub.Stubber(pricing)
    answers.add_client_error("get_products", code, f"User {SECRET} may not\ndo this")
    answers.activate()
    with pytest.raises(SourceError) as error:
        refresh("eu-west-1", lambda *_: pricing, NOW)
    text = f"{error.value} {error.value.hint}"
    assert code in text and SECRET not in text and "planted" not in text
    assert "\n" not in str(error.value)
    assert "offline table" in text
    assert error.value.__cause__ is None


def test_no_network_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    exceptions = pytest.importorskip("botocore.exceptions")

    def unreachable(service: str, region: str) -> Any:
        raise exceptions.EndpointConnectionError(endpoint_url="https://api.pricing.us-east-1.amazonaws.com/")

    monkeypatch.setattr(live_prices, "_client", unreachable)
    assert main(["cost", "refresh", "--region", "us-east-1"]) == 1
    printed = capsys.readouterr().err
    assert "cannot fetch prices of us-east-1" in printed and "Traceback" not in printed
    (table,) = read_table("us-east-1", pytest.fail)
    assert table is PriceTable.load()


def test_a_damaged_cache_is_said_and_not_used(tmp_path: Path) -> None:
    place = tmp_path / "prices" / "us-east-1.json"
    place.parent.mkdir()
    lines: list[str] = []
    for text in (
        "{",
        "[]",
        '{"region": "us-east-1"}',
        '{"region": 1, "date": 2, "ec2": {"g5.xlarge": "x"}, "sagemaker": {}, "spot": {}}',
        '{"region": 1, "date": 2, "ec2": {"g5.xlarge": 0}, "sagemaker": {}, "spot": {"g5.xlarge": 1}}',
        '{"region": 1, "date": 2, "ec2": {"g5.xlarge": NaN}, "sagemaker": {}, "spot": {}}',
        "[" * 100_000,
    ):
        place.write_text(text)
        (table,) = read_table("us-east-1", lines.append)
        assert table is PriceTable.load(), text
    assert len(lines) == 7
    place.unlink()
    os.mkfifo(place)
    assert read_table("us-east-1", lines.append) == [PriceTable.load()] and "a named pipe" in lines[-1]


@pytest.mark.parametrize("region", ["../../etc", "us east", "", "eu-west"])
def test_a_name_that_is_no_region_is_refused(region: str) -> None:
    with pytest.raises(UsageError, match="not a region"):
        refresh(region, pytest.fail, NOW)


def test_a_log_of_changes_is_averaged_over_time() -> None:
    begin = NOW - timedelta(days=4)
    log = [(NOW - timedelta(days=1), 4.0), (NOW - timedelta(days=9), 1.0), (NOW + timedelta(days=1), 99.0)]
    assert time_weighted(log, begin, NOW) == pytest.approx((3 * 1.0 + 1 * 4.0) / 4)
    assert time_weighted([(NOW + timedelta(days=1), 1.0)], begin, NOW) is None


def test_spot_above_the_price_on_demand_gives_no_discount() -> None:
    kept = {"region": "eu-west-1", "date": "2026-11-22", "ec2": {"g5.xlarge": 1.0}, "sagemaker": {}, "spot": {"g5.xlarge": 1.0}}
    table = overlaid(PriceTable.load(), kept)
    assert table.spot(table.instance("g5.xlarge")) is None


def test_the_spot_advisor_gives_bands_and_the_discounts_that_the_history_lacks() -> None:
    lines: list[str] = []
    clients = stubbed({"g5.xlarge": "1.0", "g6.xlarge": "1.0", "g4dn.xlarge": "1.0", "g5.2xlarge": "1.0"}, {},
                      [change("g5.xlarge", "eu-central-1a", 30, "0.40")])  # fmt: skip
    refresh("eu-central-1", clients, NOW, log=lines.append)
    assert lines == []
    (table,) = read_table("eu-central-1", pytest.fail)
    paid, advised = table.spot(table.instance("g5.xlarge")), table.spot(table.instance("g6.xlarge"))
    assert paid is not None and advised is not None
    assert (paid.discount, paid.monthly_interruption) == (pytest.approx(0.6), 0.2)  # the history's price, the advisor's band
    assert (advised.discount, advised.monthly_interruption) == (pytest.approx(0.46), 0.05)
    assert table.spot(table.instance("g4dn.xlarge")) is None  # the advisor knows no saving
    assert table.spot(table.instance("g5.2xlarge")) is None  # nobody says anything about it in this region
    assert "Spot Instance Advisor" in paid.source


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "has no usable entry for eu-west-1"),
        ([], "has no usable entry"),
        (ADVISOR, "has no usable entry for eu-west-1"),
        (
            {"spot_advisor": {"eu-west-1": {"Linux": {"g5.xlarge": {"r": 9, "s": 10}, "g6.xlarge": {"r": 1, "s": "x"}}}}},
            "no usable entry",
        ),
        ({"spot_advisor": {"eu-west-1": {"Linux": {"g5.xlarge": None, "g6.xlarge": {"r": 1, "s": 400}}}}}, "no usable entry"),
    ],
)
def test_an_advisor_of_another_form_is_one_line_and_the_offline_bands_stay(document: object, words: str) -> None:
    lines: list[str] = []
    clients = stubbed({"g5.2xlarge": "1.0"}, {}, [change("g5.2xlarge", "eu-west-1a", 30, "0.50")])
    refresh("eu-west-1", clients, NOW, advisor=lambda: document, log=lines.append)
    (line,) = lines
    assert words in line and "offline table" in line and "\n" not in line
    (table,) = read_table("eu-west-1", pytest.fail)
    quote = table.spot(table.instance("g5.2xlarge"))
    assert quote is not None and (quote.discount, quote.monthly_interruption) == (0.5, 0.2)


@pytest.mark.parametrize(
    ("status", "body"), [(None, b""), (503, b"<html>slow down</html>"), (200, b"<html>slow down</html>"), (200, b"[" * 100_000)]
)
def test_an_advisor_that_cannot_be_reached_or_throttles_or_lies_is_one_line(status: int | None, body: bytes) -> None:
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status or 0)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        url = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.handle_request)
        if status is None:
            server.server_close()
        else:
            thread.start()
        with pytest.raises(SourceError) as error:
            spot_advisor.fetch_advisor(url)
        if thread.ident is not None:
            thread.join()
    assert "the spot advisor cannot be read" in str(error.value) and "\n" not in str(error.value)
    assert error.value.__cause__ is None
