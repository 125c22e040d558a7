"""The rate of n worker processes, from what one worker does.

A worker prepares one batch at a time, so n workers give n times the rate of one, until the cores are used up or computing is
the limit. It is the step model of `headrace diagnose` for a job with one loader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.trials.rows import Row

__all__ = ["expected_rate", "with_expected_rates"]


def expected_rate(one: Row, workers: int, cores: float) -> float | None:
    """Return images/s of `workers` workers on `cores` cores, from the row of one worker; None where it has no rates."""
    if not one.ingest_img_s or not one.cpu_ms or not one.compute_img_s:
        return None
    return min(workers * one.ingest_img_s, 1000 * cores / one.cpu_ms, one.compute_img_s)


def with_expected_rates(rows: Sequence[Row], cores: float) -> list[Row]:
    """Return the rows of DataLoaders with the rate that their row with one worker lets expect."""
    ones = {(row.loader, row.model, row.data, row.mode): row for row in rows if row.loader == "pytorch" and row.workers == 1}
    found = []
    for row in rows:
        one = ones.get((row.loader, row.model, row.data, row.mode))
        known = one is not None and row is not one and row.workers and row.img_s
        found.append(replace(row, expected_img_s=expected_rate(one, row.workers or 1, cores)) if known and one else row)
    return found
