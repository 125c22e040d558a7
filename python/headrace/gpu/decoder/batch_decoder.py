"""Decode a batch on the GPU. The CPU kernel decodes the images that the GPU cannot, with the same pixels."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace._native import CudaPlan
from headrace.errors import HeadraceError, MissingDependencyError, UsageError
from headrace.gpu.decoder.arguments import BatchArguments, Group, Launcher
from headrace.gpu.decoder.driver import CudaLauncher
from headrace.gpu.decoder.self_check import CHECKED_SIZE, check_pixels
from headrace.images.decode import decode_into
from headrace.system.text.install_hints import extra_hint

if TYPE_CHECKING:
    import torch

__all__ = ["LEAST_SCRATCH_BYTES", "REFUSALS", "SCRATCH_BYTES", "CudaBatch", "CudaJpegDecoder", "available"]

SCRATCH_BYTES = 512 << 20
"""Device memory for coefficients and samples. Larger batches, of more than about 1,000 ImageNet crops, are decoded in groups.
"""

LEAST_SCRATCH_BYTES = 32 << 20
"""Smallest scratch memory to try on a GPU with little free memory: less does not hold an image of 4 megapixels."""

REFUSALS = {
    1: "not a baseline JPEG of one or three components in one scan",
    2: "no restart markers, or too few",
    3: "a damaged header or structure",
    4: "a box that leaves the image",
    5: "larger than the decoder's memory on the device",
    6: "damaged image data",
}
"""Reasons why the CPU decodes an image, by number: 1 to 5 are known before the launch, 6 after it."""

_launchers: dict[int, CudaLauncher] = {}


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("the CUDA decoder needs PyTorch", hint=extra_hint("train")) from error
    return torch


def _launcher(device: torch.device) -> CudaLauncher:
    """Return the kernels on `device`, loaded and checked once per process."""
    torch = _torch()
    if device.type != "cuda":
        raise HeadraceError(f"device {device} is not a CUDA device")
    if not torch.cuda.is_available():
        raise HeadraceError("torch sees no CUDA device")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise HeadraceError(
            f"there is no device {device}: the number of CUDA devices that torch sees is {torch.cuda.device_count()}"
        )
    if index not in _launchers:
        launcher = CudaLauncher(torch.device("cuda", index))
        check_pixels(CudaJpegDecoder(launcher.device, CHECKED_SIZE, launcher=launcher))
        _launchers[index] = launcher
    return _launchers[index]


def available(device: torch.device | str) -> str | None:
    """Return why the CUDA decoder cannot be used on `device`; None if it can. This call compiles and loads the kernels, and
    compares their pixels with the CPU kernel's.

    device: torch's device, for example "cuda" or torch.device("cuda", 1).

        reason = available("cuda")  # "torch sees no CUDA device"
    """
    try:
        _launcher(_torch().device(device))
    except HeadraceError as error:
        return str(error)
    return None


class Request(NamedTuple):
    """The arguments of one `CudaJpegDecoder.decode` call, one entry per image. None: the default for all images."""

    files: list[Any]
    boxes: list[tuple[int, int, int, int]] | None
    flips: list[bool] | None
    sizes: list[tuple[int, int]] | None
    windows: list[tuple[int, int, int, int]] | None

    def chosen(self, slots: npt.NDArray[np.intp]) -> Request:
        """Return the request reduced to the images at the positions `slots`."""
        return Request._make(None if column is None else [column[slot] for slot in slots] for column in self)


class CudaBatch:
    """A batch that the GPU is decoding.

    images: tensor on the device, shape (N, 3, H, W) over channels-last memory, ready for work on the current stream. Slots of
        images that the GPU does not decode are undefined until `complete`.
    refused: uint8 [N], 0 or the number in `REFUSALS` of images that the CPU has to decode, as known before the launch.
    """

    def __init__(self, decoder: CudaJpegDecoder, request: Request, images: Any, refused: npt.NDArray[np.uint8]) -> None:
        self.images = images
        self.refused = refused
        self._decoder = decoder
        self._request = request
        self._statuses: Any = None
        self._copied: Any = None
        self._staged: Any = None  # what the device may still read

    def started(self, statuses: Any, staged: Any, on_gpu: bool) -> None:
        """Start to copy `statuses` to the host and return at once; `CudaBatch.statuses` waits for the copy.

        statuses: what the launch found, one byte per image on the device, 0 for a decoded image.
        staged: buffers to keep alive while the device may read them. on_gpu: False in tests, whose statuses are on the host.
        """
        self._staged = staged
        self._statuses = statuses
        if on_gpu:
            torch = _torch()
            self._statuses = torch.empty(statuses.shape, dtype=statuses.dtype, pin_memory=True)
            self._statuses.copy_(statuses, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(statuses.device))

    def statuses(self) -> npt.NDArray[np.uint8]:
        """Wait for the GPU, and return 0 for each image that it decoded, otherwise the number in `REFUSALS`: uint8 [N]."""
        found = self.refused.copy()
        if self._statuses is not None:
            if self._copied is not None:
                self._copied.synchronize()
            damaged = self._statuses.numpy() != 0
            found[(found == 0) & damaged] = 6
        return found

    def complete(self, threads: int = 1) -> npt.NDArray[np.int32]:
        """Wait for the GPU, decode the other images with the CPU kernel, and put them into their slots.

        threads: threads of the CPU kernel (default 1).

        Returns a status for each image, int32 [N], as `headrace.decode_into` does: 0 is success; the slot of another is black.
        """
        final = np.zeros(len(self.refused), np.int32)
        slots = np.flatnonzero(self.statuses())
        if len(slots):
            pixels, final[slots] = self._decoder.decode_on_cpu(self._request, slots, threads)
            torch = _torch()
            places = torch.from_numpy(slots).to(self.images.device)
            self.images.permute(0, 2, 3, 1)[places] = pixels.to(self.images.device)
        return final


class CudaJpegDecoder:
    """Decodes, crops, resizes and flips batches of JPEGs with restart markers on one GPU. Pixels equal `decode_into`'s.

    device: torch's device, "cuda" or with an index.
    size: height and width of the result in pixels.
    values: tensor [3, 256] of uint8, float16, bfloat16 or float32: the value in the result of each byte of each channel, to
        normalise (default: the bytes, uint8).
    scratch_bytes: device memory for the work between bytes and pixels (default 512 MiB); larger batches are decoded in groups.
    threads: threads that read headers and copy bytes (default 1).

    `headrace pack` and `headrace.restart_markers` write files that it decodes: baseline JPEGs with markers.

    Raises `UsageError` if the decoder cannot be used there (`available` says why) or an argument is wrong.

        decoder = CudaJpegDecoder("cuda", (224, 224))
        batch = decoder.decode(files, boxes, flips)
        statuses = batch.complete()
    """

    def __init__(
        self,
        device: torch.device | str,
        size: tuple[int, int],
        *,
        values: torch.Tensor | None = None,
        scratch_bytes: int = SCRATCH_BYTES,
        threads: int = 1,
        launcher: Launcher | None = None,
    ) -> None:
        self._torch = torch = _torch()
        self.device = torch.device(device)
        self.height, self.width = int(size[0]), int(size[1])
        if self.height < 1 or self.width < 1 or threads < 1 or scratch_bytes < 1:
            raise UsageError(f"size {size}, threads {threads} and scratch_bytes {scratch_bytes} must be positive")
        if launcher is None:
            try:
                launcher = own = _launcher(self.device)
                self.device = own.device  # with an index: what is current may change
            except HeadraceError as error:
                raise UsageError(f"the CUDA decoder cannot be used: {error}", hint=error.hint) from error
        self._launcher = launcher
        self.threads = threads
        self.scratch_bytes = scratch_bytes
        self.dtype = torch.uint8 if values is None else values.dtype
        if values is not None and (values.shape != (3, 256) or self.dtype.itemsize not in (1, 2, 4)):
            raise UsageError(
                f"values must be a tensor [3, 256] of 1, 2 or 4 bytes a value, not {values.dtype} {list(values.shape)}"
            )
        # By way of the host, which waits: `decode` may run on another stream than the one that makes `values`.
        self._values = None if values is None else values.cpu().contiguous().to(self.device)

    def decode(
        self,
        files: Sequence[bytes | bytearray | memoryview],
        boxes: Sequence[Sequence[int]] | npt.NDArray[Any] | None = None,
        flips: Sequence[bool] | npt.NDArray[np.bool_] | None = None,
        *,
        sizes: Sequence[Sequence[int]] | npt.NDArray[Any] | None = None,
        windows: Sequence[Sequence[int]] | npt.NDArray[Any] | None = None,
    ) -> CudaBatch:
        """Start to decode a batch on torch's current stream, and return before the GPU has finished.

        files: N encoded images.
        boxes: the crop (x, y, width, height) of each image in pixels, N × 4 (default: the whole image).
        flips: whether to flip each image from left to right (default: no).
        sizes, windows: as for `headrace.decode_into`: resize each crop to (width, height), and take a part of it.

        Raises `UsageError` if the arguments do not fit each other, torch's OutOfMemoryError if the device's memory does not
        hold the result and a sixteenth of the usual scratch memory.
        """
        request = Request(list(files), _rows(boxes), _flags(flips), _rows(sizes), _rows(windows))
        torch = self._torch
        shape = (len(files), self.height, self.width, 3)
        out = torch.empty(shape, dtype=self.dtype, device=self.device)
        while True:
            try:
                return self._start(request, out)
            except torch.OutOfMemoryError:
                if self.scratch_bytes < 2 * LEAST_SCRATCH_BYTES:
                    raise
                self.scratch_bytes //= 2  # also for later batches

    def decode_on_cpu(
        self, request: Request, slots: npt.NDArray[np.intp], threads: int
    ) -> tuple[torch.Tensor, npt.NDArray[np.int32]]:
        """Decode the images at positions `slots` with the CPU kernel. Return values [n, H, W, 3] and a status for each."""
        pixels = np.empty((len(slots), self.height, self.width, 3), np.uint8)
        files, boxes, flips, sizes, windows = request.chosen(slots)
        statuses = decode_into(files, pixels, boxes, flips, threads, sizes=sizes, windows=windows)
        result = self._torch.from_numpy(pixels)
        if self._values is not None:
            table = self._values.cpu()
            result = self._torch.stack([table[channel][result[..., channel].int()] for channel in range(3)], dim=-1)
            result[self._torch.from_numpy(statuses != 0)] = 0
        return result, statuses

    def _start(self, request: Request, out: Any) -> CudaBatch:
        torch = self._torch
        on_gpu = self.device.type == "cuda"
        plan = self._plan(request)
        refused = np.frombuffer(bytes(plan.refusals), np.uint8)
        decoded = CudaBatch(self, request, out.permute(0, 3, 1, 2), refused)
        groups = [Group(*group) for group in plan.groups]
        if not groups:
            return decoded
        staged = torch.empty(plan.size, dtype=torch.uint8, pin_memory=on_gpu)
        plan.fill(staged.numpy(), self.threads)
        uploaded = staged.to(self.device, non_blocking=True)
        statuses = torch.zeros(len(refused), dtype=torch.int32, device=self.device)

        def room(count: int, dtype: Any) -> Any:
            return torch.empty(count, dtype=dtype, device=self.device)

        coefficients = room(max(group.blocks for group in groups) * 64, torch.int16)
        samples = room(max(group.blocks for group in groups) * 64, torch.uint8)
        middle = room(max(group.middle for group in groups), torch.uint8)
        table = room(max(group.table for group in groups), torch.int32)
        for group in groups:
            coefficients[: group.blocks * 64].zero_()
            arguments = BatchArguments(
                plan=uploaded.data_ptr(),
                coefficients=coefficients.data_ptr(),
                samples=samples.data_ptr(),
                table=table.data_ptr(),
                middle=middle.data_ptr(),
                out=out.data_ptr(),
                values=0 if self._values is None else self._values.data_ptr(),
                statuses=statuses.data_ptr(),
                first=group.first,
                images=group.images,
                value_bytes=self.dtype.itemsize,
                single_row_saturates=platform.machine() in ("x86_64", "AMD64"),
            )
            self._launcher.run(arguments, group.chunks)
        decoded.started(statuses, staged, on_gpu)
        return decoded

    def _plan(self, request: Request) -> CudaPlan:
        try:
            return CudaPlan(
                request.files,
                self.height,
                self.width,
                request.boxes,
                request.flips,
                request.sizes,
                request.windows,
                self.scratch_bytes,
                self.threads,
            )
        except (ValueError, TypeError, BufferError, OverflowError) as error:
            raise UsageError(f"CudaJpegDecoder.decode: {error}") from error


def _rows(given: Any) -> Any:
    """Return boxes, sizes or windows as tuples of int."""
    try:
        return None if given is None else [tuple(map(int, row)) for row in given]
    except (TypeError, ValueError) as error:
        raise UsageError(f"CudaJpegDecoder.decode: boxes, sizes and windows must be rows of ints: {error}") from error


def _flags(given: Any) -> list[bool] | None:
    return None if given is None else [bool(flip) for flip in given]
