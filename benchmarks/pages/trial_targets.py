"""What the trials are to show, each with what was measured: from the rows of an experiment, for benchmarks/pages/trials.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.system.sizes import count_text

from pages.document import count

Row = Mapping[str, Any]

PUBLISHED_RATIO, RATIO_TOLERANCE = 77.82 / 41.67, 0.15
"""Seconds per epoch of ResNet-18 at load 12 over those at load 1, as the article published them."""

IMAGES = {"train": 9469, "val": 3925}
"""Images of a training and a validation pass in the article."""

MOST_NAMED = 5
"""Cells below a target that are named."""

LIGHT, HEAVY = 1, 12
MOST_OF_LOAD = 1.1
FAST_ENOUGH, REACHED = 1.1, 0.97
PREDICTED = 0.1


def targets(name: str, rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each target of an experiment that its rows can answer."""
    found = [*fused_load(rows), *exact_load(rows), *published_load(rows), *expected(rows)]
    if name == "slow-source":
        found += verdicts(rows, "STORAGE_LATENCY")
    return found + reached(rows)


def said(target: str, holds: bool, figure: str) -> str:
    """Return the sentence of one target."""
    return f"Target, {target}: {'holds' if holds else 'does not hold'}. {figure}."


def fused_load(rows: Sequence[Row]) -> list[str]:
    """`headrace`: the heaviest load costs hardly more than the lightest."""
    return [
        said(
            f"headrace, input alone: at load {HEAVY} at most {MOST_OF_LOAD:g} times the CPU time an image of load {LIGHT}",
            heavy["cpu_ms"] / light["cpu_ms"] <= MOST_OF_LOAD,
            f"{heavy['cpu_ms']:.2f} ÷ {light['cpu_ms']:.2f} ms = {heavy['cpu_ms'] / light['cpu_ms']:.2f}",
        )
        for _, light, heavy in by_load(rows, "headrace")
    ]


def exact_load(rows: Sequence[Row]) -> list[str]:
    """`headrace-exact`: its ratio, whatever it is."""
    return [
        f"headrace-exact does every operation by itself: {heavy['cpu_ms']:.2f} ÷ {light['cpu_ms']:.2f} ms = "
        f"{heavy['cpu_ms'] / light['cpu_ms']:.2f} times the CPU time at load {HEAVY}."
        for _, light, heavy in by_load(rows, "headrace-exact")
    ]


def published_load(rows: Sequence[Row]) -> list[str]:
    """`pytorch`: CPU time of both passes beside the published ratio, and what differs where it is far from it."""
    sentences = []
    for mode, light, heavy in by_load(rows, "pytorch"):
        if "val_cpu_ms" not in light or "val_cpu_ms" not in heavy:
            continue
        ratio = passes_s(heavy) / passes_s(light)
        holds = abs(ratio / PUBLISHED_RATIO - 1) <= RATIO_TOLERANCE
        figure = f"{passes_s(heavy):.1f} ÷ {passes_s(light):.1f} s = {ratio:.2f}"
        if not holds:
            unit_ms = (heavy["cpu_ms"] - light["cpu_ms"]) / (HEAVY - LIGHT)
            asked_ms = (PUBLISHED_RATIO - 1) * passes_s(light) * 1000 / IMAGES["train"] / (HEAVY - LIGHT)
            figure += (
                f". A unit of load takes {unit_ms:.2f} ms an image here and all else, decoding included, "
                f"{light['cpu_ms'] - unit_ms:.2f} ms; the published ratio would need {asked_ms:.2f} ms a unit. The "
                "published ratio is one of seconds, on another processor and with other images, where the shares may differ"
            )
        sentences.append(
            said(
                f"pytorch ({mode}), CPU time of training and validation, load {HEAVY} ÷ load {LIGHT} within "
                f"{100 * RATIO_TOLERANCE:.0f} % of the published {PUBLISHED_RATIO:.2f}",
                holds,
                figure,
            )
        )
    return sentences


def expected(rows: Sequence[Row]) -> list[str]:
    """Rates of more workers, predicted from one."""
    errors = [(abs(row["expected_img_s"] / row["img_s"] - 1), row["workers"]) for row in rows if "expected_img_s" in row]
    if not errors:
        return []
    error, workers = max(errors)
    return [
        said(
            f"the rate that one worker lets expect of more is within {100 * PREDICTED:.0f} % of the measured in each cell",
            error <= PREDICTED,
            f"The largest of {count(len(errors), 'error')} is {100 * error:.1f} %, with {count_text(workers, 'worker')}",
        )
    ]


def verdicts(rows: Sequence[Row], verdict: str) -> list[str]:
    """Every cell has the verdict."""
    having = sum(row.get("verdict") == verdict for row in rows)
    return [said(f"verdict {verdict}", having == len(rows), f"{having} of {count(len(rows), 'cell')}")] if rows else []


def reached(rows: Sequence[Row]) -> list[str]:
    """Cells whose input alone is fast enough train as fast as computing alone."""
    able = [
        row
        for row in rows
        if {"ingest_img_s", "compute_img_s", "img_s"} <= set(row) and row["ingest_img_s"] >= FAST_ENOUGH * row["compute_img_s"]
    ]
    if not able:
        return []
    below = sorted((row["img_s"] / row["compute_img_s"], cell_words(row, rows)) for row in able)
    below = [(share, words) for share, words in below if share < REACHED]
    figure = f"{len(able) - len(below)} of {count(len(able), 'cell')}"
    if below:
        figure += f"; below: {', '.join(f'{words} {100 * share:.1f} %' for share, words in below[:MOST_NAMED])}"
        if len(below) > MOST_NAMED:
            figure += f" and {count_text(len(below) - MOST_NAMED, 'other')} from {100 * below[MOST_NAMED][0]:.1f} % on"
        slow = [row["handover_ms"] for row in able if row.get("handover_ms") is not None]
        if slow:
            figure += (
                f". The step waits while its thread takes over a batch: {min(slow):.1f} to {max(slow):.1f} ms of CPU time, "
                "and longer where all cores are busy"
            )
    return [
        said(
            f"training reaches {100 * REACHED:.0f} % of computing alone wherever the input alone, beside the host's share of a "
            f"step, is {FAST_ENOUGH:g} times as fast",
            not below,
            figure,
        )
    ]


def by_load(rows: Sequence[Row], loader: str) -> Iterable[tuple[str, Row, Row]]:
    """Yield (mode, lightest, heaviest) of a loader's rows, for each mode that has both loads."""
    found: dict[tuple[str, int], Row] = {}
    for row in rows:
        if row["loader"] == loader and "cpu_ms" in row:
            found.setdefault((row["mode"], row["load"]), row)
    for mode in dict.fromkeys(mode for mode, _ in found):
        if (mode, LIGHT) in found and (mode, HEAVY) in found:
            yield mode, found[mode, LIGHT], found[mode, HEAVY]


def passes_s(row: Row) -> float:
    """CPU seconds of a training and a validation pass over the published numbers of images."""
    return float(IMAGES["train"] * row["cpu_ms"] + IMAGES["val"] * row["val_cpu_ms"]) / 1000


def cell_words(row: Row, rows: Sequence[Row]) -> str:
    """Name a cell by what differs between the rows."""
    parts = [str(row["loader"])]
    for key, form in (("model", "{}"), ("load", "load {}"), ("mode", "{}"), ("data", "{}"), ("workers", "{} workers")):
        if len({other.get(key) for other in rows}) > 1 and key in row:
            parts.append(form.format(row[key]))
    return " ".join(parts)
