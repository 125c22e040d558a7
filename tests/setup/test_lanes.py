"""The lanes of tests: the cells of a matrix that `make test` runs, and the shares of `make test-long`."""

from __future__ import annotations

from itertools import chain, product

import pytest
from lanes import kept_cells, share_of


@pytest.mark.parametrize("keep", [0, 20])
def test_each_value_of_each_axis_is_in_a_cell_of_the_short_lane(keep: int) -> None:
    axes = (range(9), "ab", (True, False, None))
    cells = list(product(*axes))
    kept = kept_cells(cells, keep)
    assert len(kept) == len(set(kept)) == max(9, keep)
    assert [{cells[number][axis] for number in kept} for axis in range(3)] == [set(values) for values in axes]


def test_of_a_list_as_many_cells_as_asked_for_are_kept_spread_over_it() -> None:
    assert kept_cells([(name,) for name in "abcdefghij"], 4) == [0, 2, 5, 7]
    assert kept_cells([("a",), ("b",)], 4) == [0, 1]


@pytest.mark.parametrize("number", [1, 3, 6, 40])
def test_the_shares_of_a_lane_are_all_of_it(number: int) -> None:
    tests = list(range(32))
    shares = [share_of(tests, f"{first}/{number}") for first in range(1, number + 1)]
    assert sorted(chain(*shares)) == tests
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("share", ["", "1", "0/6", "7/6", "1/0", "-1/6", "a/b", "1/6/2"])
def test_a_share_that_is_none_is_refused(share: str) -> None:
    with pytest.raises(pytest.UsageError, match="write K/N"):
        share_of([], share)
