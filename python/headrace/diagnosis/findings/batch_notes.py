"""Notes on what is in the batches: records, labels and values that are not what a training usually wants.

Each states what was seen, and in how many batches. None says what the script meant: one batch may be trained again and again on
purpose. Only loaders that feed an optimizer have contents in a session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.diagnosis.findings.draw_notes import draw_notes
from headrace.diagnosis.result.model import NOTES, Note
from headrace.session.batch_contents import LoaderContents, LookedBatch, WorkerDraws, joined
from headrace.session.model import ObservedLoader, Session, owners
from headrace.system.text.sizes import count_text, number_text

__all__ = ["batch_notes"]

LEAST_LOOKS = 4
"""Judge what batches have in common from so many batches on."""

LEAST_LABELS, LEAST_EACH = 64, 4
"""Judge labels from so many on, and from so many in a batch on average."""

SORTED_LOOKS, SORTED_SHARE, SHUFFLED_SHARE = 8, 0.9, 0.5
"""Call labels sorted if of so many batches this share holds one label each, and less than the last share would by chance."""

LEAST_RECORDS = 16
"""Compare the order of epochs where the batches compared hold at least so many records."""

SAME_LOOKS = 3
"""Call the batches of two ranks the same if so many of them are, and none differs."""

FULL_RANGE = (127.0, 255.0)
"""Values of images are stated if their largest is within this range and none is negative."""


Key = tuple[int, int]
"""Pid of a training process, and the number of a loader in it."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a session says of batches, by process and loader.

    ranks: number of each rank that averages gradients, by pid, in order of the number. looked: those with contents, by loader.
    """

    loaders: Mapping[Key, ObservedLoader]
    contents: Mapping[Key, LoaderContents]
    draws: Mapping[Key, Sequence[WorkerDraws]]
    ranks: Mapping[int, int]
    looked: Mapping[int, Sequence[int]]


def batch_notes(session: Session, *pids: int) -> tuple[Note, ...]:
    """Return notes on odd batches: those of the first training process that has some, and those that compare all ranks.

    () where no batch is odd.
    """
    every = _seen(session)
    numbers: dict[int, list[int]] = {}
    for pid, loader in every.contents:
        numbers.setdefault(pid, []).append(loader)
    return next((notes for pid in pids if (notes := _of_process(every, pid, numbers.get(pid, [])))), ())


def _seen(session: Session) -> _Seen:
    contents: dict[Key, list[LoaderContents]] = {}
    for one in session.contents.loaders:
        contents.setdefault((one.pid, one.loader), []).append(one)
    parents, draws = owners(session.processes), dict[Key, list[WorkerDraws]]()
    for each in session.contents.draws:
        draws.setdefault((parents.get(each.pid, -1), each.loader), []).append(each)
    parallel = {step.pid for step in session.steps if step.forward_s is not None}
    by_rank = {one.rank: one.pid for one in session.processes if one.role == "main" and one.pid in parallel}
    ranks, looked = {pid: rank for rank, pid in sorted(by_rank.items())}, dict[int, list[int]]()
    for pid, loader in sorted(contents, key=lambda key: ranks.get(key[0], -1)):
        if pid in ranks:
            looked.setdefault(loader, []).append(pid)
    return _Seen(
        loaders={(one.pid, one.loader): one for one in reversed(session.loaders)},  # the first of several counts
        contents={key: joined(parts) for key, parts in contents.items()},
        draws=draws,
        ranks=ranks,
        looked=looked,
    )


def _of_process(every: _Seen, pid: int, loaders: Sequence[int]) -> tuple[Note, ...]:
    found: list[Note] = []
    for loader in loaders:
        of, seen = every.loaders.get((pid, loader)), every.contents[pid, loader]
        if of is not None:
            notes = (*_of_loader(seen, of), *_of_ranks(every, pid, seen, of), *draw_notes(every.draws.get((pid, loader), ())))
            which = (f"seen in loader {loader + 1}, of {of.dataset}",) if len(loaders) > 1 else ()
            found += [replace(note, evidence=(*note.evidence, *which)) for note in notes]
    order = list(NOTES)
    return tuple(sorted(dict.fromkeys(found), key=lambda note: order.index(note.kind)))


def _of_loader(seen: LoaderContents, loader: ObservedLoader) -> Iterator[Note]:
    yield from _on_values(seen)
    repeats = _same_records(seen, loader)
    if repeats is not None:
        yield repeats
    yield from _on_labels(seen, repeats is not None)
    yield from _undivided(seen, loader)
    if repeats is None:
        yield from _same_order(seen)


def _looks(count: int, seen: LoaderContents) -> str:
    return f"{count_text(count, 'batch')} looked at, of {seen.batches:,}"


def _on_values(seen: LoaderContents) -> Iterator[Note]:
    """Yield notes on the values of images."""
    if seen.not_finite_looks and len(seen.not_finite) == 3:
        number, bad, looked = seen.not_finite
        yield Note(
            "not_finite",
            f"the images of batch {number:,} hold NaN or infinite values: {bad:,} of {looked:,} values looked at",
            (f"such values are in {seen.not_finite_looks:,} of {_looks(seen.image_looks, seen)}",),
        )
    if seen.image_looks < LEAST_LOOKS:
        return
    if seen.zero_looks == seen.image_looks:
        yield Note(
            "zero_images",
            f"every image is zero: {_looks(seen.zero_looks, seen)}",
            ("the first of them were read as a whole, of the others up to 4,096 values",),
        )
    elif seen.equal_looks == seen.comparable_looks >= LEAST_LOOKS:
        yield Note(
            "equal_images",
            f"all images of a batch are the same: {_looks(seen.equal_looks, seen)}",
            ("up to 16 images of a batch were compared; the first batches as a whole, the others at 256 places or more",),
        )
    is_float, low, high = seen.format.startswith(("float", "bfloat")), seen.low, seen.high
    if is_float and low is not None and high is not None and low >= 0.0 and FULL_RANGE[0] < high <= FULL_RANGE[1]:
        span = f"{number_text(low)} to {number_text(high)}"
        yield Note(
            "values_to_255",
            f"the loader gives images of {seen.format} with values from {span}, not scaled to 0 to 1",
            (f"{_looks(seen.image_looks, seen)}; whether the loop or the model scales them is not seen",),
        )


def _same_records(seen: LoaderContents, loader: ObservedLoader) -> Note | None:
    """Return a note when each batch holds the same records and the dataset has more; None otherwise."""
    length = loader.dataset_length
    if seen.record_looks < LEAST_LOOKS or seen.same_record_looks < seen.record_looks:
        return None
    if length is None or length <= seen.batch_records:  # each batch is all of the dataset
        return None
    evidence = [f"their indices were compared in {_looks(seen.record_looks, seen)}"]
    one_each = [one for one in seen.passes if one.batches <= 1]
    if len(one_each) > 1:
        evidence.append("each pass over the loader gave one batch, its first, as next(iter(loader)) in each step does")
    text = f"every batch holds the same {count_text(seen.batch_records, 'record')}, of {length:,} in the dataset"
    return Note("same_records", text, tuple(evidence))


def _on_labels(seen: LoaderContents, repeats: bool) -> Iterator[Note]:
    """Yield notes on labels: integers beside the images, one for each. repeats: each batch holds the same records."""
    if seen.label_looks < LEAST_LOOKS or seen.labels < LEAST_LABELS:
        return
    each = seen.labels / seen.label_looks
    if seen.label_kinds == 1:
        yield Note(
            "one_label",
            f"every label is {seen.label}: {count_text(seen.labels, 'label')} in {_looks(seen.label_looks, seen)}",
            tuple(_why_one_label(seen)),
        )
    elif (
        seen.label_looks >= SORTED_LOOKS
        and each >= LEAST_EACH
        and seen.single_label_looks >= SORTED_SHARE * seen.label_looks
        and seen.expected_single <= SHUFFLED_SHARE
    ):
        by_chance = round(seen.expected_single * seen.label_looks)
        yield Note(
            "one_label_a_batch",
            f"the records come sorted: one label each in {seen.single_label_looks:,} of {_looks(seen.label_looks, seen)}",
            (f"in random order {by_chance:,} of them would", *_sampler_words(seen)),
        )
    elif not repeats and _do_labels_stay(seen) and each >= 2 * LEAST_EACH:
        yield Note(
            "same_labels",
            f"the labels are the same in every batch while the records differ: {_looks(seen.vector_looks, seen)}",
            (f"{seen.label_kinds:,} different labels; a sampler that takes the classes in turn gives this, too",),
        )


def _why_one_label(seen: LoaderContents) -> Iterator[str]:
    if seen.classes == 1:
        named = f": {seen.class_name!r}" if seen.class_name else ""
        yield f"the dataset has one class{named}; its folder may lie one level too deep, or the training needs no labels"
    elif seen.sampler == "SequentialSampler" and not any(one.ended for one in seen.passes):
        yield "no epoch was read to its end, and the loader does not shuffle: other labels may follow"
    else:
        yield "right for a training that needs no labels"


def _do_labels_stay(seen: LoaderContents) -> bool:
    """Whether all batches have the labels of the first, in its order, and their records or values differ."""
    if seen.vector_looks < LEAST_LOOKS or seen.same_vector_looks < seen.vector_looks:
        return False
    if seen.record_looks >= LEAST_LOOKS:
        return seen.same_record_looks <= seen.record_looks / 2
    values = {one.values for one in seen.first if one.values is not None}
    return len(values) >= LEAST_LOOKS


def _sampler_words(seen: LoaderContents) -> tuple[str, ...]:
    return {
        "SequentialSampler": ("the loader does not shuffle (shuffle=True does)",),
        "DistributedSampler": ("DistributedSampler shuffles anew where sampler.set_epoch(epoch) is called before each epoch",),
        "RandomSampler": ("the loader shuffles, from a generator that begins alike in each epoch",),
    }.get(seen.sampler, (f"the records are chosen by {seen.sampler}",) if seen.sampler else ())


def _same_order(seen: LoaderContents) -> Iterator[Note]:
    """Yield a note when all epochs begin with the same records in the same order."""
    passes = [dict(one.looks) for one in seen.passes if len(one.looks) >= 2]
    if len(passes) < 2:
        return
    common = sorted(set(passes[0]).intersection(*passes[1:]))
    if len(common) < 2 or len(common) * seen.batch_records < LEAST_RECORDS:
        return
    if any(one[number] != passes[0][number] for one in passes[1:] for number in common):
        return
    numbers = ", ".join(f"{number:,}" for number in common)
    yield Note(
        "same_order",
        f"the records come in the same order in every epoch: {count_text(len(passes), 'epoch')} compared",
        (*_sampler_words(seen), f"batches {numbers} of each hold the same records in the same order"),
    )


def _undivided(seen: LoaderContents, loader: ObservedLoader) -> Iterator[Note]:
    """Yield a note when each worker of an iterable dataset gives all of its records."""
    workers, length = loader.num_workers, loader.dataset_length
    if not loader.iterable or workers < 2:
        return
    evidence = []
    groups = len(seen.digests) // workers
    counts = Counter(seen.digests[: groups * workers])
    if groups >= 2 and len(counts) >= 2 and set(counts.values()) == {workers}:
        evidence.append(
            f"of the first {groups * workers:,} batches, {len(counts):,} differ: each came {count_text(workers, 'time')}"
        )
    whole = [one.items for one in seen.passes if one.ended and one.items]
    if length and whole and set(whole) <= _items_if_undivided(workers, length, loader.batch_size):
        evidence.append(f"an epoch gave {whole[0]:,} records, and the dataset's length is {length:,}")
    if evidence:
        text = f"each of the {workers:,} workers gives all records of the iterable dataset, so each comes {workers:,} times"
        yield Note("workers_repeat", text, (*evidence, "torch.utils.data.get_worker_info() tells a worker its part"))


def _items_if_undivided(workers: int, length: int, batch_size: int | None) -> set[int]:
    """Return how many records an epoch gives if each worker yields all: with the last batches, and without (`drop_last`)."""
    kept = length // batch_size * batch_size if batch_size else length
    return {workers * length} | ({workers * kept} if kept and workers * kept > length else set())


def _of_ranks(every: _Seen, mine: int, seen: LoaderContents, of: ObservedLoader) -> Iterator[Note]:
    """Yield a note when ranks that average their gradients read the same records: ranks of DistributedDataParallel only."""
    loader, ranks = of.loader, every.ranks
    if mine not in ranks:
        return
    first = {one.number: one for one in seen.first}
    same = [
        (ranks[pid], shared)
        for pid in every.looked.get(loader, ())
        if pid != mine and (shared := _shared_batches(first, every.contents[pid, loader].first))
    ]
    advice = "a DistributedSampler divides them; tensor-parallel ranks read alike on purpose"
    if same:
        numbers = sorted([ranks[mine], *(number for number, _ in same)])
        named = ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
        text = f"ranks {named} train on the same records in the same order"
        yield Note("ranks_repeat", text, (same[0][1], advice))
    elif len(ranks) > 1 and all(_reads_all(every, pid, loader, of) for pid in ranks):
        text = f"each of {len(ranks):,} ranks reads all {of.dataset_length:,} records in an epoch, in its own order"
        yield Note("ranks_repeat", text, (f"the records are chosen by {seen.sampler} in each rank", advice))


def _shared_batches(mine: Mapping[int, LookedBatch], theirs: Sequence[LookedBatch]) -> str:
    """Return in words which batches of two ranks are the same; "" where that is not certain, or one differs.

    mine: by their number.
    """
    pairs = [(mine[other.number], other) for other in theirs if other.number in mine]
    numbers = ", ".join(f"{one.number:,}" for one, _ in pairs)
    values = [(one.values, other.values) for one, other in pairs if one.values and other.values]
    if len(values) >= SAME_LOOKS and all(one == other for one, other in values) and len(set(values)) >= SAME_LOOKS:
        return f"batches {numbers} of each hold the same values"
    known = [(one, other) for one, other in pairs if one.records and one.labels and other.records and other.labels]
    alike = all((one.records, one.labels) == (other.records, other.labels) for one, other in known)
    if len(known) >= SAME_LOOKS and alike and len({one.labels for one, _ in known}) >= SAME_LOOKS:
        return f"batches {numbers} of each hold the same indices and the same labels"
    return ""


def _reads_all(every: _Seen, pid: int, loader: int, of: ObservedLoader) -> bool:
    """Whether a rank draws each record of a dataset that is certainly the same in all ranks: one of torchvision, not a part."""
    own, seen = every.loaders.get((pid, loader)), every.contents.get((pid, loader))
    if own is None or seen is None or seen.sampler not in ("RandomSampler", "SequentialSampler"):
        return False
    if not own.dataset.startswith("torchvision.datasets.") or (own.dataset, own.dataset_length) != (
        of.dataset,
        of.dataset_length,
    ):
        return False
    return own.sample_paths == of.sample_paths and any(one.ended and one.records == own.dataset_length for one in seen.passes)
