"""Deferred tensors: tensors whose values are described, not computed, until something looks at them.

A deferred tensor holds images in order, each a block [3, height, width]: the description of a lazy image
(`image_description`) and what the script's pointwise operations make of its pixels (`deferred_values`), or a tensor. Shape,
type and strides are those of the tensor that the script would have. Pointwise operations, `torch.stack` and `torch.cat` go on
with the description. All else, from Python or from C++, gets the exact values: they are computed once, and from then on the
object passes every use on to them.

Its class is a subclass of `torch.Tensor`; `__class__` and pickles say `torch.Tensor`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils._pytree import tree_map

from headrace.accelerate.deferred_values import Values
from headrace.accelerate.image_description import ImageDescription

__all__ = ["DeferredTensor", "DescribedImage", "Part", "is_deferred", "real"]

Fill = Callable[[Sequence["Part"], torch.Tensor], None]


class DescribedImage(NamedTuple):
    """A block [3, height, width] of a deferred tensor: pixels, and the values that stand for them."""

    description: ImageDescription
    values: Values


Part: TypeAlias = DescribedImage | torch.Tensor
"""A block [3, height, width] of a deferred tensor."""


class DeferredTensor(torch.Tensor):
    """A tensor [..., 3, height, width] that is not computed yet. See the module.

    `parts`: its blocks, in order. `fill`: what computes them into a tensor.
    """

    _parts: tuple[Part, ...] | None
    _tensor: torch.Tensor | None
    _fill: Fill

    @staticmethod
    def __new__(
        cls, parts: tuple[Part, ...], shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, fill: Fill
    ) -> DeferredTensor:
        """Return the tensor of a shape, type and strides (in values)."""
        made: DeferredTensor = torch.Tensor._make_wrapper_subclass(cls, shape, strides=strides, dtype=dtype)
        fields = made.__dict__
        fields["_parts"], fields["_tensor"], fields["_fill"] = parts, None, fill
        return made

    def __init__(self, *arguments: Any) -> None:
        """Do nothing: `__new__` has made the tensor."""

    __class__ = property(lambda self: torch.Tensor)

    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer a use of the tensor from Python."""
        handler = _HANDLERS.get(func)
        if handler is not None:
            found = handler(func, args, kwargs or {})
            if found is not NotImplemented:
                return found
        return func(*tree_map(real, args), **tree_map(real, kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer a use of the tensor from C++."""
        return func(*tree_map(real, args), **tree_map(real, kwargs or {}))


_subclass_off = torch._C.DisableTorchFunctionSubclass


def is_deferred(value: Any) -> bool:
    """Whether a value is a tensor that is not computed yet."""
    return type(value) is DeferredTensor and value.__dict__["_tensor"] is None


def real(value: Any) -> Any:
    """Return the computed tensor that a deferred tensor stands for; any other value as it is."""
    if type(value) is not DeferredTensor:
        return value
    fields = value.__dict__
    if fields["_tensor"] is None:
        shape, strides, dtype = geometry(value)
        parts, fill = fields["_parts"], fields["_fill"]
        tensor = torch.empty_strided(shape, strides, dtype=dtype)
        fill(parts, tensor)
        fields["_tensor"], fields["_parts"] = tensor, None
    return fields["_tensor"]


def geometry(value: DeferredTensor) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    """Return shape, strides and type of a deferred tensor."""
    with _subclass_off():
        return tuple(value.shape), value.stride(), value.dtype


def parts_of(value: DeferredTensor) -> tuple[Part, ...]:
    """Return the blocks of a tensor that is not computed yet."""
    parts: tuple[Part, ...] = value.__dict__["_parts"]
    return parts


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in values, of a contiguous tensor of a shape."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def _continued(value: DeferredTensor, parts: tuple[Part, ...], dtype: torch.dtype) -> DeferredTensor:
    shape, strides, _ = geometry(value)
    return DeferredTensor(parts, shape, strides, dtype, value.__dict__["_fill"])


def _from_metadata(func: Any, args: Any, kwargs: Any) -> Any:
    """Answer what shape, strides and type tell."""
    if not is_deferred(args[0]) or len(args) + len(kwargs) > 2:
        return NotImplemented
    with _subclass_off():
        return func(*args, **kwargs)


def _pointwise(func: Any, args: Any, kwargs: Any) -> Any:
    """Apply a pointwise operation to the values."""
    at = next((number for number, value in enumerate(args) if is_deferred(value)), None)
    if kwargs or at is None:
        return NotImplemented
    value = args[at]
    if any(isinstance(operand, torch.Tensor) and operand.ndim > value.ndim for operand in args):
        return NotImplemented
    parts = parts_of(value)
    if not _keeps_strides(value) or not all(type(part) is DescribedImage for part in parts):
        return NotImplemented
    found = _parts_after(func, args, at, parts)
    if found is None:
        return NotImplemented
    in_place = func in _IN_PLACE
    dtype = found[0].values.dtype
    if not in_place:
        return value if func in _CONVERSIONS and dtype == geometry(value)[2] else _continued(value, found, dtype)
    if at != 0 or dtype != geometry(value)[2]:
        return NotImplemented
    value.__dict__["_parts"] = found
    return value


def _parts_after(func: Any, args: Any, at: int, parts: Sequence[Any]) -> tuple[DescribedImage, ...] | None:
    """Return the parts after a pointwise operation. Parts with equal values keep equal values."""
    known: dict[int, Values | None] = {}
    for part in parts:
        if id(part.values) not in known:
            known[id(part.values)] = part.values.after(func, args, at)
    if None in known.values() or len({values.dtype for values in known.values() if values}) != 1:
        return None
    return tuple(DescribedImage(part.description, known[id(part.values)]) for part in parts)  # type: ignore[arg-type]


def _keeps_strides(value: DeferredTensor) -> bool:
    """Whether a pointwise operation gives a tensor of the same strides: the memory is dense, and its order is unambiguous."""
    shape, strides, _ = geometry(value)
    return strides == contiguous_strides(shape) or (min(shape) > 1 and math.prod(shape) == 1 + _reach(shape, strides))


def _reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    return sum((size - 1) * step for size, step in zip(shape, strides, strict=True))


def _cloned(func: Any, args: Any, kwargs: Any) -> Any:
    if len(args) != 1 or kwargs or not is_deferred(args[0]) or not _keeps_strides(args[0]):
        return NotImplemented
    return _continued(args[0], parts_of(args[0]), geometry(args[0])[2])


def _contiguous(func: Any, args: Any, kwargs: Any) -> Any:
    if len(args) != 1 or kwargs or not is_deferred(args[0]):
        return NotImplemented
    shape, strides, _ = geometry(args[0])
    return args[0] if strides == contiguous_strides(shape) else NotImplemented


def _stack(func: Any, args: Any, kwargs: Any) -> Any:
    """Stack images, in front of all axes."""
    tensors, dim = _arguments(args, kwargs)
    return NotImplemented if dim != 0 or not tensors else joined(tensors, torch.stack)


def _cat(func: Any, args: Any, kwargs: Any) -> Any:
    """Join batches of images along the first axis."""
    tensors, dim = _arguments(args, kwargs)
    if dim != 0 or not tensors or any(tensor.ndim < 4 for tensor in tensors):
        return NotImplemented
    return joined(tensors, torch.cat)


def _arguments(args: Any, kwargs: Any) -> tuple[Sequence[torch.Tensor], Any]:
    """Return tensors and axis of a call of `stack` or `cat`. No tensors: it has further arguments, or others."""
    if not args or len(args) + len(kwargs) > 2 or not set(kwargs) <= {"dim"} or type(args[0]) not in (list, tuple):
        return (), 0
    return args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0)


def joined(tensors: Sequence[Any], function: Any, *, contiguous: bool = False) -> Any:
    """Return the deferred `function(tensors)`, `torch.stack` or `torch.cat`. `contiguous`: whatever the strides of the tensors.

    `NotImplemented` if nothing of it is deferred, or if the tensors do not fit.
    """
    first = next((tensor for tensor in tensors if is_deferred(tensor)), None)
    if first is None:
        return NotImplemented
    shape, _, dtype = geometry(first)
    seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    parts: list[Part] = []
    for tensor in tensors:
        if is_deferred(tensor):
            own_shape, strides, own_dtype = geometry(tensor)
            parts += parts_of(tensor)
        else:
            tensor = real(tensor)
            if type(tensor) is not torch.Tensor or tensor.device.type != "cpu" or tensor.requires_grad:
                return NotImplemented
            own_shape, strides, own_dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype
            # A copy, as `stack` makes one: the script may change its tensor afterwards.
            parts += tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1, *own_shape[-3:]).unbind()
        if own_dtype != dtype or (own_shape != shape if function is torch.stack else own_shape[1:] != shape[1:]):
            return NotImplemented
        seen.append((own_shape, strides))
    whole = (len(tensors), *shape) if function is torch.stack else (sum(one[0][0] for one in seen), *shape[1:])
    strides = contiguous_strides(whole) if contiguous else _joined_strides(function, tuple(seen), whole)
    return DeferredTensor(tuple(parts), whole, strides, dtype, first.__dict__["_fill"])


@functools.lru_cache(256)
def _joined_strides(function: Any, seen: tuple[tuple[Any, Any], ...], whole: tuple[int, ...]) -> tuple[int, ...]:
    if all(strides == contiguous_strides(shape) for shape, strides in seen) and min(whole) > 1:
        return contiguous_strides(whole)
    found: tuple[int, ...] = function([torch.empty_strided(*one, device="meta") for one in seen]).stride()
    return found


_METADATA = (
    "shape dtype device layout ndim names itemsize nbytes grad requires_grad is_leaf is_nested is_sparse is_sparse_csr"
    " is_quantized is_cuda is_cpu is_mps is_meta is_mkldnn is_xpu grad_fn size dim ndimension numel nelement element_size"
    " stride is_floating_point is_complex is_contiguous storage_offset get_device __len__"
)
_POINTWISE = (
    "add add_ sub sub_ mul mul_ div div_ true_divide to float half bfloat16 double neg clamp clamp_ __add__ __radd__ __iadd__"
    " __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __truediv__ __rtruediv__ __itruediv__"
)
_IN_PLACE = frozenset(
    getattr(torch.Tensor, name)
    for name in _POINTWISE.split()
    if (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
)
_CONVERSIONS = frozenset(getattr(torch.Tensor, name) for name in ("to", "float", "half", "bfloat16", "double"))
_POINTWISE_FUNCTIONS = "add sub mul div true_divide clamp"


def _handlers() -> dict[Any, Callable[[Any, Any, Any], Any]]:
    """Return the uses of a tensor that do not compute it."""
    found: dict[Any, Callable[[Any, Any, Any], Any]] = {}
    for name in _METADATA.split():
        use = getattr(torch.Tensor, name, None)
        if use is not None:
            found[use if callable(use) else use.__get__] = _from_metadata
    for space, names in ((torch.Tensor, _POINTWISE), (torch, _POINTWISE_FUNCTIONS)):
        found |= {getattr(space, name): _pointwise for name in names.split() if hasattr(space, name)}
    found |= {torch.is_floating_point: _from_metadata, torch.Tensor.clone: _cloned, torch.clone: _cloned}
    found |= {torch.Tensor.contiguous: _contiguous, torch.stack: _stack, torch.cat: _cat, torch.concat: _cat}
    return found


_HANDLERS = _handlers()
