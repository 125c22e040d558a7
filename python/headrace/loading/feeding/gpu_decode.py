"""GPU decoding and augmentation in the feed: the last images of each batch go to the CUDA decoder, in a thread of its own; of
the others the CPU crops some, which the same thread augments on the GPU.

The CPU stays the judge of every file: what the decoder leaves, and what fails, is decoded by the native threads, with their
status and their error. What the GPU decoded it also augments. Draws are the same on both sides, so a batch holds the same
images wherever they were made.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace._native import Job, Program, crc32c, sound_jpeg
from headrace.datasets.records.dataset import Dataset
from headrace.errors import HeadraceError, UsageError
from headrace.gpu.augmentation.augment import OPERATIONS, RESIZES, Pass, augment, changes_pixels, cpu_only
from headrace.gpu.augmentation.augment_check import CheckedOperations, checked_operations
from headrace.gpu.augmentation.cropping import Cropping, cropping
from headrace.gpu.decoder import CudaJpegDecoder, available
from headrace.gpu.placement import Decode, Placement, Seen
from headrace.loading.feeding.options import LoaderOptions
from headrace.loading.statistics.step_clock import EventClock, HostClock, StepClock
from headrace.system.text.foreign_errors import first_line
from headrace.transforms.compile import Pipeline
from headrace.transforms.native_operations import native_operations
from headrace.transforms.written import written

if TYPE_CHECKING:
    import torch

__all__ = [
    "Cropped",
    "GpuDecoding",
    "GpuJob",
    "GpuPart",
    "gpu_decoding",
    "on_gpu",
    "refusal",
]

MOST_CALLS = 64
"""If the decoder fails, search for the files that cause it with at most this many calls; then the CPU decodes them all."""

ENOUGH_FILES = 512
"""Stop GPU decoding if, after at least this many files, the decoder could not decode more than half of them."""

_OUT_OF_MEMORY = "out of GPU memory"

_DECODER = "headrace's CUDA decoder"


class _Place(NamedTuple):
    """Where an output image comes from: `box` of the image, resized to `size`, of which `window` is kept, then flipped."""

    box: tuple[int, int, int, int]  # x, y, width, height in pixels
    size: tuple[int, int]  # width, height in pixels
    window: tuple[int, int, int, int]  # x, y, width, height in the resized box; as large as the output
    flip_x: bool  # mirror left to right


@dataclass(frozen=True, slots=True)
class GpuPart:
    """The images of a batch that were made on the GPU: uint8 [n, H, W, 3], and their slots in the batch, ascending."""

    pixels: torch.Tensor
    slots: Sequence[int]


@dataclass(frozen=True, slots=True)
class Cropped:
    """Images of a batch that the CPU decodes and crops and the GPU then augments: the CPU's job and its output memory."""

    job: Job
    pixels: npt.NDArray[np.uint8]  # flat, as many bytes as the cropped images have


