"""The time in which torchvision makes deferred tensors of lazy images: while a batch is made.

Inside `deferred_tensors()` three functions of torchvision and the function of torch's `default_collate` for tensors are ours.
They do what the originals do, unless the image is lazy, or a tensor of the batch is deferred.
"""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any

import torch
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from headrace.accelerate import deferred_filling
from headrace.accelerate.deferred_tensor import DeferredTensor, DescribedImage, contiguous_strides, joined, real
from headrace.accelerate.deferred_values import unchanged, unit_floats
from headrace.accelerate.lazy_pillow import description_of

__all__ = ["deferred_tensors"]

_FUNCTIONAL = "torchvision.transforms.functional"
_V2_FUNCTIONAL = "torchvision.transforms.v2.functional"

_lock = threading.Lock()
_blocks = 0
_replaced: list[tuple[Any, str, Any, Any]] = []


def _to_tensor(image: Any) -> Any:
    """The deferred result of torchvision's `to_tensor`. None if the image is not lazy."""
    description = description_of(image)
    if description is None:
        return None
    shape = (3, description.height, description.width)
    values = unit_floats(torch.get_default_dtype())
    parts = (DescribedImage(description, values),)
    return DeferredTensor(parts, shape, contiguous_strides(shape), values.dtype, deferred_filling.compute)


def _pil_to_tensor(image: Any) -> Any:
    """The deferred result of torchvision's `pil_to_tensor`, with its strides. None if the image is not lazy."""
    description = description_of(image)
    if description is None:
        return None
    height, width = description.height, description.width
    parts = (DescribedImage(description, unchanged()),)
    return DeferredTensor(parts, (3, height, width), (1, 3 * width, 3), torch.uint8, deferred_filling.compute)


def _deferring(original: Any, deferred: Any) -> Any:
    def function(pic: Any) -> Any:
        found = deferred(pic)
        return original(pic) if found is None else found

    function.__name__, function.__doc__ = original.__name__, original.__doc__
    return function


def _collate(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Collate tensors as torch does."""
    if any(type(tensor) is DeferredTensor for tensor in batch):
        found = joined(batch, torch.stack, contiguous=torch.utils.data.get_worker_info() is not None)
        if found is not NotImplemented:
            return found
        batch = [real(tensor) for tensor in batch]
    return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)


class deferred_tensors:
    """While the block runs, torchvision makes deferred tensors of lazy images. Blocks of several threads do no harm.

    with lazy_images(), deferred_tensors():
        image, label = dataset[3]
    """

    def __enter__(self) -> None:
        global _blocks
        with _lock:
            if _blocks == 0:
                _replace_functions()
            _blocks += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        global _blocks
        with _lock:
            _blocks -= 1
            if _blocks == 0:
                _restore_functions()


def _replace_functions() -> None:
    for module_name, name, deferred in (
        (_FUNCTIONAL, "to_tensor", _to_tensor),
        (_FUNCTIONAL, "pil_to_tensor", _pil_to_tensor),
        (_V2_FUNCTIONAL, "pil_to_tensor", _pil_to_tensor),
    ):
        module = sys.modules.get(module_name)
        original = getattr(module, name, None)
        if original is not None and original.__module__ == _FUNCTIONAL:  # not the script's own
            ours = _deferring(original, deferred)
            _replaced.append((module, name, original, ours))
            setattr(module, name, ours)
    if default_collate_fn_map.get(torch.Tensor) is collate_tensor_fn:
        default_collate_fn_map[torch.Tensor] = _collate


def _restore_functions() -> None:
    while _replaced:
        module, name, original, ours = _replaced.pop()
        if getattr(module, name) is ours:  # the script has not replaced it meanwhile
            setattr(module, name, original)
    if default_collate_fn_map.get(torch.Tensor) is _collate:
        default_collate_fn_map[torch.Tensor] = collate_tensor_fn
