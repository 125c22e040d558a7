"""Datasets in parts: each host has only its own shards (SageMaker's ShardedByS3Key), yet all ranks make equally many batches.

With drop_last=True every part yields as many batches as the smallest one has. Otherwise smaller parts repeat records until the
largest part is read. Ranks that see the same part, those of one host, divide it among them.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from headrace.datasets.records.dataset import Dataset
from headrace.errors import SourceError, UsageError
from headrace.loading.order.rank_messages import gather_json

__all__ = ["Parts", "RankPart", "assign_part"]

Parts = Literal["agree"] | Sequence[int] | None
_TIMEOUT_S = 60.0  # fail if a rank has not sent its number of records after this many seconds
_PartSize = tuple[str, int]  # fingerprint of a rank's part, and its number of records


@dataclass(frozen=True, slots=True)
class RankPart:
    """The part of the dataset that one rank reads, and its place among the ranks that read the same part."""

    rank: int  # number of this rank among those that read the same part
    world_size: int  # number of ranks that read the same part
    steps: int | None  # batches per epoch, the same on all ranks; None: as many as the whole dataset gives
    first_draw: int  # number of records in the parts before this one, so that random draws differ between parts
    fingerprint: str  # identifies all parts together and how they are divided

    def whole_batches(self, records: int, batch_size: int) -> int:
        """Return how many full batches of this rank an epoch of `records` records has."""
        return records // (batch_size * self.world_size) if self.steps is None else self.steps


def assign_part(parts: Parts, dataset: Dataset, *, rank: int, world_size: int, batch_size: int, drop_last: bool) -> RankPart:
    """Return the part that this rank reads. dataset: that part, or with parts=None the whole dataset.

    parts: "agree": the ranks exchange their numbers of records through torch.distributed; a sequence: each rank's number.
    Raises UsageError for parts that do not fit the ranks, SourceError for numbers that do not fit the data and for a rank that
    does not answer.
    """
    if parts is None:
        return RankPart(rank, world_size, None, 0, dataset.fingerprint)
    if dataset.stream is not None and not drop_last:
        raise UsageError("parts of a stream need drop_last=True, because a stream cannot repeat records")
    if parts == "agree":
        sizes = _gather_sizes((dataset.fingerprint, len(dataset)), rank, world_size)
    elif isinstance(parts, str):
        raise UsageError(f"parts must be None, 'agree' or a number of records for each rank, not {parts!r}")
    else:
        sizes = _listed_sizes(parts, len(dataset), rank, world_size)
    ranks = {part: [number for number, other in enumerate(sizes) if other == part] for part in sizes}
    for part, readers in ranks.items():
        if part[1] == 0:
            raise SourceError(f"the part of rank {readers[0]} has no records", hint="give every host at least one shard")
    steps = [_steps(part[1], len(readers) * batch_size, drop_last) for part, readers in ranks.items()]
    own = sizes[rank]
    text = "".join(f"{name}:{count}:{len(ranks[name, count]) * batch_size}\n" for name, count in sorted(ranks))
    return RankPart(
        rank=ranks[own].index(rank),
        world_size=len(ranks[own]),
        steps=min(steps) if drop_last else max(steps),
        first_draw=sum(count for name, count in ranks if (name, count) < own),
        fingerprint=hashlib.sha256(text.encode()).hexdigest()[:32],
    )


def _steps(records: int, global_batch: int, drop_last: bool) -> int:
    return records // global_batch if drop_last else -(-records // global_batch)


def _listed_sizes(counts: Sequence[int], records: int, rank: int, world_size: int) -> list[_PartSize]:
    """Return the sizes given as a list, in which each rank has a part of its own."""
    if len(counts) != world_size or any(not isinstance(count, int) or count < 0 for count in counts):
        raise UsageError(f"parts must hold the number of records of each of {world_size} ranks, not {list(counts)!r}")
    if counts[rank] != records:
        raise SourceError(f"rank {rank} has {records} records, parts says {counts[rank]}", hint="count them, or parts='agree'")
    return [(f"part {number:08d}", count) for number, count in enumerate(counts)]


def _gather_sizes(own: _PartSize, rank: int, world_size: int) -> list[_PartSize]:
    """Return the sizes that all ranks report through torch.distributed."""
    if world_size == 1:
        return [own]
    distributed = sys.modules.get("torch.distributed")  # if it is not imported, it is not initialized either
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        raise UsageError(
            "parts='agree' needs torch.distributed, through which the ranks exchange their numbers of records",
            hint="torch.distributed.init_process_group(…) first, or parts=[records of rank 0, of rank 1, …]",
        )
    if distributed.get_world_size() != world_size or distributed.get_rank() != rank:
        raise UsageError("parts='agree' needs the rank and world_size of torch.distributed: leave them out")
    try:  # a group of its own: on the CPU, with a time limit, and apart from the training's messages
        group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=_TIMEOUT_S))
        sizes = [(str(name), int(count)) for name, count in gather_json(own, world_size=world_size, group=group)]
        distributed.destroy_process_group(group)
    except RuntimeError as error:
        raise SourceError(
            f"rank {rank} waited {_TIMEOUT_S:.0f} s for the other ranks' answers how many records they have: "
            f"{(str(error).splitlines() or [''])[0]}",
            hint="every rank must make its Loader with parts='agree', in the same order; see the messages of the other ranks",
        ) from error
    return sizes
