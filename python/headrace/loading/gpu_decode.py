"""GPU decoding in the feed: the last images of each batch go to a GPU decoder, in a thread of its own.

The CPU stays the judge of every file: what the decoder leaves, and what fails, is decoded by the native threads, with their
status and their error. What the GPU decoded it also augments. Draws are the same on both sides, so a batch holds the same
images wherever they were made.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace._native import crc32c, sound_jpeg
from headrace.datasets.records import Dataset
from headrace.errors import HeadraceError, UsageError
from headrace.gpu.augment import OPERATIONS, RESIZES, Pass, augment, changes_pixels, cpu_only
from headrace.gpu.augment_check import CheckedOperations, checked_operations
from headrace.gpu.choice import Candidates
from headrace.gpu.decoders import GpuDecoder, Place
from headrace.gpu.placement import Decode, Placement, Seen
from headrace.loading.options import LoaderOptions
from headrace.transforms.compile import Pipeline
from headrace.transforms.native_operations import native_operations
from headrace.transforms.written import written

if TYPE_CHECKING:
    import torch

__all__ = ["EventClock", "GpuDecoding", "GpuJob", "GpuPart", "HostClock", "StepClock", "gpu_decoding", "on_gpu", "refusal"]

MOST_CALLS = 64
"""Calls of a decoder in search of the files that make it fail, before the whole part of a batch goes to the CPU."""

ENOUGH_FILES = 512
"""Give up GPU decoding when the decoder left more than half of at least this many files."""


@dataclass(frozen=True, slots=True)
class GpuPart:
    """The images of a batch that were decoded on the GPU: uint8 [n, H, W, 3], and their slots in the batch, ascending."""

    pixels: torch.Tensor
    slots: Sequence[int]


class StepClock(Protocol):
    """Measures training steps without waiting for the device: from the hand-over of a batch to the call for the next."""

    def out(self) -> None:
        """Note that a batch is handed over."""

    def back(self) -> None:
        """Note that the consumer asks for the next one."""

    def step_s(self) -> float | None:
        """Return the seconds of the latest step whose time is known by now, once."""


class HostClock:
    """Steps by the host's clock: right where the work of a step is done when the next batch is asked for."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._began: float | None = None
        self._step_s: float | None = None

    def out(self) -> None:
        """Note that a batch is handed over."""
        self._began = self._now()

    def back(self) -> None:
        """Note that the consumer asks for the next one."""
        if self._began is not None:
            self._step_s, self._began = self._now() - self._began, None

    def step_s(self) -> float | None:
        """Return the seconds of the latest step, once."""
        found, self._step_s = self._step_s, None
        return found


class EventClock:
    """Steps by CUDA events on the consumer's stream: the GPU's own time for a step, wherever the host is by then."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._open: Any = None
        self._steps: deque[tuple[Any, Any]] = deque(maxlen=16)

    def _mark(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def out(self) -> None:
        """Note that a batch is handed over."""
        self._open = self._mark()

    def back(self) -> None:
        """Note that the consumer asks for the next one."""
        if self._open is not None:
            self._steps.append((self._open, self._mark()))
            self._open = None

    def step_s(self) -> float | None:
        """Return the seconds of the latest step that the GPU has finished, once."""
        found = None
        while self._steps and self._steps[0][1].query():
            began, ended = self._steps.popleft()
            found = float(began.elapsed_time(ended)) / 1e3
        return found


@dataclass(frozen=True, slots=True)
class _Found:
    """What the thread made of the GPU's images of a batch. `statuses`: 0, or 1 for the CPU, for each of them."""

    part: GpuPart | None
    statuses: list[int]
    img_s: float | None


class GpuJob:
    """The decoding of the last images of a batch on the GPU, in the face of a native `Job`."""

    def __init__(self, future: Future[_Found]) -> None:
        self._future = future

    def wait(self) -> None:
        """Wait until the images are decoded."""
        self._future.result()

    def cancel(self) -> None:
        """Drop the work if it has not begun."""
        self._future.cancel()

    def found(self) -> _Found:
        """Return what was decoded, after `wait`."""
        return self._future.result()


