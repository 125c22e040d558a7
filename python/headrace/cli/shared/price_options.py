"""Prices for the verbs that show money: the options `--usd-per-hour` and `--instance`, and the table of a job's region."""

from __future__ import annotations

import argparse
import math

from headrace.cli.shared import output
from headrace.cost.market.live_prices import read_table
from headrace.cost.market.prices import PREFIX, PriceTable
from headrace.errors import UsageError

__all__ = ["add_price_options", "gpu_usd_per_hour", "machine_usd_per_hour", "prices_of_job"]


def add_price_options(parser: argparse.ArgumentParser, *, of: str) -> None:
    """Add `--usd-per-hour` and `--instance`. of: the thing with this price, such as "this machine" or "one GPU"."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--usd-per-hour", type=float, metavar="USD", help=f"price of an hour of {of}, to show money")
    group.add_argument(
        "--instance", metavar="TYPE", help="take the price of this instance type on demand, such as g5.xlarge or ml.g5.xlarge"
    )


def machine_usd_per_hour(args: argparse.Namespace) -> float | None:
    """Return the price of an hour of the machine in USD, or None if neither option is given.

    Raises `UsageError` for an unknown `--instance`, and for a `--usd-per-hour` that is negative or not finite.
    """
    return _price(args)[0]


def gpu_usd_per_hour(args: argparse.Namespace) -> float | None:
    """Return the price of a GPU-hour in USD: `--usd-per-hour`, or the instance's price divided by its GPUs.

    None if neither option is given. Raises `UsageError` as `machine_usd_per_hour` does.
    """
    usd, gpus = _price(args)
    return None if usd is None else usd / gpus


def _price(args: argparse.Namespace) -> tuple[float | None, int]:
    if args.instance is not None:
        (table,) = read_table("us-east-1", lambda line: None)
        instance = table.instance(args.instance)
        price = table.price(instance, "sagemaker" if args.instance.startswith(PREFIX) else "ec2")
        return price.usd_per_hour, instance.gpus
    usd: float | None = args.usd_per_hour
    if usd is not None and not (math.isfinite(usd) and usd >= 0):
        raise UsageError(f"--usd-per-hour must be 0 or more, not {usd:g}")
    return usd, 1


def prices_of_job(region: str) -> PriceTable:
    """Return the prices of a job's region, or those of the offline table with one line that says so."""
    try:
        return read_table(region, output.log)[0]
    except UsageError as reason:
        output.log(f"headrace: {reason}: its prices are shown; headrace cost refresh --region {region} asks AWS")
        return PriceTable.load()
