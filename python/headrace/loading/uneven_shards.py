"""Datasets in parts: each host sees only its own shards (SageMaker's ShardedByS3Key), and all ranks make equally many batches.

A dropped tail is what the larger parts have more than the smallest; a wrapped one repeats records of the smaller parts, so
that those of the largest all come. Ranks that see the same part (those of one host) divide it among them.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from headrace.datasets.records import Dataset
from headrace.errors import SourceError, UsageError

__all__ = ["Parts", "Share", "agree"]

Parts = Literal["agree"] | Sequence[int] | None
_TIMEOUT_S = 60.0  # for all ranks to say what they have
_Holding = tuple[str, int]  # fingerprint and records of a rank's part


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank has of a dataset in parts."""

    rank: int  # among the ranks of the same part
    world_size: int  # ranks of the same part
    steps: int | None  # batches of an epoch, the same on all ranks; None: as the whole dataset gives
    first_draw: int  # records of the parts before: random draws differ from part to part
    fingerprint: str  # of all parts, and how they are divided


def agree(parts: Parts, dataset: Dataset, *, rank: int, world_size: int, batch_size: int, drop_last: bool) -> Share:
    """What this rank does; `dataset` is its part, or with parts=None the whole.

    "agree": the ranks tell each other, through torch.distributed; a sequence: each rank's number of records.
    Raises UsageError when neither can be, SourceError when a rank stays silent or the numbers are not the data's.
    """
    if parts is None:
        return Share(rank, world_size, None, 0, dataset.fingerprint)
    if dataset.stream is not None and not drop_last:
        raise UsageError("parts of a stream need drop_last=True: what has gone by cannot be repeated")
    if parts == "agree":
        held = _told((dataset.fingerprint, len(dataset)), rank, world_size)
    elif isinstance(parts, str):
        raise UsageError(f"parts must be None, 'agree' or a number of records for each rank, not {parts!r}")
    else:
        held = _listed(parts, len(dataset), rank, world_size)
    ranks = {part: [other for other, its in enumerate(held) if its == part] for part in held}
    for part, its in ranks.items():
        if part[1] == 0:
            raise SourceError(f"the part of rank {its[0]} has no records", hint="give every host at least one shard")
    steps = [_steps(part[1], len(its) * batch_size, drop_last) for part, its in ranks.items()]
    own = held[rank]
    text = "".join(f"{name}:{count}:{len(ranks[name, count]) * batch_size}\n" for name, count in sorted(ranks))
    return Share(
        rank=ranks[own].index(rank),
        world_size=len(ranks[own]),
        steps=min(steps) if drop_last else max(steps),
        first_draw=sum(count for name, count in ranks if (name, count) < own),
        fingerprint=hashlib.sha256(text.encode()).hexdigest()[:32],
    )


def _steps(records: int, global_batch: int, drop_last: bool) -> int:
    return records // global_batch if drop_last else -(-records // global_batch)


def _listed(counts: Sequence[int], records: int, rank: int, world_size: int) -> list[_Holding]:
    """Each rank has a part of its own."""
    if len(counts) != world_size or any(not isinstance(count, int) or count < 0 for count in counts):
        raise UsageError(f"parts must hold the number of records of each of {world_size} ranks, not {list(counts)!r}")
    if counts[rank] != records:
        raise SourceError(f"rank {rank} has {records} records, parts says {counts[rank]}", hint="count them, or parts='agree'")
    return [(f"part {number:08d}", count) for number, count in enumerate(counts)]


def _told(own: _Holding, rank: int, world_size: int) -> list[_Holding]:
    """What every rank has, as they say."""
    if world_size == 1:
        return [own]
    distributed = sys.modules.get("torch.distributed")  # not imported: not initialised either
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        raise UsageError(
            "parts='agree' needs torch.distributed, through which the ranks tell each other how much they have",
            hint="torch.distributed.init_process_group(…) first, or parts=[records of rank 0, of rank 1, …]",
        )
    if distributed.get_world_size() != world_size or distributed.get_rank() != rank:
        raise UsageError("parts='agree' needs the rank and world_size of torch.distributed: leave them out")
    held: list[_Holding] = [("", 0)] * world_size
    try:  # a group of its own: with a time limit, on the CPU, and beside what the training sends
        group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=_TIMEOUT_S))
        distributed.all_gather_object(held, own, group=group)
        distributed.destroy_process_group(group)
    except RuntimeError as error:
        raise SourceError(
            f"rank {rank} waited {_TIMEOUT_S:.0f} s for the others to say how many records they have: "
            f"{(str(error).splitlines() or [''])[0]}",
            hint="every rank must make its Loader with parts='agree', in the same order; see what the others say",
        ) from error
    return held
