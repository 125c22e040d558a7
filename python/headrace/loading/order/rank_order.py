"""The order of each epoch of a loader: by the seed, by weights, or as a sampler gives it. Ranks compare what samplers give."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.dataset import Dataset
from headrace.datasets.records.table import RecordFetcher
from headrace.errors import SourceError, StateError, UsageError
from headrace.loading.order.arithmetic import EpochOrder, Positions
from headrace.loading.order.block_shuffle import BlockLayout
from headrace.loading.order.rank_messages import gather_json
from headrace.loading.order.sampled import SampledOrder, Sampler, ask
from headrace.loading.order.shuffle_prefetch import prefetch_windows
from headrace.loading.order.uneven_shards import RankPart
from headrace.loading.order.weighted_draws import RecordWeights

__all__ = ["Order", "RankOrder", "check_order"]

Order = EpochOrder | SampledOrder

_TIMEOUT_S = 60.0  # fail if a rank has not sent what its sampler gives after this many seconds


def check_order(shuffle: bool | str | None, sampler: object, weights: object, parts: object, *, is_stream: bool) -> None:
    """Raise UsageError for arguments of a Loader that decide the order in two ways. shuffle: None if it was not given."""
    if sampler is None and weights is None:
        return
    name = "weights" if sampler is None else "sampler"
    if sampler is not None and weights is not None:
        raise UsageError("sampler and weights both decide which records come", hint="give one of them")
    if sampler is not None and shuffle:
        raise UsageError("a sampler decides the order, and shuffle is True", hint="leave out shuffle")
    if weights is not None and shuffle not in (None, True):
        raise UsageError(f"records drawn by weights come in random order, not shuffle={shuffle!r}", hint="leave out shuffle")
    if parts is not None:
        raise UsageError(f"{name} does not go with parts: it chooses among all records", hint="leave out one of them")
    if is_stream:
        raise UsageError(f"a stream is read in its own order: {name} cannot choose", hint=f"leave out {name}, or use File mode")


@dataclass(slots=True)
class RankOrder:
    """One rank's order of each epoch. A sampler is asked once an epoch; its answer holds until another epoch is asked for."""

    dataset: Dataset
    batch_size: int
    part: RankPart
    shuffle: bool
    drop_last: bool
    seed: int
    blocks: BlockLayout | None
    weights: RecordWeights | None
    sampler: Sampler | None
    _asked: SampledOrder | None = field(default=None, init=False)
    _is_agreed: bool = field(default=False, init=False)  # the ranks have compared `_asked`

    def of(self, epoch: int) -> Order:
        """Return this rank's order of `epoch`. Asks the sampler, if there is one and its answer for `epoch` is not known."""
        if self.sampler is None:
            return EpochOrder(
                records=len(self.dataset),
                batch_size=self.batch_size,
                rank=self.part.rank,
                world_size=self.part.world_size,
                steps=self.part.steps,
                shuffle=self.shuffle,
                drop_last=self.drop_last,
                seed=self.seed,
                epoch=epoch,
                block_shuffle=None if self.blocks is None else self.blocks.order(self.seed, epoch).rows,
                weighted=None if self.weights is None else self.weights.draws(self.seed, epoch),
            )
        if self._asked is None or self._asked.epoch != epoch:
            self._asked, self._is_agreed = self._ask(self.sampler, epoch), False
        return self._asked

    def begin(self, epoch: int) -> Order:
        """Return this rank's order of a pass that begins. With a sampler all ranks call this together.

        Raises UsageError on all ranks if their samplers give different numbers of batches.
        """
        order = self.of(epoch)
        if isinstance(order, SampledOrder) and not self._is_agreed:
            self._asked = order = _agreed(order, len(self.dataset), self.part)
            self._is_agreed = True
        return order

    def batch(self, epoch: int, step: int) -> Positions:
        """Return the records of a batch. For another epoch than the current one the sampler's answer is not kept."""
        if self.sampler is None or (self._asked is not None and self._asked.epoch == epoch):
            return self.of(epoch).batch(step)
        return self._ask(self.sampler, epoch).batch(step)

    def real_images(self, epoch: int, step: int, images: int) -> int:
        """Return how many of the `images` records of a batch do not fill up the epoch's end: all of a sampler's, unasked."""
        order = self.of(epoch) if self.sampler is None else None
        return order.real_images(step, images) if isinstance(order, EpochOrder) else images

    def draws(
        self, order: Order, first: int, fetcher: RecordFetcher | None
    ) -> Iterator[tuple[Positions, npt.NDArray[np.uint64]]]:
        """Yield records and keys of draws of the batches from `first` on. The fetcher hears of the next window of a shuffle."""
        batches = order.draws(first, self.part.first_draw)
        if self.blocks is None or fetcher is None or not isinstance(order, EpochOrder):
            return batches
        steps = prefetch_windows(range(first, len(order)), order, self.blocks, fetcher)
        return (batch for _, batch in zip(steps, batches, strict=False))

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        """Return what a saved state holds of weights and sampler: nothing without."""
        if self.weights is not None:
            return {"weights": self.weights.digest}
        if self.sampler is None:
            return {}
        order = self.of(epoch) if step else None
        digest = order.digest(step) if isinstance(order, SampledOrder) else ""
        return {"sampler": {"rank": self.part.rank, "world_size": self.part.world_size, "indices": digest}}

    def check_resumed(self, state: dict[str, Any], epoch: int, step: int) -> None:
        """Raise StateError if the sampler now gives other indices than those handed out before `state` was saved.

        The indices of a state that another rank saved cannot be compared.
        """
        saved = state.get("sampler")
        if self.sampler is None and saved is None:
            return
        hint = "resume with the same sampler, its seed and epoch included, or start without the state"
        if self.sampler is None or not isinstance(saved, dict) or saved.get("world_size") != self.part.world_size:
            raise StateError("the saved state does not fit: one of it and this loader has a sampler of these ranks", hint=hint)
        if not step:
            return
        order = self.of(epoch)
        assert isinstance(order, SampledOrder)
        if step >= len(order):
            raise StateError(f"{step} batches were handed out, and the sampler gives {len(order)} for epoch {epoch}", hint=hint)
        if saved.get("rank") == self.part.rank and saved.get("indices") != order.digest(step):
            raise StateError(f"the sampler gives other indices for epoch {epoch} than those handed out before", hint=hint)

    def _ask(self, sampler: Sampler, epoch: int) -> SampledOrder:
        return ask(sampler, epoch, records=len(self.dataset), batch_size=self.batch_size, drop_last=self.drop_last)