@dataclass(frozen=True, slots=True)
class _Made:
    """What one of the two kinds of work made: its images, their positions among the work's, and its rate."""

    pixels: torch.Tensor | None = None
    positions: Sequence[int] = ()
    img_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of the GPU thread for one batch. statuses: per image 0 (made on the GPU) or 1 (left to the CPU)."""

    part: GpuPart | None
    statuses: list[int]
    img_s: float | None  # images/s that the GPU decoded and augmented; None: it decoded none
    augmented_img_s: float | None = None  # images/s that the GPU augmented of those that the CPU decoded; None: none


class GpuJob:
    """The GPU work on the last images of a batch, with the interface of a native `Job`."""

    def __init__(self, future: Future[_Found], cropped: Cropped | None = None) -> None:
        self._future, self._cropped = future, cropped

    def wait(self) -> None:
        """Wait until the images are decoded and augmented."""
        self._future.result()

    def cancel(self) -> None:
        """Cancel the GPU work if it has not begun, and the native decodes for it that no thread has begun."""
        if self._cropped is not None:
            self._cropped.job.cancel()
        self._future.cancel()

    def found(self) -> _Found:
        """Return the images that the GPU has made, and which it left to the CPU. Raise the error that ended its work."""
        return self._future.result()


class GpuDecoding:
    """Decodes some images of each batch on the GPU, and augments some of the others there, in the shares of `placement`.

    decoder: decodes; None: nothing is decoded on the GPU.
    cropping: the part of the pipeline that the CPU does where the GPU augments, or why there is none.
    operations: what augments; None: each operation is tried when the first image is to be augmented.
    """

    def __init__(
        self,
        dataset: Dataset,
        pipeline: Pipeline,
        options: LoaderOptions,
        placement: Placement,
        device: str,
        *,
        decoder: CudaJpegDecoder | None,
        cropping: Cropping | str,
        operations: CheckedOperations | None,
    ) -> None:
        self.decoder, self.placement = decoder, placement
        self.clock: StepClock = EventClock(device) if on_gpu(device) else HostClock()
        self._operations = operations
        self._cropping = None if isinstance(cropping, str) else cropping
        self._dataset, self._pipeline, self._seed, self._device = dataset, pipeline, options.seed, device
        self._threads = options.threads
        self._pool: ThreadPoolExecutor | None = None
        self._stream: Any = None
        self._tried = self._left = 0
        self._failure: str | None = None  # of the batch that is being made
        self._ended: float | None = None
        self._counted = (0, 0)

    def slots(self, images: int) -> tuple[int, int]:
        """Return the first slot of the next batch of `images` that the GPU augments, and the first that it decodes."""
        decoded = images - self.placement.on_gpu(images)
        return decoded - self.placement.on_cpu_augmented(decoded), decoded

    @property
    def crop_program(self) -> Program | None:
        """The operations that the CPU applies to images that the GPU augments only."""
        return None if self._cropping is None else self._cropping.program

    def begin(
        self,
        records: npt.NDArray[np.int64],
        draws: npt.NDArray[np.uint64],
        data: Sequence[bytes] | None,
        first: int,
        epoch: int,
        cropped: Cropped | None = None,
    ) -> GpuJob:
        """Start decoding records on the GPU. Their slots in the batch are `first` and up. cropped: images to augment only."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "headrace-gpu-decode")
        work = self._pool.submit(self._make, records.tolist(), draws.tolist(), data, first, epoch, cropped)
        return GpuJob(work, cropped)

    def see(self, found: _Found | None, counters: dict[str, int]) -> None:
        """Update the placement with the measured times of a delivered batch. counters: the native engine's totals."""
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
                augmenter_img_s=None if found is None else found.augmented_img_s,
            )
        )
        self._ended = now

    def pass_ended(self) -> None:
        """Clear the time of the last delivered batch, because the time between two passes is not a step."""
        self._ended = None

    def describe(self) -> list[str]:
        """Return lines for `explain` that say where images are decoded and augmented."""
        lines = self.placement.describe(None if self.decoder is None else _DECODER)
        steps = [written(step) for step in self._pipeline.transforms if changes_pixels(native_operations(step))]
        if steps and (self.placement.refusal is None or self.placement.augment_refusal is None):
            how = "" if self._operations is None else self._operations.describe()
            if self.placement.refusal is None:
                words = ", ".join(["what the GPU decodes it also augments", *([how] if how else []), "with the CPU's pixels"])
            else:
                words = f"the GPU can augment {how}".rstrip()
            lines.append(f"  {words}: {', '.join(steps)}")
        return lines

    def close(self) -> None:
        """Stop and join the thread that works on the GPU. Later use starts a new one."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def abandon(self) -> None:
        """In a forked child process, drop the thread, which exists in the parent only."""
        self._pool = None

    def _make(
        self,
        records: list[int],
        draws: list[int],
        data: Sequence[bytes] | None,
        first: int,
        epoch: int,
        cropped: Cropped | None,
    ) -> _Found:
        """Decode the images that the CPU does not crop, while it crops the others; then augment those."""
        image_bytes = self._pipeline.height * self._pipeline.width * 3
        count = 0 if cropped is None else cropped.pixels.size // image_bytes
        self._failure = None
        with self._on_own_stream():
            decoded = _Made()
            if count < len(records):
                decoded = self._decode(records[count:], draws[count:], None if data is None else data[count:], epoch)
            finished = _Made() if cropped is None else self._finish(cropped, draws[:count], epoch)
            pixels = self._together([one.pixels for one in (finished, decoded) if one.pixels is not None])
        done = [*finished.positions, *(count + at for at in decoded.positions)] if pixels is not None else []
        good = set(done)
        statuses = [0 if at in good else 1 for at in range(len(records))]
        part = None if pixels is None else GpuPart(pixels, [first + at for at in done])
        return _Found(part, statuses, decoded.img_s, finished.img_s)

    def _finish(self, cropped: Cropped, draws: list[int], epoch: int) -> _Made:
        """Augment the images that the CPU has cropped, on the GPU."""
        import torch

        assert self._cropping is not None
        passes = [self._cropping.passes(self._seed, epoch, draw) for draw in draws]
        cropped.job.wait()
        began = time.perf_counter()
        sound = [at for at, status in enumerate(cropped.job.statuses()) if status == 0 and passes[at] is not None]
        operations = self._checked()
        if not sound or operations is None:
            return _Made()
        host = torch.from_numpy(cropped.pixels.reshape(len(draws), self._pipeline.height, self._pipeline.width, 3))
        try:
            pixels = host.to(self._device if on_gpu(self._device) else "cpu", non_blocking=True, copy=True)
            pixels = pixels if len(sound) == len(draws) else pixels[sound]
        except RuntimeError as error:
            self._failed("augment", _reason(error))
            return _Made()
        made = self._augmented(pixels, [own for at in sound if (own := passes[at]) is not None], operations)
        return _Made() if made is None else _Made(made, sound, len(sound) / (time.perf_counter() - began))

    def _checked(self) -> CheckedOperations | None:
        """Return the operations that augment; None if the GPU gives other pixels or is full: the CPU takes these images."""
        if self._operations is None:
            self._operations = _tried(self._device)
            if self._operations is None:
                self._failed("augment", _OUT_OF_MEMORY)
                return None
            if self._operations.refusal is not None:
                self._refuse(self._operations.refusal)
        return None if self._operations.refusal is not None else self._operations

    def _refuse(self, reason: str) -> None:
        """Leave all images to the CPU from now on: the GPU augments otherwise, which the loader could not find out earlier."""
        self.placement.refuse_augmenting(reason)
        if self.decoder is None or self.placement.refusal is not None:
            return
        self.placement.refuse(reason)
        if self.placement.mode != "auto":
            words = f"decode={self.placement.mode!r}: the CPU decodes from now on, because {reason}"
            warnings.warn(words, RuntimeWarning, stacklevel=2)

    def _decode(self, records: list[int], draws: list[int], data: Sequence[bytes] | None, epoch: int) -> _Made:
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
        operations = self._checked() if any(passes) else CheckedOperations(OPERATIONS)
        if operations is None:
            return _Made()
        parts = self._decode_some(files, places) if files else None
        pixels, decoded = self._selected(parts) if parts else (None, [])
        if pixels is not None:
            pixels = self._augmented(pixels, [passes[at] for at in decoded], operations)
        took_s = time.perf_counter() - began
        done = [] if pixels is None else [slots[at] for at in decoded]
        if self._failure != _OUT_OF_MEMORY:  # which says nothing about the decoder
            self._count(len(records), len(records) - len(done))
        return _Made(pixels, done, len(done) / took_s if done and took_s > 0 else None)

    def _selected(self, parts: list[tuple[int, torch.Tensor, Sequence[int]]]) -> tuple[torch.Tensor | None, list[int]]:
        """Return the decoded images of all parts together, and their positions among the files; none if the GPU failed."""
        pixels, decoded = [], []
        try:
            for begin, images, statuses in parts:
                good = [at for at, status in enumerate(statuses) if status == 0]
                decoded += [begin + at for at in good]
                pixels.append(images if len(good) == len(statuses) else images[good])
            return (_joined(pixels), decoded) if decoded else (None, [])
        except RuntimeError as error:
            self._failed("make", _reason(error))
            return None, []

    def _augmented(self, images: torch.Tensor, passes: list[list[Pass]], operations: CheckedOperations) -> torch.Tensor | None:
        """Put the images through their passes, wait for the GPU, and return them. Return None if the GPU failed."""
        try:
            images = augment(images, passes, operations.operations)
            _wait_for(images)
        except Exception as error:  # torch's, and those of Triton and the compilers that it calls
            self._failed("augment", _reason(error))
            return None
        return images

    def _together(self, parts: list[torch.Tensor]) -> torch.Tensor | None:
        """Return the images of all parts together, for any stream; None without a part, or if the GPU failed."""
        try:
            if len(parts) > 1:
                parts = [_joined(parts)]
                _wait_for(parts[0])
        except RuntimeError as error:
            self._failed("make", _reason(error))
            return None
        return parts[0] if parts else None

    def _decode_some(self, files: list[bytes], places: list[_Place]) -> list[tuple[int, torch.Tensor, Sequence[int]]] | None:
        """Return the decoded parts with the position of their first file; None if the GPU failed.

        A decoder that raises for one file among many is asked again for the halves, until the file is found.
        """
        import torch

        parts, waiting, calls = [], [(0, len(files))], 0
        while waiting:
            begin, end = waiting.pop()
            calls += 1
            try:
                assert self.decoder is not None  # without one the placement leaves no image to decode
                boxes, sizes, windows, flips = zip(*places[begin:end], strict=True)
                batch = self.decoder.decode(files[begin:end], boxes, flips, sizes=sizes, windows=windows)
                parts.append((begin, batch.images.permute(0, 2, 3, 1), batch.statuses().tolist()))  # which waits for the GPU
            except Exception as error:  # torch's, the driver's (HeadraceError), Triton's, and those of the compilers it calls
                if calls > MOST_CALLS or isinstance(error, torch.cuda.OutOfMemoryError):
                    self._failed("decode", _reason(error), who=_DECODER)
                    return None
                if end - begin > 1:
                    middle = (begin + end) // 2
                    waiting += [(middle, end), (begin, middle)]
        return sorted(parts, key=lambda part: part[0])

    def _failed(self, what: str, reason: str, who: str = "the GPU") -> None:
        """Pause the GPU's part, and tell of the first failure. A batch fails once: what follows is the same trouble.

        what: that could not be done, "decode". who: could not.
        """
        if self._failure is not None:
            return
        self._failure = reason
        if self.placement.fail(reason):
            words = f"{who} could not {what} a batch ({reason}): the CPU does"
            warnings.warn(words, RuntimeWarning, stacklevel=2)

    def _count(self, tried: int, left: int) -> None:
        self._tried, self._left = self._tried + tried, self._left + left
        if self._tried < ENOUGH_FILES or 2 * self._left <= self._tried or self.placement.refusal is not None:
            return
        reason = f"{_DECODER} decoded only {self._tried - self._left} of {self._tried} files"
        self.placement.refuse(reason)
        if self.placement.mode != "auto":
            warnings.warn(f"{reason}: the CPU decodes all from now on", RuntimeWarning, stacklevel=2)

    def _read(self, record: int) -> bytes | None:
        """Return a record's bytes; None where the CPU shall say what is wrong with it."""
        checksums = self._dataset.table.crc32c
        try:
            data = self._dataset.read(record)
        except (HeadraceError, OSError):
            return None
        return data if checksums is None or crc32c(data) == int(checksums[record]) else None

    def _place(self, file: bytes, epoch: int, draw: int) -> tuple[_Place, list[Pass]] | None:
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
        # The decoder turns no image upside down.
        return _Place(box, size, window, flip_x), [("flip_y", []), *passes] if flip_y else passes

    def _on_own_stream(self) -> AbstractContextManager[Any]:
        if not on_gpu(self._device):
            return nullcontext()
        import torch

        if self._stream is None:
            self._stream = torch.cuda.Stream(torch.device(self._device))
        context: AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return context


