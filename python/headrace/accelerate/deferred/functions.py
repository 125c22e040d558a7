"""Replace functions of torchvision while a batch is made, so that they return deferred tensors for lazy images.

Inside `deferred_tensors()` headrace replaces some functions of torchvision, and the function of torch's `default_collate` for
tensors. They do what the originals do, unless the image is lazy, or a tensor is deferred. Scripts that imported a function from
its module beforehand (`from torchvision.transforms.functional import to_tensor`) call the original, which decodes the image.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace, TracebackType
from typing import Any

import torch
from PIL import Image
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from headrace.accelerate.deferred import filling as deferred_filling
from headrace.accelerate.deferred.batch import reduced_by_torch
from headrace.accelerate.deferred.tensor import (
    DeferredTensor,
    DescribedImage,
    State,
    contiguous_strides,
    continued,
    depth,
    is_deferred,
    joined,
    keeps_strides,
    plain_class,
    real,
)
from headrace.accelerate.deferred.values import unchanged, unit_floats
from headrace.accelerate.lazy.image_description import ImageDescription, plain_source, whole_image
from headrace.accelerate.lazy.pillow import description_of
from headrace.accelerate.script.replaced_functions import is_own_function

__all__ = ["deferred_tensors"]

_FUNCTIONAL = "torchvision.transforms.functional"
_V2_FUNCTIONAL = "torchvision.transforms.v2.functional"
_TV_TENSORS = "torchvision.tv_tensors"

_lock = threading.Lock()
_blocks = 0
_replaced: list[tuple[Any, str, Any, Any]] = []
_kernels: list[tuple[dict[Any, Any], type]] = []


FEWEST_PIXELS = 4096
"""Convert ordinary images of fewer pixels at once: deferring them would take as long."""


def _description(image: Any) -> ImageDescription | None:
    """Return the description of a lazy image, or of an ordinary RGB image, whose pixels are copied. None for all else.

    The pixels of an ordinary image, which a policy or a colour transform has made, cross the queue as uint8. Other threads than
    the one that makes the batch get tensors of torch's own class.
    """
    if not depth.value:
        return None
    description = description_of(image)
    if description is not None or type(image) is not Image.Image or image.mode != "RGB":
        return description
    width, height = image.size
    return whole_image(plain_source(image), width, height) if width * height >= FEWEST_PIXELS else None


def _to_tensor(original: Any, pic: Any) -> Any:
    """Return the result of torchvision's `to_tensor`, deferred if the image is lazy or ordinary."""
    description = _description(pic)
    if description is None:
        return original(pic)
    shape = (3, description.height, description.width)
    values = unit_floats(torch.get_default_dtype())
    parts = (DescribedImage(description, values),)
    return DeferredTensor(State(parts, shape, contiguous_strides(shape), values.dtype, deferred_filling.compute))


def _pil_to_tensor(original: Any, pic: Any) -> Any:
    """Return the result of torchvision's `pil_to_tensor`, whose memory is that of the pixels, deferred as in `_to_tensor`."""
    description = _description(pic)
    return original(pic) if description is None else DeferredTensor(_state_of_pixels(description))


def _state_of_pixels(description: Any) -> State:
    height, width = description.height, description.width
    parts = (DescribedImage(description, unchanged()),)
    return State(parts, (3, height, width), (1, 3 * width, 3), torch.uint8, deferred_filling.compute)


def _to_image(original: Any, inpt: Any) -> Any:
    """Return the result of torchvision's `to_image`, deferred as in `_to_tensor`."""
    kind = _deferred_image()
    if kind is None or type(inpt) is DeferredTensor:
        return kind(inpt.__dict__["_state"]) if kind is not None and is_deferred(inpt) else original(real(inpt))
    description = _description(inpt)
    return original(inpt) if description is None else kind(_state_of_pixels(description))


