"""Look into the batches of the loaders that feed optimizer steps: which records, labels and values they hold.

The records are those that the sampler draws, the values those that `next()` returns. Batches 1, 2, 4, 8, … are looked at, and
each batch while all before were of one kind (one label, zeros, equal images, the same labels), as long as looking takes at
most `COST_SHARE` of the time. No batch is kept, and none is changed.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from headrace.attach.batches.batch_values import BatchValues, count_of, digest, is_on, read_values, records_of
from headrace.attach.batches.iteration import Iteration
from headrace.attach.batches.steps import StepRecorder
from headrace.attach.record import load_hooks
from headrace.attach.record.counters import COUNTERS
from headrace.attach.record.recorder import Recorder
from headrace.attach.record.unseen_frames import drop_own_frames, left_out_of_warnings

__all__ = ["install"]

COST_SHARE = 0.003
"""Look at no further batch while looking has taken more than this share of the time since the first batch."""

FIRST_LOOKS = 2
"""Look at so many batches of a loader whether or not it feeds optimizer steps: that is not known before."""

FREE_LOOKS = 16
"""Look at batches 1, 2, 4, … up to this one whatever it costs: a millisecond or two in all."""

MOST_LOADERS, MOST_PASSES = 64, 8
"""Record so many loaders of a process, and each of so many passes over a loader; of later passes the 16th, 32nd, …"""

GROUPS, MOST_DIGESTS = 3, 96
"""Digest so many batches of each worker of an iterable dataset, and so many in all."""

MOST_LABELS = 10_000
"""Count so many different labels at most."""

CONFIRMED = 3
"""Read so many batches of zeros, or of equal images, as a whole."""

MOSTLY = 0.9
"""Look at each batch while this share of the batches before held one label each."""


def install(step_recorder: StepRecorder) -> None:
    """Let the step recorder look into batches, and patch PyTorch's iterators to see which records the sampler draws."""
    if not is_on():
        return
    from torch.utils.data import dataloader

    watcher = _Watcher(step_recorder.recorder)
    step_recorder.contents = watcher
    base = dataloader._BaseDataLoaderIter
    base._next_index = _noted_draw(base._next_index, watcher)


def _noted_draw(original: Callable[[Any], Any], watcher: _Watcher) -> Callable[[Any], Any]:
    @left_out_of_warnings
    def _next_index(self: Any) -> Any:
        try:
            index = original(self)
        except BaseException as error:
            drop_own_frames(error)
            raise
        watcher.guarded(watcher.drawn, getattr(self, "_headrace", None), index, getattr(self, "_in_order", True))
        return index

    return _next_index


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


class _Pass:
    """One pass over a loader. base: batches that the loader had delivered before. digests: of records drawn, by batch."""

    __slots__ = ("base", "batches", "digests", "drawn", "ended", "epoch", "items", "looks", "of", "records", "wanted")

    def __init__(self, of: _Loader, epoch: int) -> None:
        self.of = of
        self.epoch = epoch
        self.base = of.batches
        self.wanted = epoch < MOST_PASSES or _is_power_of_two(epoch)
        self.drawn = self.batches = self.items = self.records = 0
        self.ended = False
        self.looks: list[tuple[int, str]] = []
        self.digests: dict[int, tuple[str, str, int]] = {}


