"""The names of AWS's regions, so that a misspelt one gets near names."""

from __future__ import annotations

import difflib

__all__ = ["REGIONS", "near_names", "region_hint"]

_BY_AREA = {
    "af": "south-1",
    "ap": "east-1 east-2 northeast-1 northeast-2 northeast-3 south-1 south-2 southeast-1 southeast-2 southeast-3 southeast-4 "
    "southeast-5 southeast-6 southeast-7",
    "ca": "central-1 west-1",
    "cn": "north-1 northwest-1",
    "eu": "central-1 central-2 north-1 south-1 south-2 west-1 west-2 west-3",
    "il": "central-1",
    "me": "central-1 south-1",
    "mx": "central-1",
    "sa": "east-1",
    "us": "east-1 east-2 gov-east-1 gov-west-1 west-1 west-2",
}

REGIONS = tuple(f"{area}-{place}" for area, places in _BY_AREA.items() for place in places.split())
"""AWS regions with SageMaker, from botocore 1.44 (August 2026). Other names are accepted: a region may be newer."""


def region_hint(region: str) -> str:
    """Return a hint for a region whose prices are not in the table: the command to run, or regions of similar names.

    >>> region_hint("us-eest-1").partition(";")[0]
    'near names: us-west-1, us-east-1, us-west-2'
    """
    ask = f"headrace cost refresh --region {region} asks AWS"
    if region in REGIONS:
        return ask
    near = near_names(region)
    return f"{near}; {ask}, if there is such a region" if near else ask


def near_names(region: str) -> str:
    """Return the regions with a similar name as text, "near names: us-east-1, …", or "" if there are none."""
    near = difflib.get_close_matches(region, REGIONS, n=3, cutoff=0.5)
    return f"near names: {', '.join(near)}" if near else ""
