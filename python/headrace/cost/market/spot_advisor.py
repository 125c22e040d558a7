"""AWS's Spot Instance Advisor: the saving and the share of instances interrupted within a month, by region and type.

The advisor is one public JSON file, which needs no credentials:
`spot_advisor[REGION]["Linux"][TYPE] = {"r": band, "s": saving}`.
The saving is in per cent of the price on demand, averaged over 30 days.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import SourceError
from headrace.system.text.json import parse_json

__all__ = ["Advice", "fetch_advisor", "read_advice"]

URL = "https://spot-bid-advisor.s3.amazonaws.com/spot-advisor-data.json"

BANDS_PERCENT = ((0, 5), (5, 10), (10, 15), (15, 20), (20, 100))
"""Per cent of instances interrupted within a month, from and to, by the number `r` in the advisor's file."""

LARGEST_BYTES = 64 << 20
"""Refuse a longer file: the advisor's has a few megabytes."""

TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Advice:
    """The advisor's entry for an instance type. discount: part of the price on demand that spot saves, 0 to 1.

    band_percent: per cent of instances interrupted within a month, from and to; one of `BANDS_PERCENT`.
    """

    discount: float
    band_percent: tuple[int, int]


def fetch_advisor(url: str = URL) -> Any:
    """Download the advisor's JSON document and return it parsed. Raises `SourceError` if it cannot be read."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            data = answer.read(LARGEST_BYTES + 1)
        if len(data) > LARGEST_BYTES:
            raise ValueError(f"longer than {LARGEST_BYTES >> 20} MiB")
        return parse_json(data)
    except (OSError, ValueError, http.client.HTTPException) as reason:  # urllib's errors are OSErrors
        if isinstance(reason, urllib.error.HTTPError):
            reason.close()
        raise SourceError(
            f"the spot advisor cannot be read: {type(reason).__name__}: {' '.join(str(reason).split())}"
        ) from None


def read_advice(document: Any, region: str) -> dict[str, Advice]:
    """Return the saving and the interruptions of spot in a region by instance type; entries of an unknown form are left out.

    document: the advisor's JSON (`fetch_advisor`). Raises `SourceError` if it has nothing about the region.
    """
    try:
        entries = document["spot_advisor"][region]["Linux"]
        found = {name: advice for name, entry in entries.items() if (advice := _advice(entry)) is not None}
    except (KeyError, TypeError, AttributeError):
        found = {}
    if not found:
        raise SourceError(f"AWS's Spot Instance Advisor has no usable entry for {region}")
    return found


def _advice(entry: Any) -> Advice | None:
    if not isinstance(entry, Mapping):
        return None
    band, saving = entry.get("r"), entry.get("s")
    if not (isinstance(band, int) and 0 <= band < len(BANDS_PERCENT)):
        return None
    if not (isinstance(saving, int | float) and 0 <= saving < 100):
        return None
    return Advice(saving / 100, BANDS_PERCENT[band])
