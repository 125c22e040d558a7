"""The views of a loader: one pipeline and feed for each pipeline of `Views`, usually a single one.

All views of a record are made in the same epoch, from the same bytes, by the same threads; each view has its own random draws.
The native engine decodes an image once for all views if that is less work than decoding the region of each view.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.dataset import Dataset
from headrace.errors import MissingDependencyError, UsageError
from headrace.loading.batches.batch_transforms import (
    BatchKey,
    apply_batch_transforms,
    check_dtype,
    draw_first_steps,
    mixed_labels,
)
from headrace.loading.batches.cuda_transfer import Transfer
from headrace.loading.feeding.byte_cache import open_cache, parse_cache
from headrace.loading.feeding.feed import Feed, Masks
from headrace.loading.feeding.feed_pass import FeedPass, FilledBatch, IndexBatch
from headrace.loading.feeding.gpu_decode import gpu_decoding
from headrace.loading.feeding.options import LoaderOptions, Output
from headrace.loading.statistics.stats import LoaderStats, ShuffleQuality, summarize
from headrace.system.text.install_hints import extra_hint
from headrace.transforms.base import Transform
from headrace.transforms.batch import CutMix, MixUp, RandomChoice
from headrace.transforms.compile import Pipeline, compile_pipeline
from headrace.transforms.composition import Views
from headrace.transforms.native_operations import is_random
from headrace.transforms.written import written

__all__ = ["LoaderViews", "View"]

ToOutput = Callable[..., tuple[Any, Any]]  # (FilledBatch, its labels [N], on a GPU also FirstSteps) → images and labels


@dataclass(frozen=True, slots=True)
class View:
    """One pipeline of a loader, with its feed. `pipeline` is the user's; on a GPU the feed's own pipeline stops at uint8."""

    pipeline: Pipeline
    feed: Feed
    to_output: ToOutput
    output: Output
    transfer: Transfer | None = None  # copies batches to the GPU; None: the batches stay on the CPU

    def output_batch(self, filled: FilledBatch, labels: npt.NDArray[np.int64], key: BatchKey, classes: int) -> tuple[Any, Any]:
        """Return (images, labels) for the user, after the batch transforms."""
        steps, height, width = self.pipeline.batch, self.pipeline.height, self.pipeline.width
        if self.transfer is None or not self.transfer.is_fused:
            images, labels_out = self.to_output(filled, labels)
            return apply_batch_transforms(steps, images, labels_out, key, classes) if steps else (images, labels_out)
        first = draw_first_steps(steps, height, width, key)
        images, labels_out = self.to_output(filled, labels, first)
        if first.mixing is not None and first.mix is not None:
            labels_out = mixed_labels(labels_out, first.mixing, first.mix, height, width, classes)
        return apply_batch_transforms(steps, images, labels_out, key, classes, first=first.taken)

    def output_masks(self, filled: FilledBatch) -> Any:
        """Return the masks of the images for the user: uint8 [N, H, W], a tensor on the device of the images or an array."""
        if isinstance(filled.masks, np.ndarray) and self.output == "torch":
            import torch

            return torch.from_numpy(filled.masks).to("cpu" if self.transfer is None else self.transfer.device)
        return filled.masks

    def describe(self, batch_size: int, *, on_gpu: bool) -> Iterator[str]:
        """Yield a line of text for each stage of the pipeline."""
        pipeline = self.pipeline
        yield from (f"  {line}" for line in pipeline.describe())
        for function in pipeline.functions:
            yield f"Python, one image at a time in the consumer's thread (this can be slow): {written(function)}"
        if pipeline.table is not None:
            where = "on the GPU, after an asynchronous copy of uint8" if on_gpu else "native, by a table of 256 values"
            yield f"values to {pipeline.dtype}: {where}"
        yield from (f"on the finished batch, in torch: {written(step)}" for step in pipeline.batch)
        size = pipeline.image_bytes() * batch_size / 2**20
        images, height, width, channels = pipeline.shape(batch_size)
        shape = f"[{images}, {height}, {width}, {channels}]"
        if self.output == "torch":  # as the tensor of the user says
            shape = f"[{images}, {channels}, {height}, {width}], channels-last"
        yield f"batch: {pipeline.dtype} {shape}, {size:.1f} MiB"


class LoaderViews:
    """All views of a loader, which share threads and a table of records. A Loader does all its decoding through this object."""

    def __init__(
        self,
        dataset: Dataset,
        transform: Transform | Callable[[Any], Any] | list[Any] | None,
        options: LoaderOptions,
        masks: Masks | None,
    ) -> None:
        """Compile each pipeline and make its feed. Raises UsageError as `compile_pipeline` and `open_cache` do."""
        self.several = isinstance(transform, Views)
        self._dataset, self._options, self._masks = dataset, options, masks
        transforms = transform.transforms if isinstance(transform, Views) else (transform,)
        pipelines = [
            compile_pipeline(one, dtype=options.dtype, fuse=options.fuse, dct_scale=options.dct_scale, depth=options.depth)
            for one in transforms
        ]
        for pipeline in pipelines:
            _check_batch_transforms(pipeline, options, several=self.several, masked=masks is not None)
        cache = None if options.cache is None else open_cache(parse_cache(options.cache), dataset)
        transfers = [
            None if options.device == "cpu" else Transfer(options.device, pipeline.table, options.dtype)
            for pipeline in pipelines
        ]
        device = None if transfers[0] is None else str(transfers[0].device)
        gpu, self._placement = gpu_decoding(
            dataset, pipelines[0], options, device=device, several=self.several, masked=masks is not None
        )
        self._gpu = gpu
        views: list[View] = []
        for number, (pipeline, transfer) in enumerate(zip(pipelines, transfers, strict=True)):
            feed = Feed(
                dataset,
                # With a GPU the batches cross the bus as uint8, and the values are made there.
                pipeline if transfer is None else replace(pipeline, table=None, dtype="uint8"),
                options,
                allocate=None if transfer is None else transfer.allocate,
                cache=cache if number == 0 else None,
                primary=views[0].feed if views else None,
                view=number,
                masks=masks,
                gpu=gpu,
            )
            views.append(View(pipeline, feed, _converter(options.output, pipeline, transfer), options.output, transfer))
        self._views, self._feed = tuple(views), views[0].feed

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """The pipelines of all views."""
        return tuple(view.pipeline for view in self._views)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline of the first view."""
        return self._views[0].pipeline

    @property
    def transform_hash(self) -> str:
        """A hash of all pipelines. A loader refuses a saved state with another hash."""
        hashes = [view.pipeline.hash for view in self._views]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:16]

    @property
    def is_fixed(self) -> bool:
        """Whether no transform draws random numbers, as in an evaluation. A Python function may do anything."""
        steps = [step for view in self._views for step in (*view.pipeline.transforms, *view.pipeline.batch)]
        return not any(view.pipeline.functions for view in self._views) and not any(map(is_random, steps))

    def as_tensor(self, numbers: npt.NDArray[np.int64]) -> Any:
        """Return numbers as a tensor on the device of the images."""
        import torch

        transfer = self._views[0].transfer
        return torch.from_numpy(numbers).to("cpu" if transfer is None else transfer.device)

    def begin(self, batches: Iterable[IndexBatch], epoch: int) -> FeedPass:
        """Return a new pass over the batches of all views. Nothing is submitted yet."""
        return self._feed.begin(batches, epoch, [view.feed for view in self._views[1:]])

    def output_batch(self, filled: tuple[FilledBatch, ...], labels: npt.NDArray[np.int64], key: BatchKey) -> tuple[Any, ...]:
        """Return (images, labels) or (images, labels, masks) for the user; of several views, tuples of images and masks."""
        classes = len(self._dataset.classes)
        batches = [
            view.output_batch(one, labels, replace(key, view=number) if number else key, classes)
            for number, (view, one) in enumerate(zip(self._views, filled, strict=True))
        ]
        batch: tuple[Any, ...] = (tuple(images for images, _ in batches), batches[0][1]) if self.several else batches[0]
        if self._masks is not None:
            masks = tuple(view.output_masks(one) for view, one in zip(self._views, filled, strict=True))
            batch = (*batch, masks if self.several else masks[0])
        return batch

    def stats(self, shuffle: ShuffleQuality | None) -> LoaderStats:
        """Return the counts and times of every stage so far."""
        feed = self._feed
        feed.stats.cache = feed.cache_stats()
        ring_batches = sum(view.feed.ring_batches() for view in self._views)
        return summarize(feed.stats, feed.counters(), ring_batches=ring_batches, indexes=feed.indexes(), shuffle=shuffle)

    def describe(self) -> Iterator[str]:
        """Yield lines of text about the pipelines, masks and cache, for `explain`."""
        options = self._options
        for number, view in enumerate(self._views):
            if self.several:
                yield f"view {number}:"
            yield from view.describe(options.batch_size, on_gpu=options.device != "cpu")
        if options.device != "cpu" or options.decode != "auto":
            yield from self._placement.describe(None) if self._gpu is None else self._gpu.describe()
        if self._masks is not None:
            size = f"[N, {self.pipeline.height}, {self.pipeline.width}]"
            yield f"masks: native, uint8 {size}, the geometry above with the nearest pixel; {self._masks.fill} outside"
        if options.cache is not None:
            yield f"encoded bytes kept after their first read: {options.cache}"

    def close(self) -> None:
        """Stop and join the native threads."""
        self._feed.close()


