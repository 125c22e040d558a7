"""The page of benchmarks/intervals.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pages.document import Document, count, facts, page, percent, table

HEAD = ["job", "busy programs", "verdict", "conf.", "now", "fix", "predicted", "80 % interval", "measured", "holds", "noise"]


def render(document: Document) -> str:
    """Return the page."""
    settings = document["settings"]
    burners = " and ".join(map(str, settings["burners"]))
    beside = "; ".join(
        f"{one['held']} of {one['valid']} beside {count(one['burners'], 'busy program')}" for one in document["beside"]
    )
    enough = "No fewer" if document["enough"] else "**Fewer**"
    jobs, times = ", ".join(settings["jobs"]), count(settings["repeat"], "time")
    return page(
        "# Intervals of predictions",
        f"Jobs of `benchmarks/scenarios/jobs.py` on two cores ({jobs}), {times} each beside {burners} busy programs: under "
        "`headrace diagnose`, then again with the fix that was predicted. `benchmarks/intervals.py` describes the method.",
        facts(document),
        f"{document['held']} of {document['valid']} intervals of 80 % hold the rate that was measured afterwards: {beside}. "
        f"{enough} than 44 of 60, which true intervals reach in 12 of 13 such series.",
        "Rates in images per second; the noise is the share of the CPU that other programs took.",
        table(HEAD, map(_row, document["runs"])),
    )


def _row(run: Mapping[str, Any]) -> list[str]:
    interval = "" if run["low_img_s"] is None else f"{run['low_img_s']:,.0f} to {run['high_img_s']:,.0f}"
    return [
        run["job"],
        str(run["burners"]),
        run["verdict"],
        f"{run['confidence']:.2f}",
        _rate(run["img_s"]),
        run["fix"] or "not predicted",
        _rate(run["predicted_img_s"]),
        interval,
        _rate(run["measured_img_s"]),
        "void" if run["void"] else "yes" if run["held"] else "**no**",
        percent(run["noise"]),
    ]


def _rate(img_s: float | None) -> str:
    return "" if img_s is None else f"{img_s:,.0f}"