class GpuDecoding:
    """Decodes a share of each batch on the GPU, as `placement` says."""

    def __init__(
        self,
        dataset: Dataset,
        pipeline: Pipeline,
        options: LoaderOptions,
        decoder: GpuDecoder,
        candidates: Candidates,
        placement: Placement,
        clock: StepClock,
        device: str,
        operations: CheckedOperations,
    ) -> None:
        self.decoder, self.placement, self.clock = decoder, placement, clock
        self._operations = operations
        self._candidates = candidates  # the decoders after `decoder`
        self._dataset, self._pipeline, self._seed, self._device = dataset, pipeline, options.seed, device
        self._threads = options.threads
        self._pool: ThreadPoolExecutor | None = None
        self._stream: Any = None
        self._tried = self._left = 0
        self._ended: float | None = None
        self._counted = (0, 0)

    def first_slot(self, images: int) -> int:
        """Return the slot from which on the GPU decodes the next batch of `images`."""
        return images - self.placement.on_gpu(images)

    def begin(
        self,
        records: npt.NDArray[np.int64],
        draws: npt.NDArray[np.uint64],
        data: Sequence[bytes] | None,
        first: int,
        epoch: int,
    ) -> GpuJob:
        """Start decoding records, whose slots in their batch are `first` and up."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "headrace-gpu-decode")
        return GpuJob(self._pool.submit(self._decode, records.tolist(), draws.tolist(), data, first, epoch))

    def see(self, found: _Found | None, counters: dict[str, int]) -> None:
        """Tell the placement what the batch that is handed over showed. counters: the native engine's totals."""
        now, images = time.perf_counter(), counters.get("images", 0)
        busy_ns = sum(counters.get(f"{stage}_ns", 0) for stage in ("read", "decode", "resample", "store"))
        more, took_ns = images - self._counted[0], busy_ns - self._counted[1]
        self._counted = (images, busy_ns)
        self.placement.see(
            Seen(
                period_s=None if self._ended is None else now - self._ended,
                compute_s=self.clock.step_s(),
                cpu_img_s=self._threads * more / (took_ns / 1e9) if more > 0 and took_ns > 0 else None,
                decoder_img_s=None if found is None else found.img_s,
            )
        )
        self._ended = now

    def pass_ended(self) -> None:
        """Forget when the last batch was handed over: what lies between two passes is no step."""
        self._ended = None

    def describe(self) -> list[str]:
        """Return where images are decoded and augmented, in lines for `explain`."""
        lines = self.placement.describe(self.decoder.name)
        steps = [written(step) for step in self._pipeline.transforms if changes_pixels(native_operations(step))]
        if steps and self.placement.refusal is None:
            how = self._operations.describe()
            lines.append(f"  what the GPU decodes it also augments, {how}, with the CPU's pixels: {', '.join(steps)}")
        return lines

    def close(self) -> None:
        """Stop the thread."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def abandon(self) -> None:
        """Forget the thread in a forked child, where it does not exist."""
        self._pool = None

    def _decode(self, records: list[int], draws: list[int], data: Sequence[bytes] | None, first: int, epoch: int) -> _Found:
        slots, files, places, passes = [], [], [], []
        for at, (record, draw) in enumerate(zip(records, draws, strict=True)):
            file = self._read(record) if data is None else data[at]
            made = None if file is None else self._place(file, epoch, draw)
            if file is not None and made is not None:
                slots.append(at)
                files.append(file)
                places.append(made[0])
                passes.append(made[1])
        began = time.perf_counter()
        with self._on_own_stream():
            parts = self._decode_some(files, places) if files else None
            whole, decoded = self._joined(parts) if parts else (None, [])
            if whole is not None:
                whole = self._augmented(whole, [passes[at] for at in decoded])
        took_s = time.perf_counter() - began
        done = [] if whole is None else [slots[at] for at in decoded]
        self._count(len(records), len(records) - len(done))
        good = set(done)
        statuses = [0 if at in good else 1 for at in range(len(records))]
        part = None if whole is None else GpuPart(whole, [first + at for at in done])
        return _Found(part, statuses, len(done) / took_s if done and took_s > 0 else None)

    def _joined(self, parts: list[tuple[int, torch.Tensor, Sequence[int]]]) -> tuple[torch.Tensor | None, list[int]]:
        """Return the decoded images of all parts together, and their positions among the files."""
        import torch

        pixels, decoded = [], []
        for begin, images, statuses in parts:
            good = [at for at, status in enumerate(statuses) if status == 0]
            decoded += [begin + at for at in good]
            pixels.append(images if len(good) == len(statuses) else images[good])
        if not decoded:
            return None, []
        return pixels[0] if len(pixels) == 1 else torch.cat(pixels), decoded

    def _augmented(self, images: torch.Tensor, passes: list[list[Pass]]) -> torch.Tensor | None:
        """Put the images through their passes, wait for the GPU, and return them. Return None if the GPU failed."""
        import torch

        try:
            images = augment(images, passes, self._operations.operations)
            if images.is_cuda:
                torch.cuda.current_stream(images.device).synchronize()  # the thread waits, so that nobody else has to
        except RuntimeError as error:
            self._failed(_reason(error))
            return None
        return images

    def _decode_some(self, files: list[bytes], places: list[Place]) -> list[tuple[int, torch.Tensor, Sequence[int]]] | None:
        """Return the decoded parts with the position of their first file; None if the GPU failed.

        A decoder that raises for one file among many is asked again for the halves, until the file is found.
        """
        import torch

        parts, waiting, calls = [], [(0, len(files))], 0
        while waiting:
            begin, end = waiting.pop()
            calls += 1
            try:
                decoded = self.decoder.decode(files[begin:end], places[begin:end])
                parts.append((begin, decoded.pixels, decoded.statuses))
            except RuntimeError as error:
                if calls > MOST_CALLS or isinstance(error, torch.cuda.OutOfMemoryError):
                    self._failed(_reason(error))
                    return None
                if end - begin > 1:
                    middle = (begin + end) // 2
                    waiting += [(middle, end), (begin, middle)]
        return sorted(parts, key=lambda part: part[0])

    def _failed(self, reason: str) -> None:
        if self.placement.fail(reason):
            warnings.warn(
                f"{self.decoder.name} could not decode a batch ({reason}): the CPU decodes it",
                RuntimeWarning,
                stacklevel=2,
            )

    def _count(self, tried: int, left: int) -> None:
        self._tried, self._left = self._tried + tried, self._left + left
        if self._tried < ENOUGH_FILES or 2 * self._left <= self._tried or self.placement.refusal is not None:
            return
        reason = f"{self.decoder.name} decoded only {self._tried - self._left} of {self._tried} files"
        follower = self._candidates.next()
        if follower is None:
            self.placement.refuse(reason)
        else:
            self.decoder, self._tried, self._left = follower, 0, 0
        if self.placement.mode != "auto":
            then = "the CPU decodes all" if follower is None else f"{follower.name} decodes"
            warnings.warn(f"{reason}: {then} from now on", RuntimeWarning, stacklevel=2)

    def _read(self, record: int) -> bytes | None:
        """Return a record's bytes; None where the CPU shall say what is wrong with it."""
        checksums = self._dataset.table.crc32c
        try:
            data = self._dataset.read(record)
        except (HeadraceError, OSError):
            return None
        return data if checksums is None or crc32c(data) == int(checksums[record]) else None

    def _place(self, file: bytes, epoch: int, draw: int) -> tuple[Place, list[Pass]] | None:
        """Return where the output lies in a sound JPEG, and the passes that follow; None for another file: it is the CPU's."""
        facts = sound_jpeg(file)
        if facts is None:
            return None
        try:
            (box, size, window, flip_x, flip_y), passes = self._pipeline.program.split(
                facts[0], facts[1], self._seed, epoch, draw
            )
        except ValueError:
            return None
        if window[2:] != (self._pipeline.width, self._pipeline.height):
            return None  # padded
        # Not every decoder turns images upside down.
        return Place(box, size, window, flip_x), [("flip_y", []), *passes] if flip_y else passes

    def _on_own_stream(self) -> AbstractContextManager[Any]:
        if not on_gpu(self._device):
            return nullcontext()
        import torch

        if self._stream is None:
            self._stream = torch.cuda.Stream(torch.device(self._device))
        context: AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return context


