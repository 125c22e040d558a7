"""Saved loader states: `make_state` describes the position of a loader, `read_position` reads it for a loader that continues.

`Loader.state_dict` (`loader.py`) calls `make_state`, and `Loader.load_state_dict` calls `read_position`. A training run saves
the state in its checkpoints; `headrace/training/weights/resume.py` says how a run finds the checkpoint and continues.

A position is (epoch, step). `order.EpochOrder.batch(step)` computes the records of a step from seed, epoch and dataset, so the
state needs only these two numbers. The state holds the step as records, `records_done = step *
global_batch`, which is the same for every world size with that global batch. To resume, `read_position` divides again, and the
loader begins its next pass at that step. A stream is read from its beginning, and the records before that step are dropped
(`streaming.StreamPass`).

The other keys of a state say for which data, transform and order the position holds; a state with other values is refused.
With a sampler there is a hash of the indices that were handed out (`order.rank_order`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import StateError
from headrace.loading.feeding.options import LoaderOptions

__all__ = ["make_state", "read_position"]

STATE_VERSION = 1

# Keys that must be equal in a saved state and in the loader that continues it, and how messages call them.
_GUARDS = {
    "version": "version",
    "dataset": "dataset (fingerprint)",
    "transform": "transform (hash)",
    "seed": "seed",
    "shuffle": "shuffle",
    "drop_last": "drop_last",
    "global_batch": "global batch (batch_size * world_size)",
    "weights": "weights (hash)",
}


def make_state(
    epoch: int, step: int, options: LoaderOptions, *, shuffle: bool | str, fingerprint: str, transform: str
) -> dict[str, Any]:
    """Return the state to save of a loader that has handed out `step` batches of `epoch`, as JSON values."""
    return {
        "version": STATE_VERSION,
        "epoch": epoch,
        "records_done": step * options.global_batch,
        "global_batch": options.global_batch,
        "seed": options.seed,
        "shuffle": shuffle,
        "drop_last": options.drop_last,
        "dataset": fingerprint,
        "transform": transform,
    }


def read_position(state: dict[str, Any], expected: dict[str, Any], *, steps: Callable[[int], int | None]) -> tuple[int, int]:
    """Return (epoch, step) of a saved state.

    `expected` is a state of the loader that continues; `steps` gives the batches of an epoch, None if they are not known.
    Raises StateError for a state that is damaged or belongs to another dataset, transform, seed, order or global batch.
    """
    for key, name in _GUARDS.items():
        if state.get(key) != expected.get(key):
            raise StateError(
                f"the saved state does not fit: its {name} is {state.get(key)!r}, this loader's is {expected.get(key)!r}",
                hint="resume with the same data, transform, seed and global batch, or start without the state",
            )
    epoch, done = state.get("epoch"), state.get("records_done")
    if not isinstance(epoch, int) or not isinstance(done, int) or epoch < 0 or done < 0:
        raise StateError(f"the saved state is damaged: epoch {epoch!r}, records_done {done!r}")
    step, rest = divmod(done, expected["global_batch"])
    known = steps(epoch)
    if rest or (known is not None and step >= max(1, known)):
        batches = "" if known is None else f" of {known} batches"
        raise StateError(f"the saved state is damaged: records_done {done} is no position in an epoch{batches}")
    return epoch, step
