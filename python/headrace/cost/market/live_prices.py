"""Prices from AWS, kept in a cache with their date: Price List API, spot price history, spot advisor.

`headrace cost refresh` asks AWS and writes `~/.cache/headrace/prices/REGION.json`. `read_table` puts a kept file over the
offline table. Only names of instance types and regions are sent. Keys stay with boto3.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from headrace.cost.market.prices import PREFIX, PriceTable
from headrace.cost.market.regions import near_names, region_hint
from headrace.cost.market.spot_advisor import fetch_advisor, read_advice
from headrace.errors import MissingDependencyError, SourceError, UsageError
from headrace.session.typed_json import converter
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.regular_file import read_regular
from headrace.system.text.install_hints import extra_hint
from headrace.system.text.json import parse_json

__all__ = ["ec2_prices", "overlaid", "read_table", "refresh", "sagemaker_prices", "spot_prices"]

PRICING_REGION = "us-east-1"
"""The AWS region that is asked for prices. Its Price List API has the prices of all regions."""

SPOT_DAYS = 7
"""Average spot prices over this many days."""

EC2_FILTERS = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}

REGION_NAME = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")


def refresh(
    region: str,
    clients: Callable[[str, str], Any] | None = None,
    now: datetime | None = None,
    *,
    advisor: Callable[[], Any] | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Ask AWS for the prices of a region, store them in the cache folder, and return `{region, prices, file, date}`.

    `clients(service, region)` makes a client (default: boto3's). `advisor()` returns the spot advisor's document (default: from
    AWS's public file); without it the interruption bands of the offline table stay, and `log` receives one line.
    Raises `SourceError` in one line if AWS cannot be asked.
    """
    if REGION_NAME.fullmatch(region) is None:
        raise UsageError(f"{region!r} is not a region", hint=near_names(region) or "such as us-east-1 or eu-west-1")
    make = clients or _client
    moment = now or datetime.now(UTC)
    table = PriceTable.load()
    names = [one.name for one in table.instances.values()]
    try:
        pricing = make("pricing", PRICING_REGION)
        ec2 = ec2_prices(pricing, region, names)
        sagemaker = sagemaker_prices(pricing, region)
        spot = spot_prices(make("ec2", region), names, moment)
    except MissingDependencyError:
        raise
    except Exception as reason:  # botocore has a class for each failure
        raise SourceError(
            f"cannot fetch prices of {region} from AWS: {_short(reason)}",
            hint=f"without --region the offline table of {table.source('ec2')['date']} is used",
        ) from None
    if not ec2:
        raise SourceError(f"AWS lists no GPU instance of the table in {region}", hint="check the name of the region")
    kept = {
        "region": region,
        "date": moment.date().isoformat(),
        "ec2": ec2,
        "sagemaker": sagemaker,
        "spot": spot,
        "advisor": _advised(region, names, advisor or fetch_advisor, log),
    }
    place = _file(region)
    place.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(place, json.dumps(kept, indent=1).encode())
    return {"region": region, "prices": len(ec2) + len(sagemaker) + len(spot), "file": str(place), "date": kept["date"]}


def _advised(
    region: str, names: Iterable[str], advisor: Callable[[], Any], log: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Return the advisor's discount and band by instance type; nothing, and one line, if it cannot be read."""
    try:
        advice = read_advice(advisor(), region)
    except SourceError as reason:
        log(f"headrace cost: {reason}; the interruption bands of the offline table are used")
        return {}
    return {
        name: {"discount": advice[name].discount, "band_percent": list(advice[name].band_percent)}
        for name in names
        if name in advice
    }


def ec2_prices(pricing: Any, region: str, names: Iterable[str]) -> dict[str, float]:
    """Return the on-demand price in USD per hour by instance type, for the types of `names` that the region offers."""
    found = {}
    for name in names:
        filters = _filters({"regionCode": region, "instanceType": name, **EC2_FILTERS})
        pages = pricing.get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=filters)
        prices = [price for page in pages for text in page["PriceList"] if (price := _on_demand_usd(json.loads(text)))]
        if prices:
            found[name] = min(prices)
    return found


def sagemaker_prices(pricing: Any, region: str) -> dict[str, float]:
    """Return the price of SageMaker training in USD per hour by EC2 name of the instance type (`g5.xlarge`)."""
    filters = _filters({"regionCode": region, "component": "Training"})
    found: dict[str, float] = {}
    for page in pricing.get_paginator("get_products").paginate(ServiceCode="AmazonSageMaker", Filters=filters):
        for text in page["PriceList"]:
            product = json.loads(text)
            # `instanceType` is inconsistent in this service; `instanceName` is ml.TYPE.
            name = product["product"]["attributes"].get("instanceName", "")
            price = _on_demand_usd(product)
            if name.startswith(PREFIX) and price:
                found[name.removeprefix(PREFIX)] = price
    return found