def _reason(error: RuntimeError) -> str:
    """Return in words why the GPU failed."""
    import torch

    return "out of GPU memory" if isinstance(error, torch.cuda.OutOfMemoryError) else str(error).splitlines()[0]


def on_gpu(device: str) -> bool:
    """Return whether a device is a CUDA GPU, which has streams and events."""
    return device.startswith("cuda")


def refusal(dataset: Dataset, pipeline: Pipeline, options: LoaderOptions, *, several: bool, masked: bool) -> str | None:
    """Return why the images of a loader cannot be decoded on a GPU, or None. The device is not asked."""
    reason = cpu_only(pipeline.operations, pipeline.fuse)
    reasons = (
        (several, "Views are made by the native threads"),
        (masked, "masks are made by the native threads"),
        (bool(pipeline.functions), "Python functions work on images in the host's memory"),
        (reason is not None, reason or ""),
        (dataset.stream is not None, "a stream is decoded by the native threads"),
        (options.cache is not None, "cache= keeps encoded images for the native threads"),
        (options.dct_scale != "off", "dct_scale= is the native decoder's"),
    )
    return next((reason for applies, reason in reasons if applies), None)


def gpu_decoding(
    dataset: Dataset, pipeline: Pipeline, options: LoaderOptions, *, device: str | None, several: bool, masked: bool
) -> tuple[GpuDecoding | None, Placement]:
    """Return what decodes on the GPU, or None, and the placement, which says why.

    device: the GPU of the batches with its index, "cuda:1": the decoding thread has another current device. None: the CPU.

    Raises UsageError if decode="gpu" or "split" asks for what the pipeline does not allow. Without a usable decoder it warns in
    one line, and the CPU decodes the same batches.
    """
    mode: Decode = options.decode
    asked = mode in ("gpu", "split")
    if mode == "cpu" or device is None:
        return None, Placement(mode, options.batch_size, refusal="as asked" if mode == "cpu" else "device='cpu'")
    reason = refusal(dataset, pipeline, options, several=several, masked=masked)
    if reason is not None:
        if asked:
            raise UsageError(f"decode={mode!r} is not possible here: {reason}", hint="use decode='auto' or 'cpu'")
        return None, Placement(mode, options.batch_size, refusal=reason)
    filters = frozenset(name for kind, _, name in pipeline.operations if name and kind in RESIZES)
    candidates = Candidates(device, (pipeline.height, pipeline.width), filters, exact_only=not asked)
    decoder = candidates.next()
    if decoder is None:
        reason = f"no GPU decoder can be used here ({'; '.join(candidates.reasons)})"
        if asked:
            warnings.warn(f"decode={mode!r}: the CPU decodes, because {reason}", RuntimeWarning, stacklevel=5)
        return None, Placement(mode, options.batch_size, refusal=reason)
    is_augmented = changes_pixels(pipeline.operations) and on_gpu(device)
    operations = checked_operations(device) if is_augmented else CheckedOperations(OPERATIONS)
    if operations.refusal is not None:
        if asked:
            warnings.warn(f"decode={mode!r}: the CPU decodes, because {operations.refusal}", RuntimeWarning, stacklevel=5)
        return None, Placement(mode, options.batch_size, refusal=operations.refusal)
    placement = Placement(mode, options.batch_size)
    clock = EventClock(device) if on_gpu(device) else HostClock()
    gpu = GpuDecoding(dataset, pipeline, options, decoder, candidates, placement, clock, device, operations)
    return gpu, placement
