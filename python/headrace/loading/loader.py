"""Loader: a dataset and a pipeline of transforms become batches, each record exactly once per epoch.

Where things are: `options` checks the arguments, `order` computes which records a batch holds, `views` and `feed` decode them,
`streaming` reads streams, `resume` says what a saved state holds and how resume positions are computed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Unpack, cast, overload

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.notebook import dataset_facts, dataset_strip, notebook_html
from headrace.datasets.records.table import Stream
from headrace.datasets.sources.masks import with_masks
from headrace.errors import UsageError
from headrace.gpu.placement import Decode
from headrace.loading.batches.batch_transforms import BatchKey
from headrace.loading.batches.views import LoaderViews
from headrace.loading.feeding.feed import Masks
from headrace.loading.feeding.feed_pass import FeedPass, FilledBatch, IndexBatch
from headrace.loading.feeding.options import Device, LoaderOptions, OnError, Output, check_for_a_batch, resolve_rank
from headrace.loading.feeding.options import OtherArguments as _OtherArguments
from headrace.loading.feeding.streaming import BUFFER_SIZE, StreamOptions, StreamPass
from headrace.loading.order.block_shuffle import WINDOW, BlockLayout, window_bytes
from headrace.loading.order.evaluation_note import evaluation_note, say_once
from headrace.loading.order.rank_order import Order, RankOrder, check_order
from headrace.loading.order.sampled import Sampler
from headrace.loading.order.uneven_shards import Parts, RankPart, assign_part
from headrace.loading.order.weighted_draws import Weights, record_weights
from headrace.loading.other_frameworks import FrameworkOutputs
from headrace.loading.resume import make_state, read_position
from headrace.loading.statistics.stats import LoaderStats, ShuffleQuality
from headrace.loading.torch_datasets import Data, as_dataset
from headrace.system.hardware import machine
from headrace.system.text.arguments import suggest_arguments, unknown_name
from headrace.system.text.other_libraries import OF_LOADER, OF_LOADER_OBJECT
from headrace.system.text.redaction import without_url_secrets
from headrace.system.text.sizes import parse_size
from headrace.transforms.base import Transform
from headrace.transforms.compile import DctScale, Depth, Dtype, Fuse, Pipeline
from headrace.transforms.composition import Views

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeVar

    Batch = TypeVar("Batch", covariant=True, default=tuple[Any, ...])
else:
    from typing import TypeVar

    Batch = TypeVar("Batch", covariant=True)

__all__ = ["Loader"]


class Loader(FrameworkOutputs, Generic[Batch]):
    """Iterate over batches of a dataset. One pass is one epoch.

    Yields (images, labels). output="torch": images are a tensor [N, 3, H, W] over channels-last memory, labels int64 [N].
    output="numpy": images are an array [N, H, W, 3], labels int64 [N]. With MixUp or CutMix, labels are float32 [N, classes].
    With `Views`, images are a tuple of batches. With `mask` and `with_json`, the tuple gets longer: see there.

    The order and the random draws depend on (seed, epoch, record) alone: not on threads, ranks or resuming. A record that comes
    again in an epoch has other draws. A finished pass advances the epoch; a pass that is left early starts again. N is
    `batch_size`, but for the last batch with drop_last=False, and for the batches of a sampler.

    data: a Dataset, or a path or URL for `headrace.open`; torch's Subset or ConcatDataset of these; torchvision's ImageFolder
        without transforms.
    batch_size: images per batch and rank.
    transform: of `headrace.transforms`, a list of them, of torchvision (translated), or a function on one image; with a fixed
        output size. Required.
    seed (0): decides order and random draws; 0 to 2**63 - 1.
    shuffle (None): True shuffles all records; False keeps the dataset's order; "block" or "block:SIZE" takes shards in random
        order and shuffles the records of SIZE bytes of shards (2 GiB) at a time, which reads an object store in large pieces.
        `explain` tells how well that shuffles this dataset. For a stream, SIZE is the buffer (512 MiB). None: True, unless a
        sampler decides.
    sampler (None): an iterable of this rank's record numbers, or of lists of them, each a batch of at most `batch_size`. It is
        asked anew for each epoch, after `sampler.set_epoch(epoch)` if it has that. All ranks need as many batches.
    weights (None): draw as many records as there are, with replacement, by these weights: one a record, one a class, or a dict
        of class names. Over an epoch a record comes as often as its share of the weights says, rounded up or down.
    drop_last (True): drop the last, incomplete batch of an epoch. False: keep it; ranks then share it, and up to
        world_size - 1 records come twice, so that all ranks have the same number of batches.
    rank, world_size (None): None: those of torch.distributed if it is initialized, else 0 and 1. Give both or neither.
    threads (None): native threads; None: the cores that this process may use. Threads beyond the cores only read ahead.
    prefetch (3): batches that are decoded ahead of the one in use.
    device ("cpu"): "cuda", "cuda:N" or torch's device yields tensors on that GPU, normalized there, by asynchronous copies.
    dtype ("uint8"): of the images: "uint8", "float32", "float16", "bfloat16" (torch only), or torch's dtype. Floats are 0 to 1
        before Normalize.
    output ("torch"): "torch" or "numpy".
    on_error ("raise"): "raise" raises DecodeError at a bad record; "skip" substitutes another record, always the same one, and
        counts and lists it in `stats`.
    mask (None): yield (images, labels, masks), masks uint8 [N, H, W]: class numbers that follow the geometry of their image,
        sampled at the nearest pixel, without its colour changes. Either the ending of the masks in a tar ("mask.png" for
        `7.mask.png` beside `7.jpg`), or a folder with `KEY.png` for each image `KEY.jpg`. PNG, gray or palette, up to 8 bits.
    mask_fill (0): class of pixels outside the image, 0 to 255; 255 is often "ignore".
    with_json (False): append to the batch a list of the parsed JSON beside each image in its shard or tar; None without JSON.
    with_index, with_key (False): append to the batch the rows of its records in the dataset's table, int64 [N]; a list of keys.
    repeated_label (None): label of records that come a second time, where drop_last=False fills up the ranks' last batch.
        `eval_loader` sets -100, which torch's cross_entropy ignores. None: their own label.
    cache (None): "ram:8GiB" or "disk:FOLDER:200GiB" keeps encoded records after their first read, for slow storage.
    parts (None): None: every rank opens the same dataset. "agree": each host has only its own shards (ShardedByS3Key), and the
        ranks exchange their numbers of records, to make equally many batches. A list: each rank's number of records.
    fuse ("geometry"): do any run of crops, resizes, flips, rotations and affines in one sampling; "off": one operation after
        the other, bit for bit as torchvision on Pillow images (docs/reference/exactness.md gives the differences).
    dct_scale ("off"): "auto" decodes JPEGs at half or quarter size if they are shrunk that much anyway: faster, not exact.
    depth ("scale"): how 16-bit gray becomes 8-bit: "scale" keeps the upper 8 bits; "clip" makes all above 255 white, as Pillow.
    decode ("auto"): where JPEGs are decoded with device="cuda": "cpu", "gpu", "split" (both, by measured rates), or "auto": the
        GPU takes the share that makes the step shortest. It may also augment (docs/guides/gpu.md).

    Raises UsageError for arguments that are wrong or do not fit each other, and for fewer records than one batch; SourceError
    for data that cannot be opened, and MissingDependencyError without PyTorch. Iterating raises DecodeError for a bad record,
    SourceError for data that is gone.

        loader = headrace.Loader("data/train", 256, headrace.transforms.imagenet_train(224), device="cuda", dtype="bfloat16")
        for epoch in range(90):
            for images, labels in loader: ...

    Close the loader, or use it in a `with`, to stop its threads at once. Otherwise they stop when it is garbage-collected.
    """

    @overload
    def __init__(
        self: Loader[tuple[Any, ...]],
        data: Data,
        batch_size: int,
        transform: Views,
        *,
        output: Output = ...,
        mask: str | os.PathLike[str] | None = ...,
        with_json: bool = ...,
        with_index: bool = ...,
        with_key: bool = ...,
        **others: Unpack[_OtherArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[tuple[torch.Tensor, torch.Tensor]],
        data: Data,
        batch_size: int,
        transform: Transform | Callable[[Any], Any] | list[Any],
        *,
        output: Literal["torch"] = ...,
        mask: None = ...,
        with_json: Literal[False] = ...,
        with_index: Literal[False] = ...,
        with_key: Literal[False] = ...,
        **others: Unpack[_OtherArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]],
        data: Data,
        batch_size: int,
        transform: Transform | Callable[[Any], Any] | list[Any],
        *,
        output: Literal["numpy"],
        mask: None = ...,
        with_json: Literal[False] = ...,
        with_index: Literal[False] = ...,
        with_key: Literal[False] = ...,
        **others: Unpack[_OtherArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[tuple[Any, ...]],
        data: Data,
        batch_size: int,
        transform: Transform | Callable[[Any], Any] | list[Any],
        *,
        output: Output = ...,
        mask: str | os.PathLike[str] | None = ...,
        with_json: bool = ...,
        with_index: bool = ...,
        with_key: bool = ...,
        **others: Unpack[_OtherArguments],
    ) -> None: ...

    @suggest_arguments(OF_LOADER)
    def __init__(
        self,
        data: Data,
        batch_size: int,
        transform: Transform | Callable[[Any], Any] | list[Any] | None = None,
        *,
        seed: int = 0,
        shuffle: bool | str | None = None,
        sampler: Sampler | None = None,
        weights: Weights | None = None,
        drop_last: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        threads: int | None = None,
        prefetch: int = 3,
        device: Device = "cpu",
        dtype: Dtype | torch.dtype = "uint8",
        output: Output = "torch",
        on_error: OnError = "raise",
        mask: str | os.PathLike[str] | None = None,
        mask_fill: int = 0,
        with_json: bool = False,
        with_index: bool = False,
        with_key: bool = False,
        repeated_label: int | None = None,
        cache: str | None = None,
        parts: Parts = None,
        fuse: Fuse = "geometry",
        dct_scale: DctScale = "off",
        depth: Depth = "scale",
        decode: Decode = "auto",
    ) -> None:
        self.dataset = as_dataset(data)
        self.rank, self.world_size = resolve_rank(rank, world_size)
        self.options = LoaderOptions(
            batch_size=batch_size,
            rank=self.rank,
            world_size=self.world_size,
            threads=threads if threads is not None else max(1, round(machine.cores().usable)),
            seed=seed,
            shuffle=shuffle,
            sampler=sampler,
            weights=weights,
            drop_last=drop_last,
            prefetch=prefetch,
            device=str(device),
            dtype=cast("Dtype", dtype),
            output=output,
            on_error=on_error,
            mask=mask, mask_fill=mask_fill, with_json=with_json, with_index=with_index, with_key=with_key,
            repeated_label=repeated_label, cache=cache, parts=parts, fuse=fuse, dct_scale=dct_scale, depth=depth, decode=decode,
        )  # fmt: skip
        self.transform = transform
        self._prepare()

    def _prepare(self) -> None:
        """Set what follows from the options and the dataset. Raises as the constructor does."""
        options = self.options
        self.batch_size, self.seed, self.shuffle = options.batch_size, options.seed, options.shuffle
        self.drop_last, self.output = options.drop_last, options.output
        self.device, self.dtype = options.device, options.dtype
        self._masks: Masks | None = None
        if options.mask is not None:
            self.dataset, mask_table = with_masks(self.dataset, options.mask)
            self._masks = Masks(mask_table, options.mask_fill)
        # The next pass begins at (epoch, step). `_resume_step` is set while no pass has begun since load_state_dict.
        self._epoch, self._step = 0, 0
        self._resume_step: int | None = None
        self._stream_pass: StreamPass | None = None
        self._started_pass: FeedPass | None = None  # by begin_next
        self._current_pass: FeedPass | None = None  # until its last batch is handed out
        self._part: RankPart = assign_part(
            options.parts,
            self.dataset,
            rank=options.rank,
            world_size=options.world_size,
            batch_size=options.batch_size,
            drop_last=options.drop_last,
        )
        is_stream = self.dataset.stream is not None
        check_order(options.shuffle, options.sampler, options.weights, options.parts, is_stream=is_stream)
        if not is_stream:
            check_for_a_batch(self.dataset, options, self._part)
        self._weights = None if options.weights is None else record_weights(options.weights, self.dataset)
        window = window_bytes(options.shuffle, BUFFER_SIZE if is_stream else WINDOW)
        self._blocks = None if window is None or is_stream else BlockLayout.from_table(self.dataset.table, window)
        self._shuffle: bool | str = bool(options.shuffle) if window is None else f"block:{window}"  # in saved states
        self._orders = RankOrder(
            dataset=self.dataset,
            batch_size=options.batch_size,
            part=self._part,
            shuffle=bool(options.shuffle),
            drop_last=options.drop_last,
            seed=options.seed,
            blocks=self._blocks,
            weights=self._weights,
            sampler=options.sampler,
        )
        self._stream_options = StreamOptions(
            batch_size=options.batch_size,
            rank=self._part.rank,
            world_size=self._part.world_size,
            drop_last=options.drop_last,
            seed=options.seed,
            buffer_bytes=(window or parse_size(BUFFER_SIZE)) if options.shuffle else 0,
            prefetch=options.prefetch,
            steps=self._part.steps,
        )
        self._views = LoaderViews(self.dataset, self.transform, options, self._masks)
        if options.with_json and self.dataset.table.json_size is None:
            raise UsageError(f"the records of {self.dataset.root} have no JSON", hint="drop with_json")
        if is_stream and (options.with_index or options.with_key):
            raise UsageError("the records of a stream have no numbers and keys", hint="drop with_index and with_key")

    if not TYPE_CHECKING:  # else a type checker would accept any name

        def __getattr__(self, name: str) -> object:
            raise unknown_name("a Loader", name, dir(type(self)), OF_LOADER_OBJECT)

    @property
    def sampler(self) -> Sampler | Loader[Batch]:
        """The sampler that was given; else the loader itself, which has `set_epoch` as torch's DistributedSampler has."""
        return self if self.options.sampler is None else self.options.sampler

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names of the dataset; a label is an index into them."""
        return self.dataset.classes

    @property
    def part(self) -> RankPart:
        """The part of the dataset that this rank reads, and its rank among those that read the same part."""
        return self._part

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """The compiled pipelines, one for each view."""
        return self._views.pipelines

    @property
    def pipeline(self) -> Pipeline:
        """The compiled pipeline, of the first view."""
        return self._views.pipeline

    def __len__(self) -> int:
        """Return the batches of an epoch on each rank; a sampler is asked for the current one.

        Raises UnknownLengthError for a stream of unknown length.
        """
        return len(self._order(self._epoch))

    def __reduce__(self) -> NoReturn:
        # pickle, copy and multiprocessing expect a TypeError from an object that cannot be copied.
        raise TypeError("a headrace.Loader has threads and memory of its own and cannot be pickled: make one in each process")

    def __iter__(self) -> Iterator[Batch]:
        if self.dataset.stream is not None:
            first, self._resume_step = self._resume_step or 0, None
            self._step = first
            return self._iterate_stream(self.dataset.stream, first)
        order = self._orders.begin(self._epoch)
        first = self._resume_step or 0
        self._resume_step, self._step = None, first
        if self.rank == 0:
            say_once(evaluation_note(order, is_fixed=self._views.is_fixed))
        return self._iterate(order, first)

    def begin_next(self) -> None:
        """Start decoding the first batches of the next pass, so that it begins without a wait. No effect on a stream.

        Call it when the last batch of a pass was handed out and another pass will follow. If `set_epoch` or `load_state_dict`
        then asks for a different pass, the work is dropped.
        """
        self._cancel_started_pass()
        if self.dataset.stream is None and self._resume_step is None and len(order := self._orders.begin(self._epoch)):
            self._started_pass = self._begin(order, 0)
            self._started_pass.top_up()

    def top_up(self) -> None:
        """Submit now the batches that the following call of `next()` would submit. No effect on a stream.

        Call it when the device has just been given work: threads that start while a batch is taken compete with the caller
        for cores.
        """
        if self._current_pass is not None:
            self._current_pass.top_up()

    def _begin(self, order: Order, first: int) -> FeedPass:
        batches, stand_ins = self._orders.draws(order, first, self.dataset.fetcher), order.stand_ins
        # Not `self` below: a cycle would keep the threads until the collector runs.
        return self._views.begin((_index_batch(records, draws, stand_ins) for records, draws in batches), order.epoch)

    def _cancel_started_pass(self) -> None:
        if self._started_pass is not None:
            self._started_pass.cancel()
            self._started_pass = None

    def _iterate(self, order: Order, first: int) -> Iterator[Any]:
        feed_pass, self._started_pass = self._started_pass, None
        if feed_pass is not None and (first != 0 or feed_pass.epoch != order.epoch):
            feed_pass.cancel()
            feed_pass = None
        feed_pass = feed_pass or self._begin(order, first)
        labels = self.dataset.table.label
        self._current_pass = feed_pass
        for step, filled in enumerate(feed_pass.run(), first):
            self._step = step + 1
            if self._step == len(order):
                # Before the last batch is handed out: a state saved while it is in use belongs to the next epoch.
                self._epoch, self._step = order.epoch + 1, 0
                self._current_pass = None
            yield self._handed_out(feed_pass, filled, labels, step)

    def _iterate_stream(self, stream: Stream, first: int) -> Iterator[Any]:
        epoch = self._epoch
        self._close_stream_pass()  # a pipe has one reader
        batches = self._stream_pass = StreamPass(stream, self._stream_options, epoch, first)
        feed_pass = self._views.begin(batches, epoch)
        try:
            for step, filled in enumerate(feed_pass.run(), first):
                self._step = step + 1
                if self._step == batches.total:
                    self._epoch, self._step = epoch + 1, 0
                yield self._handed_out(feed_pass, filled, None, step)
            if self._step and self._step == batches.total:  # resumed after the last batch
                self._epoch, self._step = epoch + 1, 0
        finally:
            batches.close()

    def _close_stream_pass(self) -> None:
        if self._stream_pass is not None:
            self._stream_pass.close()
            self._stream_pass = None

    def _handed_out(
        self, feed_pass: FeedPass, filled: tuple[FilledBatch, ...], table_labels: npt.NDArray[np.int64] | None, step: int
    ) -> tuple[Any, ...]:
        """Return the batch for the user, and let the pass submit the next one."""
        batch = self._output_batch(self._views, filled, table_labels, feed_pass.epoch, step)
        feed_pass.handed_out()
        return batch

    def _output_batch(
        self,
        views: LoaderViews,
        filled: tuple[FilledBatch, ...],
        table_labels: npt.NDArray[np.int64] | None,
        epoch: int,
        step: int,
    ) -> tuple[Any, ...]:
        """Return the batch for the user. `table_labels` are those of all records; a stream's batch brings its own."""
        first = filled[0]
        if first.labels is not None:
            labels = first.labels
        else:
            labels = first.records if table_labels is None else table_labels[first.records]
            if self.options.repeated_label is not None:
                labels[self.real_images(step, len(labels)) :] = self.options.repeated_label
        key = BatchKey(self.seed, epoch, step, self.rank, first.draws)
        batch = views.output_batch(filled, labels, key)
        return (*batch, *self._attached(first.records))

    def _attached(self, records: npt.NDArray[np.int64]) -> Iterator[Any]:
        """Yield what stands behind the images, labels and masks of a batch: JSON, record numbers, keys."""
        options = self.options
        if options.with_json:
            yield [self.dataset.parsed_json(record) for record in records.tolist()]
        if options.with_index:
            yield records if options.output == "numpy" else self._views.as_tensor(records)
        if options.with_key:
            yield [self.dataset.table.keys[record] for record in records.tolist()]

    def _order(self, epoch: int) -> Order:
        return self._orders.of(epoch)

    def batch_records(self, epoch: int, step: int) -> npt.NDArray[np.int64]:
        """Return the rows of the dataset's table in batch `step` of `epoch` on this rank, int64 [n].

        Raises SourceError for a stream. Example: `[loader.dataset.table.keys[row] for row in loader.batch_records(0, 0)]`.
        """
        self.dataset.check_stored()
        return self._orders.batch(epoch, step)

    def real_images(self, step: int, images: int) -> int:
        """Return how many of the `images` images of this rank's batch `step` come for the first time in their epoch.

        With drop_last=False, those behind them fill up the ranks' last batch. Example: `loader.real_images(7, len(labels))`.
        """
        return self._orders.real_images(self._epoch, step, images)

    def preview(self) -> Batch:
        """Return the first batch of the current epoch, made on the CPU. The loader's position does not change.

        Raises SourceError for a stream, else what iterating raises. Example: `images, labels = loader.preview()`.
        """
        self.dataset.check_stored()
        order = self._order(self._epoch)
        views = LoaderViews(self.dataset, self.transform, replace(self.options, device="cpu", cache=None), self._masks)
        first = next(iter(self._orders.draws(order, 0, None)))
        feed_pass = views.begin([_index_batch(*first, order.stand_ins)], order.epoch)
        try:
            (filled,) = feed_pass.run()
            batch: Any = self._output_batch(views, filled, self.dataset.table.label, order.epoch, 0)
        finally:
            views.close()
        return cast("Batch", batch)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass at the first batch of `epoch` (0 or more). Raises UsageError for a negative epoch."""
        if epoch < 0:
            raise UsageError(f"epoch must be 0 or more, not {epoch}")
        self._epoch, self._step, self._resume_step = epoch, 0, None

    @property
    def epoch(self) -> int:
        """The epoch of the current pass, or of the next one between passes."""
        return self._epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader as JSON values, of constant size, to continue with `load_state_dict`.

        The position follows the last batch that was handed out; prefetched batches do not count. After the last batch of an
        epoch it is the beginning of the next one. `headrace.loading.resume` says how positions are computed.

        Example: `json.dump(loader.state_dict(), file)`.
        """
        return make_state(
            self._epoch,
            self._step,
            self.options,
            shuffle=self._shuffle,
            fingerprint=self._part.fingerprint,
            transform=self._views.transform_hash,
        ) | self._orders.state(self._epoch, self._step)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was saved: the next pass yields the remaining batches of the epoch, bit for bit.

        The world size may differ, if batch_size * world_size is the same and there is no sampler, which is asked again for the
        epoch of the state. Raises StateError for a state of another version, dataset, transform, seed, order or global batch,
        and if the sampler gives other indices than before. Example: `loader.load_state_dict(json.load(file))`.
        """
        is_known = self.dataset.stream is None and self.options.sampler is None
        epoch, step = read_position(state, self.state_dict(), steps=lambda epoch: len(self._order(epoch)) if is_known else None)
        self._orders.check_resumed(state, epoch, step)
        self._epoch, self._step, self._resume_step = epoch, step, step

    def stats(self) -> LoaderStats:
        """Return counts and times of every stage since the loader was made. Example: `loader.stats().wait_s`."""
        return self._views.stats(self._block_quality if self._stream_pass is None else self._stream_pass.quality())

    @cached_property
    def _block_quality(self) -> ShuffleQuality | None:
        """How well a block shuffle shuffles the first epoch; None for another order."""
        return None if self._blocks is None else self._blocks.quality(self.dataset.table.label, self.seed, 0)

    def explain(self) -> str:
        """Return the compiled pipeline in words: what runs where, in which order, and the memory of a batch."""
        lines = [f"{self.dataset!r}", f"native, {self.options.threads} threads, up to {self.options.prefetch} batches ahead:"]
        if self.dataset.stream is not None:
            lines.append(self._stream_options.describe(self.dataset.stream))
            quality = None if self._stream_pass is None else self._stream_pass.quality()
            lines += [] if quality is None else [f"  so far: {quality.describe()}"]
        if self._blocks is not None and self._block_quality is not None:
            lines += [self._blocks.describe(), f"  {self._block_quality.describe()}"]
        lines += [] if self._weights is None else [self._weights.describe()]
        if self.options.sampler is not None:
            lines.append(f"records in the order of a sampler: {type(self.options.sampler).__name__}")
        elif self.dataset.stream is None and (note := evaluation_note(self._order(0), is_fixed=self._views.is_fixed)):
            lines.append(note)
        return "\n".join([*lines, *self._views.describe()])

    def close(self) -> None:
        """Stop and join the threads. A loader that is used again starts new ones."""
        self._close_stream_pass()
        self._current_pass = None
        self._cancel_started_pass()
        self._views.close()

    def __enter__(self) -> Loader[Batch]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        batches = "" if self.dataset.stream is not None or self.options.sampler is not None else f", batches={len(self)}"
        return f"Loader({self.dataset!r}, batch_size={self.batch_size}{batches}, epoch={self._epoch})"

    def _repr_html_(self) -> str:
        """Return facts, the pipeline in words and a strip of the dataset's pictures, which notebooks show."""
        facts = {} if self.dataset.stream is not None else {"batches": f"{len(self):,} an epoch, of {self.batch_size:,} images"}
        facts |= {"epoch": str(self._epoch), "pipeline": "\n".join(self._views.describe())}
        title = f"Loader of {without_url_secrets(self.dataset.root)}"
        return notebook_html(title, dataset_facts(self.dataset) | facts, dataset_strip(self.dataset))


def _index_batch(
    records: npt.NDArray[np.int64], draws: npt.NDArray[np.uint64], stand_ins: npt.NDArray[np.int64] | None
) -> IndexBatch:
    return IndexBatch(records, draws, stand_ins=stand_ins)
