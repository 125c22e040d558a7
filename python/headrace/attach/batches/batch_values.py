"""Read some values of one batch: its labels, the range of its images, a digest.

At most `MOST_VALUES` values of a tensor are read, on the CPU only, and none is kept. No operation here draws a random number,
waits for a device, or is seen by a mode of the script. `HEADRACE_NOTES=0` turns all looking into batches off.
"""

from __future__ import annotations

import hashlib
import math
import os
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.attach.record.unseen_frames import are_operators_seen

__all__ = ["NOTES_VARIABLE", "BatchValues", "count_of", "digest", "is_on", "read_values", "records_of"]

NOTES_VARIABLE = "HEADRACE_NOTES"

MOST_VALUES = 4096
MOST_IMAGES = 16
"""Compare this many images of a batch, each at `MOST_VALUES / MOST_IMAGES` places."""

LEAST_IMAGES = 4
"""Call images equal from this many on."""

LEAST_PIXELS = 8
"""Take a tensor for images from this height and width on."""

CHUNK = 32_768
"""Values of one operation where a whole tensor is read: PyTorch uses one thread for so many."""

DEEPEST, MOST_CHILDREN = 4, 32
LABEL_KEYS = ("label", "labels", "target", "targets", "y", "class", "classes")
"""Keys under which a batch that is a dict may hold its labels."""


class BatchValues:
    """What one look at a batch found. None: the batch has none of it on the CPU.

    labels: the integers beside the images, one for each. images: number of images; with it come format, low, high, not_finite
    (values that are not finite, of `looked`), is_zero, is_equal (None: too few images). digest: of its first tensor's values.
    """

    __slots__ = ("digest", "format", "high", "images", "is_equal", "is_zero", "labels", "looked", "low", "not_finite")

    def __init__(self) -> None:
        self.labels: tuple[int, ...] | None = None
        self.images: int | None = None
        self.format = ""
        self.low: float | None = None
        self.high: float | None = None
        self.not_finite = self.looked = 0
        self.is_zero = False
        self.is_equal: bool | None = None
        self.digest: str | None = None


def is_on() -> bool:
    """Return whether batches are to be looked into."""
    return os.environ.get(NOTES_VARIABLE, "1") != "0"


