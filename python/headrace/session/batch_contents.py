"""What a session holds of the contents of batches: which records, labels and values were seen, and which random draws.

`headrace.attach.batches.contents` and `headrace.attach.batches.worker_draws` record it. Digests compare, and tell nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.session.typed_json import converter

__all__ = [
    "Contents",
    "GeneratorState",
    "LoaderContents",
    "LookedBatch",
    "Pass",
    "WorkerDraws",
    "contents_lines",
    "joined",
    "read_contents",
]

MOST_LINES, MOST_ITEMS = 20_000, 4096
"""Read so many lines of one kind, and entries of one line, at most. The recorder writes fewer."""


@dataclass(frozen=True, slots=True)
class LookedBatch:
    """Digests of one batch of the first pass: of its records in their order, of its labels, of its values."""

    number: int
    records: str | None = None
    labels: str | None = None
    values: str | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over a loader (an epoch, unless the script leaves it early).

    looks: number of a batch and the digest of its records in their order, for batches 1, 2, 4, 8, …
    batches, items: delivered. records: drawn by the sampler. ended: whether the loader was read to its end.
    """

    epoch: int
    looks: tuple[tuple[int, str], ...] = ()
    batches: int = 0
    items: int = 0
    records: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class LoaderContents:
    """What was seen in the batches of one loader that feeds optimizer steps. Other batches count in `batches` only.

    sampler: class that chooses the records. classes, class_name: number of classes that the dataset names; the name of a
        single one.
    batch_records, record_set, record_looks, same_record_looks: records and their digest in the first batch looked at,
        whatever their order; batches whose records were compared with it, and how many of these were the same.
    label_looks, labels, label, label_kinds: batches with integer labels, labels in them, the most frequent, and how many
        different ones. single_label_looks: batches with one label only. expected_single: the share of such batches if the
        labels were in random order. vector_looks, same_vector_looks: batches of the first's size, and those with its labels.
    image_looks: batches with images on the CPU. format, low, high: of their values; None where not finite.
    zero_looks: batches of zeros. equal_looks: batches whose images are all the same, of `comparable_looks` with four or more.
    not_finite_looks: batches with values that are NaN or infinite. not_finite: the first of them: number of the batch, values
        that are not finite, values looked at.
    digests: of the values of the first batches, one after the other, where several workers make an iterable dataset's.
    """

    pid: int
    loader: int
    sampler: str = ""
    classes: int | None = None
    class_name: str | None = None
    batches: int = 0
    batch_records: int = 0
    record_set: str | None = None
    record_looks: int = 0
    same_record_looks: int = 0
    label_looks: int = 0
    labels: int = 0
    label: int | None = None
    label_kinds: int = 0
    single_label_looks: int = 0
    expected_single: float = 0.0
    vector_looks: int = 0
    same_vector_looks: int = 0
    image_looks: int = 0
    format: str = ""
    low: float | None = None
    high: float | None = None
    zero_looks: int = 0
    comparable_looks: int = 0
    equal_looks: int = 0
    not_finite_looks: int = 0
    not_finite: tuple[int, ...] = ()
    digests: tuple[str, ...] = ()
    first: tuple[LookedBatch, ...] = ()
    passes: tuple[Pass, ...] = ()


@dataclass(frozen=True, slots=True)
class GeneratorState:
    """The state of one random number generator in a worker.

    name: where it is, such as `dataset.rng`. type: its class. state: digest of all of it. seed: digest of what drawing leaves
    as it is; None where all of it changes.
    """

    name: str
    type: str
    state: str
    seed: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerDraws:
    """The random number generators of one worker process after `made` batches."""

    pid: int
    loader: int
    worker: int
    time_s: float
    made: int
    generators: tuple[GeneratorState, ...] = ()


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of all batches of a session, as far as they were looked at."""

    loaders: tuple[LoaderContents, ...] = ()
    draws: tuple[WorkerDraws, ...] = ()

    def renumbered(self, number: Mapping[tuple[int, int], int], parents: Mapping[int, int]) -> Contents:
        """Return the contents with other numbers of loaders. number: by pid of the training process and old number."""
        return Contents(
            tuple(replace(one, loader=number.get((one.pid, one.loader), one.loader)) for one in self.loaders),
            tuple(
                replace(one, loader=number.get((parents.get(one.pid, one.pid), one.loader), one.loader)) for one in self.draws
            ),
        )


def joined(parts: Sequence[LoaderContents]) -> LoaderContents:
    """Return the contents of loaders that the script made one after the other, as those of one loader. `parts`: one or more."""
    first = parts[0]
    if len(parts) == 1:
        return first
    seen = [part for part in parts if part.label_looks]
    labels = {part.label for part in seen}
    passes = [one for part in parts for one in part.passes]
    lows, highs = (
        [value for value in values if value is not None] for values in zip(*((p.low, p.high) for p in parts), strict=True)
    )
    names = ("batches", "record_looks", "label_looks", "labels", "single_label_looks", "image_looks", "zero_looks")
    more = ("comparable_looks", "equal_looks", "not_finite_looks")
    return replace(
        first,
        **{name: sum(getattr(part, name) for part in parts) for name in (*names, *more)},
        same_record_looks=sum(part.same_record_looks for part in parts if part.record_set == first.record_set),
        label_kinds=max([part.label_kinds for part in parts] + [len(labels)]),
        expected_single=sum(part.expected_single for part in seen) / max(1, len(seen)),
        low=min(lows, default=None),
        high=max(highs, default=None),
        not_finite=next((part.not_finite for part in parts if part.not_finite), ()),
        passes=tuple(replace(one, epoch=number) for number, one in enumerate(passes)),
    )


def read_contents(contents: Sequence[Mapping[str, Any]], draws: Sequence[Mapping[str, Any]], zero_s: float) -> Contents:
    """Return the contents in the lines of a session. Raises `ValueError` for a value of another type, or too many of them."""
    if len(contents) > MOST_LINES or len(draws) > MOST_LINES:
        raise ValueError("too many lines about the contents of batches")
    last: dict[tuple[int, int], LoaderContents] = {}
    for line in contents:
        one: LoaderContents = converter(LoaderContents)(line)
        if max(len(one.passes), len(one.first), len(one.digests), len(one.not_finite)) > MOST_ITEMS:
            raise ValueError("the contents of batches have too many entries")
        last[one.pid, one.loader] = one  # each line replaces the one before
    found = []
    for line in draws:
        if len(line.get("generators", ())) > MOST_ITEMS:
            raise ValueError("a worker with too many generators")
        worker: WorkerDraws = converter(WorkerDraws)(line)
        found.append(replace(worker, time_s=worker.time_s - zero_s))
    return Contents(tuple(last.values()), tuple(sorted(found, key=lambda one: one.time_s)))


def contents_lines(found: Contents) -> Iterator[dict[str, Any]]:
    """Yield the lines that `read_contents` reads back, for a session whose clock begins at 0."""
    for loader in found.loaders:
        yield {"kind": "contents", **asdict(loader)}
    for worker in found.draws:
        yield {"kind": "draws", **asdict(worker)}
