"""The views of a loader: for each pipeline of `Views` (usually one, without it) its pipeline, its feed, and what is handed out.

All views of a record are made in the same epoch from the same bytes by the same threads; each has draws of its own. An image is
decoded once for all views where that is less work than decoding the part that each one needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from headrace.datasets.records import Dataset
from headrace.errors import MissingDependencyError, UsageError
from headrace.loading.batch_transforms import BatchKey, apply, check_dtype
from headrace.loading.byte_cache import Kept
from headrace.loading.cuda_transfer import Transfer
from headrace.loading.feed import Begun, Feed, Filled, IndexBatch, Masks, OnError
from headrace.transforms.base import Transform
from headrace.transforms.batch import CutMix, MixUp, RandomChoice
from headrace.transforms.compile import DctScale, Dtype, Fuse, Pipeline, compile_pipeline
from headrace.transforms.composition import Views

__all__ = ["Output", "View", "begin_views", "make_views", "run_views", "transform_hash"]

Output = Literal["torch", "numpy"]
Emit = Callable[[Filled, npt.NDArray[np.int64]], tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class View:
    """One pipeline of a loader. `pipeline` is what the user asked for (on a GPU the feed's own stops at uint8)."""

    pipeline: Pipeline
    feed: Feed
    emit: Emit
    output: Output

    def finished(self, filled: Filled, labels: npt.NDArray[np.int64], key: BatchKey, classes: int) -> tuple[Any, Any]:
        """(images, labels) as they are handed out."""
        images, given = self.emit(filled, labels)
        return apply(self.pipeline.batch, images, given, key, classes) if self.pipeline.batch else (images, given)

    def masks(self, filled: Filled, device: str) -> Any:
        """The masks beside `finished`'s images: uint8 [N, H, W], where and what those are."""
        if isinstance(filled.masks, np.ndarray) and self.output == "torch":
            import torch

            return torch.from_numpy(filled.masks).to(device)
        return filled.masks

    def describe(self, batch_size: int, *, on_gpu: bool) -> Iterator[str]:
        """The pipeline in words, a line a stage."""
        pipeline = self.pipeline
        yield from (f"  {line}" for line in pipeline.describe())
        for function in pipeline.functions:
            name = getattr(function, "__qualname__", type(function).__name__)
            yield f"Python, one image at a time in the consumer's thread (this can be slow): {name}"
        if pipeline.table is not None:
            where = "on the GPU, after an asynchronous copy of uint8" if on_gpu else "native, by a table of 256 values"
            yield f"values to {pipeline.dtype}: {where}"
        yield from (f"on the finished batch, in torch: {step!r}" for step in pipeline.batch)
        size = pipeline.image_bytes() * batch_size / 2**20
        yield f"batch: {pipeline.dtype} {list(pipeline.shape(batch_size))}, {size:.1f} MiB"


def make_views(
    dataset: Dataset,
    transform: Transform | Callable[[Any], Any] | None,
    *,
    dtype: Dtype,
    fuse: Fuse,
    dct_scale: DctScale,
    output: Output,
    device: str,
    batch_size: int,
    threads: int,
    prefetch: int,
    seed: int,
    on_error: OnError,
    cache: Callable[[], Kept | None],
    masks: Masks | None = None,
) -> tuple[View, ...]:
    """Compile each pipeline and make its feed; the first one has the threads. Raises UsageError as `compile_pipeline` does."""
    several = isinstance(transform, Views)
    transforms = transform.transforms if isinstance(transform, Views) else (transform,)
    pipelines = [compile_pipeline(one, dtype=dtype, fuse=fuse, dct_scale=dct_scale) for one in transforms]
    for pipeline in pipelines:
        _check_batch_part(pipeline, output, dtype, several=several, masked=masks is not None)
    kept = cache()
    made: list[View] = []
    for number, pipeline in enumerate(pipelines):
        transfer = None if device == "cpu" else Transfer(device, pipeline.table, dtype)
        feed = Feed(
            dataset,
            # With a GPU the batches cross the bus as uint8, and the values are made there.
            pipeline if transfer is None else replace(pipeline, table=None, dtype="uint8"),
            batch_size=batch_size,
            threads=threads,
            prefetch=prefetch,
            seed=seed,
            on_error=on_error,
            allocate=None if transfer is None else transfer.allocate,
            cache=kept if number == 0 else None,
            view_of=made[0].feed if made else None,
            view=number,
            masks=masks,
        )
        made.append(View(pipeline, feed, _emitter(output, pipeline, transfer), output))
    return tuple(made)


def _check_batch_part(pipeline: Pipeline, output: Output, dtype: Dtype, *, several: bool, masked: bool) -> None:
    if pipeline.batch and output == "numpy":
        raise UsageError(f"{type(pipeline.batch[0]).__name__} works in torch", hint="use output='torch'")
    mixing = [step for step in pipeline.batch if isinstance(step, MixUp | CutMix | RandomChoice)]
    if several and mixing:
        raise UsageError(f"{type(mixing[0]).__name__} cannot be used in Views, which have one label together")
    if masked and mixing:
        raise UsageError(f"{type(mixing[0]).__name__} mixes images, which masks do not follow")
    check_dtype(pipeline.batch, dtype)


def transform_hash(views: tuple[View, ...]) -> str:
    """Changes when any of the pipelines changes; guards resumed states."""
    if len(views) == 1:
        return views[0].pipeline.hash
    return hashlib.sha256(" ".join(view.pipeline.hash for view in views).encode()).hexdigest()[:16]


def begin_views(views: tuple[View, ...], batches: Iterable[IndexBatch], epoch: int) -> Begun:
    """A pass over the batches, for `run_views`."""
    first, *others = (view.feed for view in views)
    return first.begin(batches, epoch, others)


def run_views(views: tuple[View, ...], begun: Begun) -> Generator[tuple[Filled, ...], None, None]:
    """The batches, filled, those of all views at a time."""
    return views[0].feed.run(begun)


def _emitter(output: Output, pipeline: Pipeline, transfer: Transfer | None) -> Emit:
    """What turns a filled batch and its labels into what the caller asked for."""
    if output == "numpy":
        return lambda filled, labels: (filled.pixels, labels)
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            "output='torch' needs PyTorch", hint="pip install 'headrace[train]', or use output='numpy'"
        ) from error
    if transfer is not None:
        return lambda filled, labels: transfer.to_device(filled.owner, pipeline.shape(len(labels)), torch.from_numpy(labels))

    def emit(filled: Filled, labels: npt.NDArray[np.int64]) -> tuple[Any, Any]:
        # The tensor keeps the array, and with it the ring's memory, alive: a kept batch never changes.
        images = torch.from_numpy(filled.pixels)
        if pipeline.dtype == "bfloat16":
            images = images.view(torch.bfloat16)
        return images.permute(0, 3, 1, 2), torch.from_numpy(labels)

    return emit