def _normalize(original: Any, tensor: Any, mean: Any, std: Any, inplace: bool = False) -> Any:
    """Return the result of torchvision's `normalize`. A deferred tensor stays one."""
    state = tensor.__dict__["_state"] if is_deferred(tensor) else None
    # Equal texts must mean equal numbers, which those of tensors in a list do not.
    known = all(type(one) in (list, tuple) and set(map(type, one)) <= {float, int} for one in (mean, std))
    if state is not None and known and keeps_strides(state.shape, state.strides):
        key = (original, repr(mean), repr(std))
        found = continued(tensor, lambda values: values.result(key, lambda table: original(table, mean, std, False)), inplace)
        if found is not NotImplemented:
            return found
    return original(tensor, mean, std, inplace)


def _first_normalize(original: Any, tensor: Any, mean: Any, std: Any, inplace: bool = False) -> Any:
    """Return the result of `normalize` of torchvision's first transforms, which is a plain tensor for an `Image`, too."""
    if inplace and type(tensor) is not DeferredTensor:
        return original(tensor, mean, std, inplace)
    found = _normalize(original, tensor, mean, std, inplace)
    return found.as_subclass(torch.Tensor) if found is not tensor and is_deferred(found) else found


def _to_dtype(original: Any, image: Any, dtype: torch.dtype = torch.float, scale: bool = False) -> Any:
    """Return the result of torchvision's kernel `to_dtype`. A deferred tensor stays one."""
    state = image.__dict__["_state"] if is_deferred(image) else None
    if state is not None and keeps_strides(state.shape, state.strides):
        key = (original, dtype, scale)
        found = continued(
            image, lambda values: values.result(key, lambda table: original(table, dtype=dtype, scale=scale)), conversion=True
        )
        if found is not NotImplemented:
            return found
    return original(image, dtype=dtype, scale=scale)


def _wrap(original: Any, wrappee: Any, *, like: Any, **options: Any) -> Any:
    """Return the result of torchvision's `wrap`, which gives a tensor the class of another: the plain one."""
    if not issubclass(type(like), DeferredTensor):
        return original(wrappee, like=like, **options)
    if is_deferred(wrappee):
        return type(like)(wrappee.__dict__["_state"])
    return real(wrappee).as_subclass(type(like)._plain)


def _get_fill(original: Any, fill: Any, kind: Any) -> Any:
    """Return the colour that a transform has for images of a class."""
    return original(fill, plain_class(kind))


def _transform_dtype(original: Any, transform: Any, image: Any, params: Any) -> Any:
    """Convert an image as torchvision's `ToDtype` does, whose dict of types may have the class of the image as a key."""
    known = transform.dtype
    if type(known) is not dict or not issubclass(type(image), DeferredTensor):
        return original(transform, image, params)
    dtypes = {type(image): known[type(image)._plain]} if type(image)._plain in known else known
    stand_in = SimpleNamespace(dtype=dtypes, scale=transform.scale, _call_kernel=transform._call_kernel)
    return original(stand_in, image, params)


@functools.cache
def _image_class() -> type[DeferredTensor]:
    """Return the class of deferred tensors that are torchvision's `Image`."""
    plain: Any = importlib.import_module(_TV_TENSORS).Image
    kind: type[DeferredTensor] = type("Image", (DeferredTensor, plain), {"_plain": plain, "__module__": plain.__module__})
    ForkingPickler.register(kind, reduced_by_torch)
    return kind


def _deferred_image() -> type[DeferredTensor] | None:
    """Return the class, or None if operations on `Image` are to return `Image` (`set_return_type`)."""
    helpers = sys.modules.get(f"{_TV_TENSORS}._torch_function_helpers")
    return None if getattr(helpers, "_TORCHFUNCTION_SUBCLASS", True) else _image_class()


