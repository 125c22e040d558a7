"""The order of records: a permutation, the same global batches for every world size, equal batch counts."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest
from headrace.errors import UsageError
from headrace.loading.order.arithmetic import EpochOrder, hashed, permutation
from hypothesis import given
from hypothesis import strategies as st


def order(records: int, batch_size: int = 4, rank: int = 0, world_size: int = 1, **options: object) -> EpochOrder:
    defaults: dict[str, object] = {"shuffle": True, "drop_last": False, "seed": 3, "epoch": 0}
    return EpochOrder(records=records, batch_size=batch_size, rank=rank, world_size=world_size, **(defaults | options))  # type: ignore[arg-type]


@given(st.integers(1, 3000), st.integers(0, 2**63))
def test_permutation_hits_every_record_once(size: int, key: int) -> None:
    assert sorted(permutation(np.arange(size), size, key).tolist()) == list(range(size))


def test_permutation_is_not_biased() -> None:
    # Where record 0 of 5 goes under 5000 keys: 1000 each expected, standard deviation 28.
    counts = Counter(int(permutation(np.array([0]), 5, key)[0]) for key in range(5000))
    assert all(abs(counts[place] - 1000) < 150 for place in range(5)), counts


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("records", [0, 1, 23, 24, 25, 100])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_rank_has_the_same_number_of_batches_and_nothing_is_lost(world_size: int, records: int, drop_last: bool) -> None:
    orders = [order(records, 3, rank, world_size, drop_last=drop_last) for rank in range(world_size)]
    assert len({len(one) for one in orders}) == 1
    seen = Counter(record for one in orders for step in range(len(one)) for record in one.batch(step).tolist())
    if drop_last:
        assert sum(seen.values()) == records // (3 * world_size) * 3 * world_size
        assert all(count == 1 for count in seen.values())
    else:
        assert set(seen) == set(range(records))
        assert sum(seen.values()) - records < world_size or records == 0


def test_global_batches_do_not_depend_on_the_world_size() -> None:
    def global_batches(world_size: int) -> list[list[int]]:
        orders = [order(100, 24 // world_size, rank, world_size, drop_last=True) for rank in range(world_size)]
        return [[r for one in orders for r in one.batch(step).tolist()] for step in range(len(orders[0]))]

    assert global_batches(1) == global_batches(2) == global_batches(3) == global_batches(8)


def test_order_depends_on_seed_and_epoch_only() -> None:
    base = order(100).batch(0).tolist()
    assert base == order(100).batch(0).tolist()
    assert base != order(100, seed=4).batch(0).tolist()
    assert base != order(100, epoch=1).batch(0).tolist()
    assert order(100, shuffle=False).batch(1).tolist() == [4, 5, 6, 7]


@given(
    records=st.integers(1, 3000),
    batch_size=st.sampled_from([1, 3, 32, 511, 600]),
    place=st.sampled_from([(0, 1), (0, 3), (2, 3)]),
    first=st.integers(0, 30),
    options=st.fixed_dictionaries({"shuffle": st.booleans(), "drop_last": st.booleans(), "steps": st.sampled_from([None, 7])}),
)
def test_batches_computed_together_are_those_computed_one_by_one(
    records: int, batch_size: int, place: tuple[int, int], first: int, options: dict[str, object]
) -> None:
    one = order(records, batch_size, *place, **options)
    wanted = [one.batch(step).tolist() for step in range(first, len(one))]
    assert [batch.tolist() for batch in one.batches(first)] == wanted


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="batch_size"):
        order(10, 0)
    with pytest.raises(UsageError, match="rank"):
        order(10, 4, 2, 2)


def test_the_order_never_changes_between_versions() -> None:
    """Saved states name an epoch and a position only: another permutation would resume another order."""
    assert permutation(np.arange(10), 10, 7).tolist() == [6, 3, 0, 5, 2, 7, 8, 1, 9, 4]
    assert permutation(np.array([0, 1, 999_999]), 1_000_000, 123456789).tolist() == [232096, 469223, 464488]
    whole = permutation(np.arange(5000), 5000, hashed(0, 0)).tobytes()
    assert hashlib.sha256(whole).hexdigest() == "8158c3ac2cec531decb6d381103969186ce5f0a9b76f7068571551bcb8c4b8ad"
    assert (hashed(), hashed(1), hashed(3, -1, 2**70)) == (0, 10451216379200822465, 6153317894576023040)
