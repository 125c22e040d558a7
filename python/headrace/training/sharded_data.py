"""Training data of which each host holds only its own shards: the hosts agree on the classes and count their images.

A part may lack the last classes, and the names of all: SageMaker's ShardedByS3Key gives the manifest to one host only. Labels
in packed shards are numbers, which mean the same on every host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from headrace.datasets.records import Dataset
from headrace.errors import SourceError
from headrace.training.distributed.ranks import JOIN_TIMEOUT_S, Ranks

__all__ = ["agree_on_classes", "common_classes"]


def agree_on_classes(data: Dataset, val: Dataset | None, ranks: Ranks) -> tuple[Dataset, int]:
    """Return this host's data with the classes of all parts, and the images of all parts. All ranks call it together.

    Raises SourceError if the parts number their classes differently, or have fewer than two.
    """
    own = (data.fingerprint, len(data), data.classes)
    parts = [own] if ranks.world_size == 1 else _gathered(own, ranks)
    lists = [classes for _, _, classes in parts]
    classes = common_classes([*lists, val.classes] if val is not None else lists, where=data.root)
    if len(classes) < 2:
        raise SourceError(f"{data.root} holds one class only", hint="give data of two or more classes")
    return replace(data, classes=classes), sum(count for _, count, _ in {(mark, count, ()) for mark, count, _ in parts})


def common_classes(lists: Sequence[tuple[str, ...]], *, where: str) -> tuple[str, ...]:
    """Return the longest list of names, if the others are its beginning or mere numbers. Raises SourceError if not.

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


def _gathered(own: tuple[str, int, tuple[str, ...]], ranks: Ranks) -> list[tuple[str, int, tuple[str, ...]]]:
    from torch import distributed

    found = [own] * ranks.world_size
    group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=JOIN_TIMEOUT_S))  # on the CPU, whatever trains
    distributed.all_gather_object(found, own, group=group)
    distributed.destroy_process_group(group)
    return found