def _reason(error: Exception) -> str:
    """Return the reason of a GPU failure in words, for `explain` and messages."""
    import torch

    if isinstance(error, torch.cuda.OutOfMemoryError):
        return _OUT_OF_MEMORY
    return first_line(error)


def _wait_for(images: torch.Tensor) -> None:
    """Wait until the GPU has made the images: this thread waits, so that nobody else has to."""
    import torch

    if images.is_cuda:
        torch.cuda.current_stream(images.device).synchronize()


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    import torch

    return parts[0] if len(parts) == 1 else torch.cat(parts)


def on_gpu(device: str) -> bool:
    """Return whether a device's name means a CUDA GPU."""
    return device.startswith("cuda")


def refusal(dataset: Dataset, pipeline: Pipeline, options: LoaderOptions, *, several: bool, masked: bool) -> str | None:
    """Return why the GPU cannot decode the images of a loader with these options, or None. The GPU itself is not examined."""
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
    """Return the GPU decoder of a loader, or None, and the placement, which says why.

    device: the GPU of the batches with its index, "cuda:1": the decoding thread has another current device. None: the CPU.

    Raises UsageError if decode="gpu" or "split" asks for what the pipeline does not allow. Without a usable decoder it warns in
    one line, and the CPU decodes the same batches.
    """
    mode: Decode = options.decode
    if device is None:
        return None, Placement(mode, options.batch_size, "as asked" if mode == "cpu" else "device='cpu'")
    cropped = cropping(pipeline)
    if cropped and (several or masked):
        cropped = "Views and masks are made by the native threads"
    found = _usable(dataset, pipeline, options, device, several=several, masked=masked)
    if found.operations is not None and found.operations.refusal is not None:
        cropped = found.operations.refusal
    augment_refusal = cropped if isinstance(cropped, str) else None
    placement = Placement(mode, options.batch_size, found.refusal, augment_refusal, options.prefetch)
    if found.refusal is not None and augment_refusal is not None:
        return None, placement
    gpu = GpuDecoding(
        dataset,
        pipeline,
        options,
        placement,
        device,
        decoder=found.decoder,
        cropping=cropped,
        operations=found.operations,
    )
    return gpu, placement