def digest(data: bytes) -> str:
    """Return a short digest of bytes, the same in every process."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def records_of(index: Any) -> tuple[str, str, int] | None:
    """Return digests of the records of a batch, in their order and in any order, and their number.

    index: what the sampler gave; None where that is no whole number, or list or array of them. Of a large batch the first 4,096
    count.
    """
    indices = index if isinstance(index, list | tuple) else _listed(index)
    if not indices or not (isinstance(indices[0], int) or type(indices[0]).__module__ == "numpy"):
        return None
    try:
        numbers = array("q", indices[:MOST_VALUES])
    except (OverflowError, TypeError):
        return None
    return digest(numbers.tobytes()), digest(array("q", sorted(set(numbers))).tobytes()), len(indices)


def count_of(index: Any) -> int:
    """Return the number of records that a sampler gave at once: those of a list or array, else 1."""
    if isinstance(index, list | tuple):
        return len(index)
    shape = _array_shape(index)
    return int(shape[0]) if shape else 1


def _listed(index: Any) -> Sequence[Any]:
    import torch

    if len(_array_shape(index)) != 1:
        return (index,)
    with torch._C.DisableTorchFunction():
        return [] if are_operators_seen() else list(index.tolist())


def _array_shape(index: Any) -> tuple[int, ...]:
    """Return the shape of a NumPy array or a tensor, unseen by a mode of the script; () of anything else."""
    import torch

    if (type(index).__module__, type(index).__name__) != ("numpy", "ndarray") and type(index) is not torch.Tensor:
        return ()
    with torch._C.DisableTorchFunction():
        return tuple(index.shape)


def read_values(data: Any, *, whole: bool = False, only_labels: bool = False) -> BatchValues | None:
    """Return what a batch holds; None while a mode of the script would see the operations that read it.

    whole: confirm zeros and equal images at all values, not only at those looked at. only_labels: read nothing else.
    """
    import torch

    if are_operators_seen():
        return None
    with torch._C.DisableTorchFunction():
        return _read(data, torch, whole, only_labels)


def _read(data: Any, torch: Any, whole: bool, only_labels: bool) -> BatchValues:
    found = BatchValues()
    tensors = [tensor for tensor in _tensors(data, torch) if _is_readable(tensor, torch)]
    images = next((tensor for tensor in tensors if _is_image(tensor)), None)
    if images is not None:
        found.labels = _labels(data, images, torch)
    if images is not None and not only_labels:
        _read_images(images, found, torch, whole)
    if tensors and not only_labels:
        sample = _sample(tensors[0], torch).contiguous().view(torch.uint8)
        try:
            found.digest = digest(repr(tuple(tensors[0].shape)).encode() + sample.numpy().tobytes())
        except RuntimeError:  # PyTorch without NumPy
            found.digest = None
    return found


def _tensors(data: Any, torch: Any, depth: int = 0) -> Iterator[Any]:
    if type(data) is torch.Tensor or type(data).__module__.startswith("torchvision.tv_tensors"):
        yield data
    elif depth < DEEPEST and isinstance(data, dict | list | tuple):
        for child in _children(data)[:MOST_CHILDREN]:
            yield from _tensors(child, torch, depth + 1)


def _children(data: Any) -> Sequence[Any]:
    """Return what a dict, list or tuple holds. A class of the script may load or draw where its own methods are asked."""
    if isinstance(data, dict):
        return list(dict.values(data))
    return list(list.__iter__(data)) if isinstance(data, list) else list(tuple.__iter__(data))


def _is_readable(tensor: Any, torch: Any) -> bool:
    """Whether the tensor is a dense block of memory on the CPU, whose first dimension is the outermost."""
    if (
        not tensor.is_cpu
        or tensor.layout is not torch.strided
        or tensor.requires_grad
        or not tensor.dim()
        or not tensor.numel()
    ):
        return False
    if tensor.is_complex() or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return False
    if not tensor.is_contiguous() and not (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)):
        return False
    return bool(tensor.shape[0] == 1 or tensor.stride(0) == tensor.numel() // tensor.shape[0])


def _is_image(tensor: Any) -> bool:
    """Whether the tensor looks like a batch of images or of clips: height, width, and a dimension of 1, 3 or 4 colours."""
    shape = tuple(tensor.shape)
    if len(shape) not in (4, 5) or not (tensor.is_floating_point() or str(tensor.dtype) == "torch.uint8"):
        return False
    if min(shape[-2:]) >= LEAST_PIXELS and {1, 3, 4} & set(shape[1:-2]):
        return True
    return shape[-1] in (1, 3, 4) and min(shape[-3:-1]) >= LEAST_PIXELS


def _labels(data: Any, images: Any, torch: Any) -> tuple[int, ...] | None:
    """Return the labels of a batch: the element after the images, or one with a name of `LABEL_KEYS`."""
    if isinstance(data, dict):
        candidates: Sequence[Any] = [dict.__getitem__(data, key) for key in LABEL_KEYS if dict.__contains__(data, key)][:1]
    else:
        candidates = _children(data)[1:2] if isinstance(data, list | tuple) else ()
    for tensor in candidates:
        if type(tensor) is not torch.Tensor or not tensor.is_cpu or tensor.dim() != 1 or tensor.dtype is torch.bool:
            continue
        if tensor.is_floating_point() or tensor.is_complex() or tensor.shape[0] != images.shape[0]:
            continue
        return tuple(tensor[:MOST_VALUES].tolist())
    return None


def _sample(tensor: Any, torch: Any, most_rows: int = MOST_VALUES) -> Any:
    """Return a view of some values: `rows` entries of the first dimension, each at the same places, spread over it."""
    rows = min(tensor.shape[0], most_rows)
    each = tensor.numel() // tensor.shape[0]
    places = max(1, min(each, MOST_VALUES // rows))
    step = max(1, each // places)
    while step > 1 and math.gcd(step, each) > 1:  # else all places might be in one column of the image
        step -= 1
    return torch.as_strided(tensor, (rows, places), (each, step), tensor.storage_offset())


def _read_images(images: Any, found: BatchValues, torch: Any, whole: bool) -> None:
    sample = _sample(images, torch, MOST_IMAGES)
    numbers = sample.float() if images.is_floating_point() and images.element_size() < 4 else sample
    low, high = (float(value) for value in torch.aminmax(numbers))
    found.images, found.format = int(images.shape[0]), str(images.dtype).removeprefix("torch.")
    found.looked = sample.numel()
    if not (math.isfinite(low) and math.isfinite(high)):
        found.not_finite = int((~torch.isfinite(numbers)).sum())
        return
    found.low, found.high = low, high
    found.is_zero = low == high == 0.0 and (not whole or _is_all_zero(images, torch))
    if images.shape[0] >= LEAST_IMAGES:
        found.is_equal = found.is_zero or (bool((sample == sample[0]).all()) and (not whole or _are_rows_equal(images, torch)))


def _is_all_zero(images: Any, torch: Any) -> bool:
    flat = torch.as_strided(images, (images.numel(),), (1,), images.storage_offset())
    return not any(bool(flat[start : start + CHUNK].any()) for start in range(0, images.numel(), CHUNK))


def _are_rows_equal(images: Any, torch: Any) -> bool:
    count, each = min(images.shape[0], MOST_IMAGES), images.numel() // images.shape[0]
    rows = torch.as_strided(images, (count, each), (each, 1), images.storage_offset())
    parts = (rows[:, start : start + CHUNK // count] for start in range(0, each, CHUNK // count))
    return all(bool((part == part[0]).all()) for part in parts)
