"""Loader: a dataset and a pipeline of transforms become batches, exactly once per epoch, in an order that is arithmetic."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from headrace.datasets.open import open as open_dataset
from headrace.datasets.records import Dataset, Stream
from headrace.datasets.sources.masks import with_masks
from headrace.errors import FormatError, SourceError, StateError, UsageError
from headrace.loading.batch_transforms import BatchKey
from headrace.loading.block_shuffle import WINDOW, Blocks, window_bytes
from headrace.loading.byte_cache import open_cache, parse_cache
from headrace.loading.feed import Begun, Filled, IndexBatch, Masks, OnError
from headrace.loading.order import EpochOrder
from headrace.loading.shuffle_prefetch import announced
from headrace.loading.stats import LoaderStats, ShuffleQuality, summarise
from headrace.loading.streaming import BUFFER, StreamOptions, StreamPass
from headrace.loading.uneven_shards import Parts, Share, agree
from headrace.loading.views import Output, begin_views, make_views, run_views, transform_hash
from headrace.system import machine
from headrace.system.sizes import parse_size
from headrace.transforms.base import Transform
from headrace.transforms.compile import DctScale, Dtype, Fuse
from headrace.transforms.composition import Views

__all__ = ["Loader"]

_STATE_VERSION = 1


class Loader:
    """Iterates over batches of `data` (a Dataset, or a path for `headrace.open`); one pass is one epoch.

    Yields (images, labels). With output="torch": images are (N, 3, H, W) over channels-last memory, labels int64 [N]; with
    output="numpy": images [N, H, W, 3]. dtype is "uint8", "float32", "float16" or "bfloat16" (torch only). `batch_size` is per
    rank; `rank` and `world_size` default to torch.distributed's, else 0 of 1. device="cuda" yields tensors on the GPU.

    A finished pass advances the epoch; leaving a pass early and iterating again starts the same epoch anew. The order, and the
    draws of random transforms, depend on (seed, epoch, record) alone: not on threads, ranks or resuming.

    shuffle: True mixes everything; "block" or "block:SIZE" takes shards in random order and mixes the records of SIZE bytes of
    shards (2 GiB) at a time, which reads an object store in large pieces; `explain` says how good that is for this dataset.
    parts: None when every rank opens the same dataset. Where each host has only its own shards (ShardedByS3Key): "agree", the
    ranks tell each other how many records they have and make equally many batches; or a list of each rank's number.

    fuse: "geometry" does any run of crops, resizes, flips, rotations and affines in one sampling; "off" does one operation
    after the other, bit for bit as torchvision on Pillow images (docs/exactness.md says what differs).
    dct_scale: "auto" decodes JPEGs at half or quarter size where they are shrunk that much anyway: faster and not exact.

    on_error: "raise" a DecodeError at a bad record, or "skip": substitute a deterministic other record, count and list it.
    mask: batches are (images, labels, masks), masks uint8 [N, H, W]: class numbers that follow the geometry of their image with
    the nearest pixel, and none of its colours. Either the ending of the members of a tar that are masks ("mask.png" for
    `7.mask.png` beside `7.jpg`), or a folder with `KEY.png` for each image `KEY.jpg` of any dataset; PNG of gray or palette
    indices, up to 8 bits.
    mask_fill: the class where the transform shows what is outside the image (0 to 255; 255 is often "ignore").
    with_json: batches are (images, labels, documents): the JSON that lies beside each image in its shard or tar, parsed;
    they come last, after masks.
    cache: "ram:8GiB" or "disk:FOLDER:200GiB" keeps the encoded bytes of records after their first read, for slow storage; see
    `headrace.loading.byte_cache`.
    Close the loader (or use `with`) to stop its threads at once; otherwise they stop when it is collected.
    """

    def __init__(
        self,
        data: Dataset | str | os.PathLike[str],
        batch_size: int,
        transform: Transform | Callable[[Any], Any] | None = None,
        *,
        seed: int = 0,
        shuffle: bool | str = True,
        drop_last: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        threads: int | None = None,
        prefetch: int = 3,
        device: str = "cpu",
        dtype: Dtype = "uint8",
        output: Output = "torch",
        on_error: OnError = "raise",
        mask: str | os.PathLike[str] | None = None,
        mask_fill: int = 0,
        with_json: bool = False,
        cache: str | None = None,
        parts: Parts = None,
        fuse: Fuse = "geometry",
        dct_scale: DctScale = "off",
    ) -> None:
        self.dataset = data if isinstance(data, Dataset) else open_dataset(data)
        self._masks = None
        if mask is not None:
            if not 0 <= mask_fill <= 255:
                raise UsageError(f"mask_fill must be from 0 to 255, not {mask_fill}")
            self.dataset, mask_table = with_masks(self.dataset, mask)
            self._masks = Masks(mask_table, mask_fill)
        bytes_cache, self._cached = None if cache is None else parse_cache(cache), cache
        if output not in ("torch", "numpy"):
            raise UsageError(f"output must be 'torch' or 'numpy', not {output!r}")
        if output == "numpy" and (dtype == "bfloat16" or device != "cpu"):
            raise UsageError("output='numpy' offers no bfloat16 and no GPU; use output='torch'")
        if not 0 <= seed < 2**63:
            raise UsageError(f"seed must be 0 or more and below 2**63, not {seed}")
        self.batch_size, self.seed, self.shuffle, self.drop_last = batch_size, seed, shuffle, drop_last
        self.output, self.device, self.dtype = output, device, dtype
        self.rank, self.world_size = _world(rank, world_size)
        self._epoch, self._step = 0, 0
        self._resume_step: int | None = None
        self._blocks: Blocks | None = None
        self._passing: StreamPass | None = None
        self._begun: Begun | None = None
        self._under_way: Begun | None = None  # the pass of which a batch was handed out last, and there are more
        self._share = Share(self.rank, self.world_size, None, 0, "")
        self._order(0, 0)  # checks batch_size, rank and world_size now, not at the first batch
        self._share = agree(
            parts, self.dataset, rank=self.rank, world_size=self.world_size, batch_size=batch_size, drop_last=drop_last
        )
        window = window_bytes(shuffle, BUFFER if self.dataset.stream is not None else WINDOW)
        self._blocks = None if window is None or self.dataset.stream is not None else Blocks.of(self.dataset.table, window)
        self._mixing = bool(shuffle) if window is None else f"block:{window}"  # as saved states call it
        self._stream_options = StreamOptions(
            batch_size=batch_size,
            rank=self._share.rank,
            world_size=self._share.world_size,
            drop_last=drop_last,
            seed=seed,
            buffer_bytes=(window or parse_size(BUFFER)) if shuffle else 0,
            ahead=prefetch,
            steps=self._share.steps,
        )
        self._views = make_views(
            self.dataset,
            transform,
            dtype=dtype,
            fuse=fuse,
            dct_scale=dct_scale,
            output=output,
            device=device,
            batch_size=batch_size,
            threads=threads if threads is not None else max(1, round(machine.cores().usable)),
            prefetch=prefetch,
            seed=seed,
            on_error=on_error,
            cache=lambda: None if bytes_cache is None else open_cache(bytes_cache, self.dataset),
            masks=self._masks,
        )
        self._several, self._with_json = isinstance(transform, Views), with_json
        if with_json and self.dataset.table.json_size is None:
            raise UsageError(f"the records of {self.dataset.root} have no JSON beside them", hint="drop with_json")
        self.pipeline = self._views[0].pipeline

    def __len__(self) -> int:
        return len(self._order(self._epoch))

    def __reduce__(self) -> NoReturn:
        # TypeError is what pickle, copy and multiprocessing expect of an object that stays where it is.
        raise TypeError("a headrace.Loader has threads and memory of its own and cannot be pickled: make one in each process")

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        if self.dataset.stream is not None:
            first, self._resume_step = self._resume_step or 0, None
            self._step = first
            return self._stream_pass(self.dataset.stream, first)
        order = self._order(self._epoch)
        if len(order) == 0:
            raise SourceError(
                f"{self.dataset.root} has {len(self.dataset)} records, fewer than one global batch of {order.global_batch}",
                hint="use a smaller batch_size, or drop_last=False",
            )
        first = self._resume_step or 0
        self._resume_step, self._step = None, first
        return self._pass(order, first)

    def begin_next(self) -> None:
        """Starts on the first batches of the next pass now, so that it begins without a wait; not of a stream.

        For the moment at which the last batch of a pass was handed out and another pass is certain to follow. Where the next
        pass is another one after all (`set_epoch`, `load_state_dict`), the work is given up.
        """
        self._give_up_begun()
        order = self._order(self._epoch)
        if self.dataset.stream is None and self._resume_step is None and len(order):
            self._begun = self._begin(order, 0)
            self._views[0].feed.start(self._begun)

    def _begin(self, order: EpochOrder, first: int) -> Begun:
        steps: Iterable[int] = range(first, len(order))
        if self._blocks is not None and self.dataset.fetcher is not None:
            steps = announced(steps, order, self._blocks, self.dataset.fetcher)
        first_draw = self._share.first_draw  # not `self` below: a cycle would keep the threads until the collector runs
        return begin_views(self._views, (_index_batch(order, step, first_draw) for step in steps), order.epoch)

    def _give_up_begun(self) -> None:
        if self._begun is not None:
            self._begun.cancel()
            self._begun = None

    def _pass(self, order: EpochOrder, first: int) -> Iterator[tuple[Any, ...]]:
        begun, self._begun = self._begun, None
        if begun is not None and (first != 0 or begun.epoch != order.epoch):
            begun.cancel()
            begun = None
        begun = begun or self._begin(order, first)
        labels = self.dataset.table.label
        self._under_way = begun
        for step, filled in enumerate(run_views(self._views, begun), first):
            self._step = step + 1
            if self._step == len(order):
                # Before the last batch is handed out: a state saved while it is in use belongs to the next epoch.
                self._epoch, self._step = order.epoch + 1, 0
                self._under_way = None
            yield self._finished(filled, labels, order.epoch, step)

    def top_up(self) -> None:
        """Starts on what the next batch's taking would start on, now: for a loop that has just given its device work.

        Threads that begin to work while a batch is being taken compete with the taker for cores, in its way; not of a stream.
        """
        if self._under_way is not None:
            self._views[0].feed.start(self._under_way)

    def _stream_pass(self, stream: Stream, first: int) -> Iterator[tuple[Any, ...]]:
        epoch = self._epoch
        self._end_pass()  # a pipe has one reader
        batches = self._passing = StreamPass(stream, self._stream_options, epoch, first)
        try:
            for step, filled in enumerate(run_views(self._views, begin_views(self._views, batches, epoch)), first):
                self._step = step + 1
                if self._step == batches.total:
                    self._epoch, self._step = epoch + 1, 0
                yield self._finished(filled, None, epoch, step)
            if self._step and self._step == batches.total:  # resumed behind the last batch
                self._epoch, self._step = epoch + 1, 0
        finally:
            batches.close()

    def _end_pass(self) -> None:
        """Ends a pass over a stream that was left and not given up."""
        if self._passing is not None:
            self._passing.close()
            self._passing = None

    def _finished(
        self, filled: tuple[Filled, ...], labels: npt.NDArray[np.int64] | None, epoch: int, step: int
    ) -> tuple[Any, ...]:
        """The batch as it is handed out; `labels` are those of the table, where a batch does not bring its own."""
        first = filled[0]
        given = first.labels if first.labels is not None else first.records if labels is None else labels[first.records]
        key = BatchKey(self.seed, epoch, step, self.rank, first.draws)
        classes = len(self.dataset.classes)
        batches = [
            view.finished(one, given, replace(key, view=number), classes)
            for number, (view, one) in enumerate(zip(self._views, filled, strict=True))
        ]
        batch: tuple[Any, ...] = (tuple(images for images, _ in batches), batches[0][1]) if self._several else batches[0]
        if self._masks is not None:
            masks = tuple(view.masks(one, self.device) for view, one in zip(self._views, filled, strict=True))
            batch = (*batch, masks if self._several else masks[0])
        return (*batch, [self._document(record) for record in first.records.tolist()]) if self._with_json else batch

    def _document(self, record: int) -> Any:
        """The record's JSON, parsed; None where it has none."""
        raw = self.dataset.read_json(record)
        try:
            return json.loads(raw) if raw else None
        except ValueError as error:
            raise FormatError(
                f"record {self.dataset.table.keys[record]!r}: its JSON cannot be read: {error}",
                hint="repair it, or drop with_json",
            ) from error

    def _order(self, epoch: int, records: int | None = None) -> EpochOrder:
        return EpochOrder(
            records=len(self.dataset) if records is None else records,
            batch_size=self.batch_size,
            rank=self._share.rank,
            world_size=self._share.world_size,
            steps=self._share.steps,
            shuffle=bool(self.shuffle),
            drop_last=self.drop_last,
            seed=self.seed,
            epoch=epoch,
            mixed=None if self._blocks is None else self._blocks.order(self.seed, epoch).rows,
        )

    def batch_records(self, epoch: int, step: int) -> npt.NDArray[np.int64]:
        """The rows of the dataset's table that batch `step` of `epoch` holds on this rank; not of a stream."""
        self.dataset.check_stored()
        return self._order(epoch).batch(step)

    def set_epoch(self, epoch: int) -> None:
        """The next pass is this epoch, from its beginning."""
        if epoch < 0:
            raise UsageError(f"epoch must be 0 or more, not {epoch}")
        self._epoch, self._step, self._resume_step = epoch, 0, None

    @property
    def epoch(self) -> int:
        """The epoch of the current pass, or of the next one if none is under way."""
        return self._epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, as plain JSON values: what was handed out counts, what is prefetched does not."""
        return {
            "version": _STATE_VERSION,
            "epoch": self._epoch,
            "records_done": self._step * self.batch_size * self.world_size,
            "global_batch": self.batch_size * self.world_size,
            "seed": self.seed,
            "shuffle": self._mixing,
            "drop_last": self.drop_last,
            "dataset": self._share.fingerprint,
            "transform": transform_hash(self._views),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken: the next pass yields the remaining batches, bit for bit.

        Raises StateError, in words, for another version, dataset, transform, seed, order or global batch; another world size is
        fine as long as batch_size * world_size is the same.
        """
        expected = self.state_dict()
        for name, what in _STATE_MEANINGS.items():
            if state.get(name) != expected[name]:
                raise StateError(
                    f"the saved state does not fit: its {what} is {state.get(name)!r}, this loader's is {expected[name]!r}",
                    hint="resume with the same data, transform, seed and global batch, or start without the state",
                )
        epoch, done = state.get("epoch"), state.get("records_done")
        if not isinstance(epoch, int) or not isinstance(done, int) or epoch < 0 or done < 0:
            raise StateError(f"the saved state is damaged: epoch {epoch!r}, records_done {done!r}")
        step = done // expected["global_batch"]
        if done % expected["global_batch"] or (self.dataset.stream is None and step >= max(1, len(self._order(epoch)))):
            raise StateError(f"the saved state is damaged: records_done {done} in an epoch of {len(self.dataset)} records")
        self._epoch, self._step, self._resume_step = epoch, step, step

    def stats(self) -> LoaderStats:
        """Counts and times of every stage so far."""
        feed = self._views[0].feed
        feed.stats.cache = feed.cache_stats()
        totals = summarise(
            feed.stats,
            feed.counters(),
            ring_batches=sum(view.feed.ring_batches() for view in self._views),
            indexes=feed.indexes(),
        )
        return replace(totals, shuffle=self._quality if self._passing is None else self._passing.quality())

    @cached_property
    def _quality(self) -> ShuffleQuality | None:
        """How well a block shuffle mixes the first epoch; None for another order."""
        return None if self._blocks is None else self._blocks.quality(self.dataset.table.label, self.seed, 0)

    def explain(self) -> str:
        """The compiled pipeline in words: what runs where, in which order, and what it costs in memory."""
        feed = self._views[0].feed
        lines = [f"{self.dataset!r}", f"native, {feed.threads} threads, up to {feed.prefetch} batches ahead:"]
        if self.dataset.stream is not None:
            lines.append(self._stream_options.describe(self.dataset.stream))
            mixed = None if self._passing is None else self._passing.quality()
            lines += [] if mixed is None else [f"  so far: {mixed.describe()}"]
        if self._blocks is not None and self._quality is not None:
            lines += [self._blocks.describe(), f"  {self._quality.describe()}"]
        for number, view in enumerate(self._views):
            lines += [f"view {number}:"] if self._several else []
            lines += view.describe(self.batch_size, on_gpu=self.device != "cpu")
        if self._masks is not None:
            size = f"[N, {self.pipeline.height}, {self.pipeline.width}]"
            lines.append(f"masks: native, uint8 {size}, the geometry above with the nearest pixel; {self._masks.fill} outside")
        lines += [] if self._cached is None else [f"encoded bytes kept after their first read: {self._cached}"]
        return "\n".join(lines)

    def close(self) -> None:
        """Stops and joins the threads."""
        self._end_pass()
        self._under_way = None
        self._give_up_begun()
        self._views[0].feed.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        batches = "" if self.dataset.stream is not None else f", batches={len(self)}"
        return f"Loader({self.dataset!r}, batch_size={self.batch_size}{batches}, epoch={self._epoch})"


_STATE_MEANINGS = {
    "version": "version",
    "dataset": "dataset (fingerprint)",
    "transform": "transform (hash)",
    "seed": "seed",
    "shuffle": "shuffle",
    "drop_last": "drop_last",
    "global_batch": "global batch (batch_size * world_size)",
}


def _index_batch(order: EpochOrder, step: int, first_draw: int) -> IndexBatch:
    records = order.batch(step)
    return IndexBatch(records, records.astype(np.uint64) + np.uint64(first_draw))


def _world(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: as given, else torch.distributed's where it is initialised, else 0 of 1."""
    if (rank is None) != (world_size is None):
        raise UsageError("give rank and world_size together, or neither")
    if rank is not None and world_size is not None:
        return rank, world_size
    distributed = sys.modules.get("torch.distributed")  # not imported: not initialised either
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return 0, 1