@dataclass(frozen=True, slots=True)
class _Usable:
    """The decoder or, as `refusal`, why there is none; and the operations that augment, if they were tried already."""

    refusal: str | None = None
    decoder: CudaJpegDecoder | None = None
    operations: CheckedOperations | None = None


def _usable(
    dataset: Dataset, pipeline: Pipeline, options: LoaderOptions, device: str, *, several: bool, masked: bool
) -> _Usable:
    """Return the decoder on a device, as `gpu_decoding` says."""
    mode = options.decode
    if mode == "cpu":
        return _Usable("as asked")
    asked = mode in ("gpu", "split")
    reason = refusal(dataset, pipeline, options, several=several, masked=masked)
    if reason is not None:
        if asked:
            raise UsageError(f"decode={mode!r} is not possible here: {reason}", hint="use decode='auto' or 'cpu'")
        return _Usable(reason)
    named = (values["interpolation"] for name, values in pipeline.operations if name in RESIZES)
    filters = {one if isinstance(one, str) else " or ".join(one) for one in named} - {"bilinear"}
    reason = f"it resizes by bilinear, not by {', '.join(sorted(filters))}" if filters else available(device)
    if reason is not None:
        reason = f"the GPU decoder cannot be used here ({reason})"
        if asked:
            warnings.warn(f"decode={mode!r}: the CPU decodes, because {reason}", RuntimeWarning, stacklevel=6)
        return _Usable(reason)
    decoder = CudaJpegDecoder(device, (pipeline.height, pipeline.width))
    operations = _tried(device) if changes_pixels(pipeline.operations) else CheckedOperations(OPERATIONS)
    if operations is not None and operations.refusal is not None:
        if asked:
            warnings.warn(f"decode={mode!r}: the CPU decodes, because {operations.refusal}", RuntimeWarning, stacklevel=6)
        return _Usable(operations.refusal, operations=operations)
    return _Usable(None, decoder, operations)


def _tried(device: str) -> CheckedOperations | None:
    """Return the checked operations that augment on a device; None if it is out of memory: they are tried again later."""
    import torch

    try:
        return checked_operations(device) if on_gpu(device) else CheckedOperations(OPERATIONS)
    except torch.cuda.OutOfMemoryError:
        return None
