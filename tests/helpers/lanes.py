"""The lanes of tests: which cells of a large matrix the short lane runs, and shares of a long lane.

`@pytest.mark.matrix` stands above the parameters of a test with many cells. The short lane (`make test`) runs so many of them
that each value of each axis occurs in one, and with `matrix(keep=N)` at least N, spread over all. The others are marked `slow`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

import pytest

Item = TypeVar("Item")


def kept_cells(cells: Sequence[Sequence[Hashable]], keep: int) -> list[int]:
    """Return the numbers of the cells that stand for all: each has a value that no earlier one has, or fills up to `keep`.

    cells: the values of each cell on each axis. An axis on which no value occurs twice is the number of the cell, not an axis.
    """
    columns = [column for column in zip(*cells, strict=True) if len(set(column)) < len(column)]
    values = [set(enumerate(cell)) for cell in zip(*columns, strict=True)] if columns else [set() for _ in cells]
    missing = set().union(*values)
    found = []
    while missing:
        best = max(range(len(cells)), key=lambda number: len(values[number] & missing))
        missing -= values[best]
        found.append(best)
    rest = [number for number in range(len(cells)) if number not in found]
    wanted = min(keep - len(found), len(rest))
    return sorted([*found, *(rest[turn * len(rest) // wanted] for turn in range(wanted))])


def mark_matrices(items: Sequence[pytest.Item]) -> None:
    """Mark the cells of matrices that the short lane leaves out as slow."""
    matrices: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("matrix") and not item.get_closest_marker("skip"):
            matrices.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cells in matrices.values():
        mark = cells[0].get_closest_marker("matrix")
        assert mark is not None
        kept = set(kept_cells([_values(cell) for cell in cells], mark.kwargs.get("keep", 0)))
        for number, cell in enumerate(cells):
            if number not in kept:
                cell.add_marker("slow")


def _values(cell: pytest.Function) -> list[Hashable]:
    """Return what a cell has on each axis: of each parameter its object's identity, of a named tuple each field."""
    found: list[Hashable] = []
    for value in cell.callspec.params.values():
        found.extend(value if isinstance(value, tuple) and hasattr(value, "_fields") else [id(value)])
    return found


def share_of(items: Sequence[Item], share: str) -> list[Item]:
    """Return a share of the tests: "K/N" is each Nth, beginning with the Kth. The N shares together are all."""
    first, slash, step = share.partition("/")
    if not (slash and first.isdecimal() and step.isdecimal() and 1 <= int(first) <= int(step)):
        raise pytest.UsageError(f"--share {share}: write K/N with 1 <= K <= N, such as 2/6")
    return list(items[int(first) - 1 :: int(step)])
