"""The note for a loader whose transform is one for evaluation, and whose order is one for training."""

from __future__ import annotations

import sys

from headrace.loading.order.arithmetic import EpochOrder
from headrace.loading.order.rank_order import Order

__all__ = ["evaluation_note", "say_once"]


def evaluation_note(order: Order, *, is_fixed: bool) -> str | None:
    """Return what an evaluation would not do: shuffle, or drop records. None if the loader does neither, or draws at random.

    None too for the order of a sampler. is_fixed: no transform draws random numbers.
    """
    if not isinstance(order, EpochOrder):
        return None
    dropped = max(0, order.records - len(order) * order.global_batch) if order.drop_last else 0
    faults = (["shuffles the records"] if order.shuffle else []) + (
        [f"drops the last {dropped:,} of {order.records:,} in each epoch"] if dropped else []
    )
    if not is_fixed or not faults:
        return None
    return f"note: no transform draws at random, and the loader {' and '.join(faults)}: to evaluate, use headrace.eval_loader"


_said: list[str] = []


def say_once(note: str | None) -> None:
    """Print the first note of this process on stderr."""
    if note is not None and not _said:
        _said.append(note)
        print(f"headrace: {note}", file=sys.stderr)
