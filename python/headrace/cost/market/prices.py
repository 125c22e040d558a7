"""The dated table of instances and prices in this package (`data/prices.json`), and look-ups with near names.

table = PriceTable.load()
p3 = table.instance("p3.2xlarge")
table.price(p3, "ec2").usd_per_hour  # 3.06
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from headrace.errors import UsageError

__all__ = ["SERVICES", "Instance", "Price", "PriceTable", "Service", "SpotQuote"]

Service = Literal["ec2", "sagemaker"]
SERVICES: tuple[Service, ...] = ("ec2", "sagemaker")

PREFIX = "ml."
"""SageMaker's name of an instance type is this prefix and the EC2 name."""


@dataclass(frozen=True, slots=True)
class Instance:
    """An EC2 instance type. usd_per_hour: on demand. network_gbit_s: None if unknown.

    cpu: its entry in the table's processors. cpu_assumed: the processor is inferred, not looked up on such an instance.
    historic: an older family, kept to compare with published results.
    """

    name: str
    gpu: str
    gpu_memory_gb: float
    gpus: int
    vcpus: int
    memory_gib: float
    network_gbit_s: float | None
    nvme_gb: float
    usd_per_hour: float
    cpu: str
    historic: bool
    cpu_assumed: bool

    @property
    def family(self) -> str:
        """The instance family, the part of the name before the dot: "g6e"."""
        return self.name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Price:
    """The price of an instance hour on demand. `kind`: "listed", "rule" (a factor on the EC2 price), "live" or "given"."""

    usd_per_hour: float
    kind: Literal["listed", "rule", "live", "given"]
    date: str
    source: str


@dataclass(frozen=True, slots=True)
class SpotQuote:
    """The spot discount on the on-demand price, 0 to 1. monthly_interruption: share of instances interrupted within a month."""

    discount: float
    monthly_interruption: float | None
    date: str
    source: str


class PriceTable:
    """The instance types of one region with prices and throughput figures. document: in the form of `data/prices.json`."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.region: str = document["region"]
        self.instances = {entry["name"]: Instance(**entry) for entry in document["instances"]}

    @staticmethod
    @cache
    def load() -> PriceTable:
        """Return the price table that is shipped with headrace."""
        text = resources.files("headrace.cost").joinpath("data/prices.json").read_text(encoding="utf-8")
        return PriceTable(json.loads(text))

    def instance(self, name: str) -> Instance:
        """Return an instance type by its EC2 or SageMaker name. Raises `UsageError` with near names for an unknown one."""
        found = self.instances.get(name.removeprefix(PREFIX))
        if found is None:
            near = difflib.get_close_matches(name.removeprefix(PREFIX), self.instances, n=3, cutoff=0.4)
            raise UsageError(
                f"there is no instance type {name!r} in the price table of {self.source('ec2')['date']}",
                hint=f"near names: {', '.join(near)}" if near else "headrace cost --list shows all types",
            )
        return found

    def source(self, name: str) -> Mapping[str, str]:
        """Return {"date", "source"} of one part of the table, such as "ec2" or "spot"."""
        found: Mapping[str, str] = self.document["sources"][name]
        return found

    def price(self, instance: Instance, service: Service) -> Price:
        """Return the on-demand price of an instance hour in the table's region, in USD."""
        if service == "ec2":
            source = self.source("ec2_historic" if instance.historic else "ec2")
            return Price(instance.usd_per_hour, "listed", source["date"], source["source"])
        listed = self.document["sagemaker_usd_per_hour"].get(instance.name)
        if listed is not None:
            source = self.source("sagemaker")
            return Price(listed, "listed", source["date"], source["source"])
        return self._by_rule(instance)

    def _by_rule(self, instance: Instance) -> Price:
        source = self.source("sagemaker_rule")
        size = instance.name.partition(".")[2]
        for rule in self.document["sagemaker_premium"]:
            if instance.family in rule["family"] and rule["size"] in (None, size):
                factor: float = rule["factor"]
                return Price(
                    instance.usd_per_hour * factor, "rule", source["date"], f"EC2 price × {factor:g}: {source['source']}"
                )
        raise UsageError(f"the price table has no SageMaker price for {instance.name}", hint="give one: --usd-per-hour USD")

    def spot(self, instance: Instance) -> SpotQuote | None:
        """Return the spot discount and interruption rate of an instance type, or None if the table has none."""
        entry = self.document["spot"].get(instance.name)
        if entry is None:
            return None
        band, source = entry["interruption_band_percent"], self.source("spot")
        # The upper end of the advisor's band is assumed; "over 20 %" has none, and 40 % stands for it.
        return SpotQuote(entry["discount"], None if band is None else min(band[1], 40) / 100, source["date"], source["source"])

    def cpu_score(self, cpu: str) -> float:
        """Return the benchmark score of a processor per vCPU, all threads busy. Raises `UsageError` for an unknown name."""
        try:
            score: float = self.document["cpus"][cpu]["score_per_vcpu"]
        except KeyError:
            near = difflib.get_close_matches(cpu, self.document["cpus"], n=3, cutoff=0.3)
            known = ", ".join(near or self.document["cpus"])
            raise UsageError(f"there is no processor {cpu!r} in the price table", hint=f"known processors: {known}") from None
        return score

    def cpu_by_model_name(self, model_name: str) -> str | None:
        """Return the table's name of the processor that `/proc/cpuinfo` calls `model_name`, or None."""
        for name, entry in self.document["cpus"].items():
            if any(part in model_name for part in entry["lscpu"]):
                return str(name)
        return None