def spot_prices(ec2: Any, names: Iterable[str], now: datetime) -> dict[str, float]:
    """Return the spot price in USD per hour by instance type: the mean over the last 7 days in the cheapest zone.

    The history is a log of changes, so each price counts for as long as it held.
    """
    begin = now - timedelta(days=SPOT_DAYS)
    changes: dict[tuple[str, str], list[tuple[datetime, float]]] = {}
    pages = ec2.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=list(names), ProductDescriptions=["Linux/UNIX"], StartTime=begin, EndTime=now
    )
    for page in pages:
        for entry in page["SpotPriceHistory"]:
            key = (entry["InstanceType"], entry["AvailabilityZone"])
            changes.setdefault(key, []).append((entry["Timestamp"], float(entry["SpotPrice"])))
    means: dict[str, float] = {}
    for (name, _), log in changes.items():
        mean = time_weighted(log, begin, now)
        if mean is not None:
            means[name] = min(mean, means.get(name, mean))
    return means


def time_weighted(log: list[tuple[datetime, float]], begin: datetime, end: datetime) -> float | None:
    """Return the time-weighted mean price from `begin` to `end`; None if no price was valid in that time.

    log: (time, price) of each price change, in any order.
    """
    ordered = sorted(log)
    total_s = weighted = 0.0
    for at, (since, price) in enumerate(ordered):
        until = ordered[at + 1][0] if at + 1 < len(ordered) else end
        held_s = (min(until, end) - max(since, begin)).total_seconds()
        if held_s > 0:
            total_s += held_s
            weighted += held_s * price
    return weighted / total_s if total_s else None


def read_table(region: str, log: Callable[[str], None]) -> list[PriceTable]:
    """Return the price table of a region in a list; for "all" the tables of the offline region and of every refreshed one.

    log: receives one line if stored prices cannot be used. Raises `UsageError` for a region without prices.
    """
    table = PriceTable.load()
    if region == "all":
        kept = [name.stem for name in sorted(_file(table.region).parent.glob("*.json")) if name.stem != table.region]
        return [*read_table(table.region, log), *(read_table(name, log)[0] for name in kept)]
    try:
        kept_prices = converter(Any)(parse_json(read_regular(_file(region))))
        return [overlaid(table, kept_prices)]
    except FileNotFoundError:
        pass
    except (ArithmeticError, AttributeError, KeyError, OSError, TypeError, ValueError) as reason:
        log(f"headrace cost: the stored prices of {region} cannot be used: {_short(reason)}")
    if region != table.region:
        raise UsageError(
            f"the offline price table holds {table.region} only, not {region!r}",
            hint=region_hint(region),
        )
    return [table]


def overlaid(table: PriceTable, kept: Mapping[str, Any]) -> PriceTable:
    """Return the table with the stored prices of a region in place of its own, without types that the region lacks."""
    live = {"date": str(kept["date"]), "source": f"AWS Price List API, {kept['region']}"}
    instances = [
        {**entry, "usd_per_hour": float(kept["ec2"][entry["name"]])}
        for entry in table.document["instances"]
        if entry["name"] in kept["ec2"]
    ]
    sources = {**table.document["sources"], "ec2": live, "ec2_historic": live, "sagemaker": live}
    sources["spot"] = {**live, "source": f"EC2 spot price history of {SPOT_DAYS} days, cheapest zone of {kept['region']}"}
    advised = kept.get("advisor") or {}
    if advised:
        sources["spot"]["source"] += "; Spot Instance Advisor: interruptions, and the savings of types without a history"
    spot = {}
    for name in [entry["name"] for entry in instances]:
        # A price that was paid goes before a saving that was averaged over a month.
        paid, advice = kept["spot"].get(name), advised.get(name)
        discount = 1 - paid / kept["ec2"][name] if paid is not None else advice["discount"] if advice else 0.0
        if discount > 0:
            offline = table.document["spot"].get(name, {}).get("interruption_band_percent")
            spot[name] = {
                "discount": float(discount),
                "interruption_band_percent": [float(bound) for bound in advice["band_percent"]] if advice else offline,
            }
    return PriceTable(
        {
            **table.document,
            "region": str(kept["region"]),
            "instances": instances,
            "sources": sources,
            "sagemaker_usd_per_hour": {name: float(price) for name, price in kept["sagemaker"].items()},
            "spot": spot,
        }
    )


def _filters(fields: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in fields.items()]


def _on_demand_usd(product: Mapping[str, Any]) -> float | None:
    """Return the hourly price of a product of the Price List API; None if it has none above 0."""
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            price = float(dimension["pricePerUnit"].get("USD", 0))
            if price > 0:
                return price
    return None


def _client(service: str, region: str) -> Any:
    try:
        boto3 = importlib.import_module("boto3")
    except ImportError:
        raise MissingDependencyError("current prices need boto3", hint=extra_hint("aws")) from None
    return boto3.client(service, region_name=region)


def _short(reason: BaseException) -> str:
    """Return the error's kind and message on one line, without anything that looks like a key."""
    text = " ".join(str(reason).split())[:200]
    text = re.sub(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b", "***", text)
    return f"{type(reason).__name__}: {text}"


def _file(region: str) -> Path:
    base = Path(
        os.environ.get("HEADRACE_PRICES")
        or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace" / "prices"
    )
    return base / f"{Path(region).name}.json"