def _check_batch_transforms(pipeline: Pipeline, options: LoaderOptions, *, several: bool, masked: bool) -> None:
    if pipeline.batch and options.output == "numpy":
        raise UsageError(f"{type(pipeline.batch[0]).__name__} works on torch tensors only", hint="use output='torch'")
    mixing = [step for step in pipeline.batch if isinstance(step, MixUp | CutMix | RandomChoice)]
    if several and mixing:
        raise UsageError(f"{type(mixing[0]).__name__} cannot be used in Views, which share one label")
    if masked and mixing:
        raise UsageError(f"{type(mixing[0]).__name__} mixes images, and masks cannot be mixed")
    check_dtype(pipeline.batch, options.dtype)


def _converter(output: Output, pipeline: Pipeline, transfer: Transfer | None) -> ToOutput:
    """Return the function that turns a filled batch and its labels into arrays, or tensors on their device."""
    if output == "numpy":
        return lambda filled, labels: (filled.pixels, labels)
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            "output='torch' needs PyTorch", hint=f"{extra_hint('train')}, or use output='numpy'"
        ) from error
    if transfer is not None:
        return lambda filled, labels, first=None: transfer.to_device(
            filled.owner, pipeline.shape(len(labels)), torch.from_numpy(labels), filled.on_gpu, first
        )

    def to_tensors(filled: FilledBatch, labels: npt.NDArray[np.int64]) -> tuple[Any, Any]:
        # The tensor keeps the array alive, and with it the ring's memory: a batch that the user keeps never changes.
        images = torch.from_numpy(filled.pixels.transpose(0, 3, 1, 2))
        if pipeline.dtype == "bfloat16":
            images = images.view(torch.bfloat16)
        return images, torch.from_numpy(labels)

    return to_tensors