class _Loader:
    """What has been seen in the batches of one loader."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.copies = int(facts.pop("workers", 0))
        self.digests_wanted = min(MOST_DIGESTS, GROUPS * self.copies) if self.copies > 1 else 0
        self.feeds = False
        self.batches = self.written = 0
        self.passes: list[_Pass] = []
        self.first: list[dict[str, Any]] = []
        self.digests: list[str] = []
        self.batch_records = self.record_looks = self.same_record_looks = 0
        self.record_set: str | None = None
        self.label_looks = self.single_label_looks = self.vector_looks = self.same_vector_looks = 0
        self.labels: Counter[int] = Counter()
        self.label_sizes = 0
        self.first_labels: tuple[int, ...] | None = None
        self.image_looks = self.zero_looks = self.equal_looks = self.comparable_looks = self.not_finite_looks = 0
        self.format = ""
        self.low: float | None = None
        self.high: float | None = None
        self.not_finite: tuple[int, ...] = ()

    def are_labels_of_one_kind(self) -> bool:
        """Whether most batches looked at hold one label each, or all of them the same labels."""
        is_single = 0 < self.label_looks * MOSTLY <= self.single_label_looks
        return is_single or 0 < self.vector_looks == self.same_vector_looks

    def are_images_of_one_kind(self) -> bool:
        """Whether the images of all batches looked at are zero, or equal within the batch."""
        return 0 < self.image_looks == self.zero_looks or 0 < self.comparable_looks == self.equal_looks

    def note_records(self, found: tuple[str, str, int]) -> None:
        _, records, count = found
        if self.record_set is None:
            self.record_set, self.batch_records = records, count
        self.record_looks += 1
        self.same_record_looks += records == self.record_set

    def note_values(self, number: int, values: BatchValues) -> None:
        if values.labels is not None and len(values.labels) > 1:
            self._note_labels(values.labels)
        if values.images is not None:
            self._note_images(number, values)

    def _note_labels(self, labels: tuple[int, ...]) -> None:
        self.label_looks += 1
        self.label_sizes += len(labels)
        self.single_label_looks += labels.count(labels[0]) == len(labels)
        if len(self.labels) < MOST_LABELS:
            self.labels.update(labels)
        if self.first_labels is None:
            self.first_labels = labels
        if len(labels) == len(self.first_labels):
            self.vector_looks += 1
            self.same_vector_looks += labels == self.first_labels

    def _note_images(self, number: int, values: BatchValues) -> None:
        self.image_looks += 1
        self.format = values.format
        self.zero_looks += values.is_zero
        self.comparable_looks += values.is_equal is not None
        self.equal_looks += bool(values.is_equal)
        if values.not_finite:
            self.not_finite_looks += 1
            self.not_finite = self.not_finite or (number, values.not_finite, values.looked)
        if values.low is not None and values.high is not None:
            self.low = values.low if self.low is None else min(self.low, values.low)
            self.high = values.high if self.high is None else max(self.high, values.high)

    def _expected_single(self) -> float:
        """The share of batches with one label that these labels would give in random order."""
        counts = list(self.labels.values())  # at once: another thread may write while this one counts
        total, size = sum(counts), self.label_sizes / max(1, self.label_looks)
        return sum((count / total) ** size for count in counts) if total else 0.0

    def line(self) -> dict[str, Any]:
        """The values of a `contents` line (`headrace.session.batch_contents`)."""
        names = (
            "batches", "batch_records", "record_set", "record_looks", "same_record_looks", "label_looks", "single_label_looks",
            "vector_looks", "same_vector_looks", "image_looks", "format", "low", "high", "zero_looks", "comparable_looks",
            "equal_looks",             "not_finite_looks", "not_finite", "digests", "first",
        )  # fmt: skip
        return {
            **self.facts,
            **{name: getattr(self, name) for name in names},
            "labels": self.label_sizes,
            "label": self.labels.most_common(1)[0][0] if self.labels else None,
            "label_kinds": len(self.labels),
            "expected_single": round(self._expected_single(), 4),
            "passes": [
                {name: getattr(one, name) for name in ("epoch", "looks", "batches", "items", "records", "ended")}
                for one in self.passes
            ],
        }


class _Watcher(load_hooks.Guarded):
    """Looks into the batches of all loaders of this process."""

    where = "looking into batches"

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.begin_session()
        recorder.before_flush.append(lambda last: self.guarded(self.write, last))

    def begin_session(self) -> None:
        """Forget the loaders of an earlier session of this process."""
        self._loaders: dict[int, _Loader] = {}
        self._pid = os.getpid()
        self._latest: _Loader | None = None
        self._begun_s: float | None = None
        self._spent_s = 0.0

    def pass_begun(self, iteration: Iteration, loader: Any) -> None:
        """Begin a pass. loader: None where it is that of an earlier pass."""
        if os.getpid() != self._pid:  # a rank that was forked
            self.begin_session()
        of = self._loaders.get(iteration.loader)
        if of is None:
            if loader is None or len(self._loaders) >= MOST_LOADERS:
                return
            of = self._loaders[iteration.loader] = _Loader(_facts(loader))
        iteration.contents = one = _Pass(of, iteration.epoch)
        if one.wanted:
            of.passes.append(one)

    def drawn(self, iteration: Iteration | None, index: Any, in_order: bool) -> None:
        """Note the records of a batch that the sampler of a pass has drawn. in_order: batches are delivered as drawn."""
        one: _Pass | None = getattr(iteration, "contents", None)
        if one is None:
            return
        one.drawn += 1
        one.records += count_of(index)
        is_look = one.wanted and _is_power_of_two(one.drawn)
        if is_look or _is_power_of_two(one.base + one.drawn):
            found = records_of(index)
            if found is not None:
                if in_order:
                    one.digests[one.drawn] = found
                if is_look:
                    one.looks.append((one.drawn, found[0]))

    def delivered(self, iteration: Iteration, data: Any) -> None:
        """Look at a batch that `next()` has returned, if it is its turn."""
        one = iteration.contents
        if self._latest is not None and COUNTERS.optimizer_steps:  # with the batch before
            self._latest.feeds = True
        self._latest = of = None if one is None else one.of
        if of is None:
            return
        of.batches += 1
        one.batches += 1
        one.items += iteration.items or 0
        records = one.digests.pop(one.batches, None)
        if records is not None:
            of.note_records(records)
        is_turn, is_odd = self._is_turn(of), of.feeds and of.are_images_of_one_kind()
        only_labels = not is_turn and not is_odd
        if only_labels and not (of.feeds and of.are_labels_of_one_kind()):
            return
        is_free = is_turn and of.batches <= max(FREE_LOOKS, of.digests_wanted)
        if not is_free and not self._may_look():
            return
        begin_s = time.thread_time()
        values = read_values(data, whole=max(of.zero_looks, of.equal_looks) < CONFIRMED, only_labels=only_labels)
        if values is not None:
            self._note(of, one, records, values)
        if not is_free:
            self._spent_s += time.thread_time() - begin_s

    def _may_look(self) -> bool:
        """Whether looking has cost little enough, without the first looks."""
        now_s = time.monotonic()
        if self._begun_s is None:
            self._begun_s = now_s
        return self._spent_s <= COST_SHARE * (now_s - self._begun_s)

    def _is_turn(self, of: _Loader) -> bool:
        """Whether a batch is looked at although nothing is odd."""
        if of.batches <= max(FIRST_LOOKS, of.digests_wanted):
            return True
        return of.feeds and _is_power_of_two(of.batches)

    def _note(self, of: _Loader, one: _Pass, records: tuple[str, str, int] | None, values: BatchValues) -> None:
        of.note_values(of.batches, values)
        if values.digest is not None and of.batches <= of.digests_wanted and len(of.digests) == of.batches - 1:
            of.digests.append(values.digest)
        if one.epoch == 0 and _is_power_of_two(one.batches):
            labels = None if values.labels is None else digest(repr(values.labels).encode())
            of.first.append(
                {"number": one.batches, "records": records and records[0], "labels": labels, "values": values.digest}
            )

    def pass_ended(self, iteration: Iteration) -> None:
        """Note that the loader was read to its end."""
        if iteration.contents is not None:
            iteration.contents.ended = True

    def write(self, last: bool) -> None:
        """Pass on what has been seen, each time that the batches have doubled, and at the end."""
        if os.getpid() != self._pid:
            return  # a worker
        for number, of in list(self._loaders.items()):
            if of.feeds and of.batches > of.written and (last or of.batches >= 2 * of.written):
                of.written = of.batches
                self._recorder.line("contents", loader=number, **of.line())


def _facts(loader: Any) -> dict[str, Any]:
    """Return the sampler and the classes of a DataLoader, and the workers that make batches of an iterable dataset."""
    from torch.utils.data import BatchSampler, DataLoader, IterableDataset

    if not isinstance(loader, DataLoader):
        return {}
    chooses: Any = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    if type(chooses) is BatchSampler:
        chooses = chooses.sampler
    facts: dict[str, Any] = {}
    if isinstance(loader.dataset, IterableDataset):
        facts["workers"] = loader.num_workers
    else:
        facts["sampler"] = type(chooses).__qualname__
    try:
        classes = vars(loader.dataset).get("classes")  # no attribute that computes something
    except TypeError:
        classes = None
    if isinstance(classes, list | tuple):
        facts["classes"] = len(classes)
        if len(classes) == 1 and isinstance(classes[0], str):
            facts["class_name"] = classes[0][:60]
    return facts