def _agreed(order: SampledOrder, records: int, part: RankPart) -> SampledOrder:
    """Return the order with the occurrences of its records counted over all ranks, rank by rank.

    Without torch.distributed there is nobody to ask, and the order stays.
    """
    distributed = sys.modules.get("torch.distributed")  # if it is not imported, it is not initialized either
    if part.world_size == 1 or distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return order
    if distributed.get_world_size() != part.world_size or distributed.get_rank() != part.rank:
        return order
    try:  # a group of its own: on the CPU, with a time limit, and apart from the training's messages
        group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=_TIMEOUT_S))
        sizes: Sequence[tuple[int, int]] = gather_json(
            (len(order), len(order.indices)), world_size=part.world_size, group=group
        )
        counts = [batches for batches, _ in sizes]
        if len(set(counts)) == 1:
            earlier = _earlier(order.indices, [size for _, size in sizes], records, part.rank, group)
        distributed.destroy_process_group(group)
    except RuntimeError as error:
        raise SourceError(
            f"rank {part.rank} waited {_TIMEOUT_S:.0f} s for what the other ranks' samplers give: "
            f"{(str(error).splitlines() or [''])[0]}",
            hint="begin every pass on all ranks; for a loader of one rank alone pass rank=0, world_size=1",
        ) from error
    if len(set(counts)) > 1:
        raise UsageError(
            f"the samplers give different numbers of batches for epoch {order.epoch}: {counts}, by rank",
            hint="every rank must have as many, as torch's DistributedSampler does",
        )
    return SampledOrder(order.epoch, order.indices, order.starts, earlier)


def _earlier(indices: Positions, sizes: Sequence[int], records: int, rank: int, group: Any) -> Positions:
    """Return how often the lower ranks have each record, int64 [records]."""
    import torch
    from torch import distributed

    own = torch.zeros(max(sizes), dtype=torch.int64)
    own[: len(indices)] = torch.from_numpy(indices)
    all_ranks = [torch.zeros_like(own) for _ in sizes]
    distributed.all_gather(all_ranks, own, group=group)
    lower = [one[:size].numpy() for one, size in zip(all_ranks[:rank], sizes[:rank], strict=True)]
    return np.bincount(np.concatenate([np.empty(0, dtype=np.int64), *lower]), minlength=records)