def _collate(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Collate tensors as torch does, which calls a `torch.stack` of the script."""
    if any(issubclass(type(tensor), DeferredTensor) for tensor in batch):
        is_own = is_own_function(torch.stack)
        found = (
            NotImplemented
            if not is_own
            else joined(batch, torch.stack, contiguous=torch.utils.data.get_worker_info() is not None)
        )
        if found is not NotImplemented:
            return found if torch.utils.data.get_worker_info() is not None else real(found)
        batch = [real(tensor) for tensor in batch]
    return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)


class deferred_tensors:
    """Context manager: torchvision's `to_tensor` and its like return deferred tensors for lazy images. May be nested.

    with lazy_images(), deferred_tensors():
        image, label = dataset[3]
    """

    def __enter__(self) -> None:
        global _blocks
        with _lock:
            if _blocks == 0:
                _replace_functions()
            _blocks += 1
        depth.value += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        global _blocks
        depth.value -= 1
        with _lock:
            _blocks -= 1
            if _blocks == 0:
                _restore_functions()


_FUNCTIONS = (
    (_FUNCTIONAL, "to_tensor", _to_tensor),
    (_FUNCTIONAL, "pil_to_tensor", _pil_to_tensor),
    (_FUNCTIONAL, "normalize", _first_normalize),
    (_V2_FUNCTIONAL, "pil_to_tensor", _pil_to_tensor),
    (_V2_FUNCTIONAL, "to_image", _to_image),
    (_TV_TENSORS, "wrap", _wrap),
    ("torchvision.transforms.v2._geometry", "_get_fill", _get_fill),
    ("torchvision.transforms.v2._auto_augment", "_get_fill", _get_fill),
)


def _replace_functions() -> None:
    for module_name, name, ours in _FUNCTIONS:
        module = sys.modules.get(module_name)
        original = getattr(module, name, None)
        if original is not None and is_own_function(original):
            function = functools.wraps(original)(functools.partial(ours, original))
            _replaced.append((module, name, original, function))
            setattr(module, name, function)
    if default_collate_fn_map.get(torch.Tensor) is collate_tensor_fn:
        # With an entry of their own, deferred tensors take torch's first way, as plain ones: an error names the same lines.
        default_collate_fn_map[torch.Tensor] = default_collate_fn_map[DeferredTensor] = _collate
    if _V2_FUNCTIONAL in sys.modules:
        _add_kernels()
        _replace_to_dtype()


def _add_kernels() -> None:
    """Add kernels for deferred tensors to torchvision's registry, which finds a function by the class of the image."""
    functional = sys.modules[_V2_FUNCTIONAL]
    registry = getattr(sys.modules.get(f"{_V2_FUNCTIONAL}._utils"), "_KERNEL_REGISTRY", {})
    for name, ours in (("to_dtype", _to_dtype), ("normalize", _normalize)):
        kernels = registry.get(getattr(functional, name, None), {})
        for kind in (DeferredTensor, _image_class()):
            original = kernels.get(torch.Tensor)
            if original is not None and kind not in kernels:
                kernels[kind] = functools.partial(_by_kernel, ours, original, kernels.get(kind._plain, original))
                _kernels.append((kernels, kind))


def _replace_to_dtype() -> None:
    kind: Any = getattr(sys.modules.get("torchvision.transforms.v2"), "ToDtype", None)
    original = vars(kind).get("transform") if kind is not None else None
    if original is not None and is_own_function(original):

        @functools.wraps(original)
        def transform(self: Any, inpt: Any, params: Any) -> Any:
            return _transform_dtype(original, self, inpt, params)

        _replaced.append((kind, "transform", original, transform))
        kind.transform = transform


def _by_kernel(ours: Any, original: Any, plain: Any, image: Any, *arguments: Any, **options: Any) -> Any:
    """Call torchvision's operation on a deferred image: by the replacement, or by the kernel for plain tensors."""
    return ours(original, image, *arguments, **options) if is_deferred(image) else plain(real(image), *arguments, **options)


def _restore_functions() -> None:
    while _replaced:
        module, name, original, ours = _replaced.pop()
        if getattr(module, name) is ours:  # the script has not replaced it meanwhile
            setattr(module, name, original)
    while _kernels:
        kernels, kind = _kernels.pop()
        kernels.pop(kind, None)
    default_collate_fn_map.pop(DeferredTensor, None)
    if default_collate_fn_map.get(torch.Tensor) is _collate:
        default_collate_fn_map[torch.Tensor] = collate_tensor_fn
