"""Data of which each host holds only its own shards: the hosts agree on the classes and count their images.

A part may lack the last classes, and the names of all: SageMaker's ShardedByS3Key gives the manifest to one host only. Labels
in packed shards are numbers, which mean the same on every host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from headrace.datasets.records.dataset import Dataset
from headrace.errors import SourceError
from headrace.loading.order.rank_messages import gather_json
from headrace.training.distributed.ranks import Ranks

__all__ = ["Agreement", "agree_on_parts", "common_classes", "left_out_note"]


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the hosts agreed on. data, val: this host's part, with the classes of all parts. images: number in all parts.

    note: a remark if the parts are of unequal size, else None.
    """

    data: Dataset
    val: Dataset | None
    images: int
    note: str | None


@dataclass(frozen=True, slots=True)
class _Part:
    """What a rank holds: fingerprint, images and classes of its training data; classes of its validation data."""

    fingerprint: str
    images: int
    classes: tuple[str, ...]
    val_classes: tuple[str, ...] | None


def agree_on_parts(data: Dataset, val: Dataset | None, ranks: Ranks, *, batch_size: int, sharded: bool) -> Agreement:
    """Return this host's data with the classes of all parts. All ranks call it together.

    batch_size: images of a step on each rank. sharded: whether `data` is a part, or only `val` is. Raises SourceError if the
    parts number their classes differently, or have fewer than two.
    """
    own = _Part(data.fingerprint, len(data), data.classes, val.classes if val is not None else None)
    parts = [own] if ranks.world_size == 1 else _gathered(own, ranks)
    lists = [part.classes for part in parts] + [part.val_classes for part in parts if part.val_classes is not None]
    classes = common_classes(lists, where=data.root)
    if len(classes) < 2:
        raise SourceError(f"{data.root} holds one class only", hint="give data of two or more classes")
    sizes = [(part.fingerprint, part.images) for part in parts]
    return Agreement(
        replace(data, classes=classes),
        val if val is None else replace(val, classes=classes),
        sum(images for _, images in set(sizes)),
        left_out_note(sizes, batch_size) if sharded else None,
    )


def left_out_note(parts: Sequence[tuple[str, int]], batch_size: int) -> str | None:
    """Return how many images an epoch leaves out because the parts are unequal; None if no more than any training does.

    parts: fingerprint and images of each rank's part. Ranks with the same part divide it.

    >>> left_out_note([("a", 40), ("b", 20)], 10).partition(":")[0]
    'note'
    """
    readers = Counter(parts)
    images = sum(count for _, count in readers)
    global_batch = batch_size * len(parts)
    steps = min(count // (batch_size * ranks) for (_, count), ranks in readers.items())
    left_out = images - steps * global_batch
    if left_out <= images % global_batch:  # an incomplete batch, which no training uses
        return None
    counts = [count for _, count in readers]
    return (
        f"note: the hosts' parts hold {min(counts):,} to {max(counts):,} images, and all make the {steps:,} steps of the "
        f"smallest, so each epoch leaves out {left_out:,} of {images:,} images ({100 * left_out / images:.1f} %), "
        "others each time; more shards divide more evenly (headrace pack --shard-size)"
    )


def common_classes(lists: Sequence[tuple[str, ...]], *, where: str) -> tuple[str, ...]:
    """Return the longest list of class names if every other is its beginning or mere numbers; else raise SourceError.

    >>> common_classes([("0", "1"), ("cat", "dog", "emu")], where="data")
    ('cat', 'dog', 'emu')
    """
    named = [classes for classes in lists if not _is_numbered(classes)]
    longest = max(named or lists, key=len)
    numbers = tuple(map(str, range(max(map(len, lists)))))
    if any(classes != longest[: len(classes)] for classes in named) or (named and len(longest) < len(numbers)):
        raise SourceError(
            f"{where}: the hosts' parts have different classes",
            hint="pack the images (headrace pack): shards hold the number of each class; or give every host all data",
        )
    return longest if named else numbers


def _is_numbered(classes: tuple[str, ...]) -> bool:
    return classes == tuple(map(str, range(len(classes))))


def _gathered(own: _Part, ranks: Ranks) -> list[_Part]:
    """Return the parts of all ranks. Values on the CPU are exchanged by gloo, whatever trains."""
    return [
        _Part(part["fingerprint"], part["images"], _names(part["classes"]), val and _names(val))
        for part in gather_json(asdict(own), world_size=ranks.world_size)
        for val in (part["val_classes"],)
    ]


def _names(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(str, names))
