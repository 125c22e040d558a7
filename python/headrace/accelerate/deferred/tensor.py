"""Deferred tensors: tensors of images whose values are computed when they are first used.

A deferred tensor holds a list of images [3, height, width]. Each is a tensor, or undecoded: the description of a lazy image
(`image_description`), and a table with the results of the script's pointwise operations (`deferred.values`). Shape, dtype and
strides are those of the tensor that the script would have. Pointwise operations, flips, `torch.stack` and `torch.cat` give
deferred tensors, in the thread that makes the batch and until it is made. Any other operation, from Python or from C++,
computes the exact values once; from then on the object passes every operation on to the computed tensor. A tensor that the
script keeps for later epochs is computed once, too.

The class is a subclass of `torch.Tensor` (in `deferred.functions` one of torchvision's `Image`); `__class__` and
pickles name the plain class.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils._pytree import tree_map

from headrace.accelerate.deferred.values import Values
from headrace.accelerate.lazy.image_description import ImageDescription, current_batch

__all__ = [
    "DeferredTensor",
    "DescribedImage",
    "Part",
    "State",
    "contiguous_strides",
    "continued",
    "depth",
    "described_state",
    "is_deferred",
    "joined",
    "keeps_strides",
    "plain_class",
    "real",
]

Fill = Callable[[Sequence["Part"], torch.Tensor], None]


class _Depth(threading.local):
    """How many `deferred_tensors()` blocks the current thread is in."""

    value = 0


depth = _Depth()


class DescribedImage(NamedTuple):
    """An undecoded image [3, height, width] of a deferred tensor: its description, and a value table for its pixels."""

    description: ImageDescription
    values: Values


Part: TypeAlias = DescribedImage | torch.Tensor
"""One image [3, height, width] of a deferred tensor: the description of an undecoded image, or the decoded tensor."""


class State:
    """The images, shape, strides and dtype of a deferred tensor, later its computed tensor. Tensors that share memory share it.

    `parts`: the images in order, until they are computed. `strides`: in elements. `fill`: function that computes the images
    into a tensor. `tensor`: the computed tensor, or None. `is_inference`: the tensor was made in inference mode. `batch`: the
    number of the batch in which it was made.
    """

    __slots__ = ("batch", "dtype", "fill", "is_inference", "parts", "shape", "strides", "tensor")

    def __init__(
        self, parts: tuple[Part, ...], shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, fill: Fill
    ) -> None:
        self.parts = parts
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.fill = fill
        self.is_inference = torch.is_inference_mode_enabled()
        self.batch = current_batch()
        self.tensor: torch.Tensor | None = None

    def computed(self) -> torch.Tensor:
        """Return the tensor of values, computed at the first call. Threads that call at the same time get the same tensor."""
        parts = self.parts  # before the tensor is looked at: they go once it is there
        if self.tensor is None:
            with torch.inference_mode(self.is_inference):
                tensor = torch.empty_strided(self.shape, self.strides, dtype=self.dtype)
                self.fill(parts, tensor)
            if self.tensor is None:
                self.tensor, self.parts = tensor, ()
        return self.tensor


class DeferredTensor(torch.Tensor):
    """A `torch.Tensor` subclass [..., 3, height, width] whose values are computed when something reads them."""

    _plain: type = torch.Tensor
    _state: State

    @staticmethod
    def __new__(cls, state: State) -> DeferredTensor:
        """Return a deferred tensor with this state."""
        made: DeferredTensor = _make(cls, state.shape, strides=state.strides, dtype=state.dtype)
        made.__dict__["_state"] = state
        return made

    def __init__(self, *arguments: Any) -> None:
        """Do nothing: `__new__` has made the tensor."""

    __class__ = property(lambda self: type(self)._plain)

    __hash__ = object.__hash__

    def as_subclass(self, cls: Any) -> Any:
        """Return a tensor of class `cls` over the same memory. (Torch does not send this call to `__torch_function__`.)"""
        kind = DeferredTensor if cls is torch.Tensor else cls
        if is_deferred(self) and issubclass(kind, DeferredTensor):
            return kind(self._state)
        return real(self).as_subclass(plain_class(kind))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Handle an operation called from Python: without values where possible, else on the computed tensor."""
        own = inspect.unwrap(func, stop=_HANDLERS.__contains__)  # the hooks of `headrace diagnose` wrap methods of a tensor
        handler = _HANDLERS.get(own)
        if handler is not None and (depth.value or handler is _from_metadata):
            found = handler(own, args, kwargs or {})
            if found is not NotImplemented:
                return found
        return func(*tree_map(real, args), **tree_map(real, kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Handle an operation called from C++ on the computed tensor."""
        return func(*tree_map(real, args), **tree_map(real, kwargs or {}))


DeferredTensor.__name__, DeferredTensor.__qualname__, DeferredTensor.__module__ = "Tensor", "Tensor", "torch"  # in errors

_make: Any = torch.Tensor._make_wrapper_subclass
_subclass_off = torch._C.DisableTorchFunctionSubclass


def is_deferred(value: Any) -> bool:
    """Return whether a value is a deferred tensor of this batch that has not been computed.

    One of an earlier batch, which the script keeps, is to be computed: its next use need not decode it then.
    """
    if not issubclass(type(value), DeferredTensor):
        return False
    state: State = value.__dict__["_state"]
    return state.tensor is None and state.batch == current_batch()


def described_state(value: Any) -> State | None:
    """Return the state of a deferred tensor that torch shows as a plain `Tensor`, as `is_deferred` says; else None."""
    return value.__dict__["_state"] if type(value) is DeferredTensor and is_deferred(value) else None


def plain_class(kind: Any) -> Any:
    """Return the class that the script sees in place of a class of deferred tensors; any other class unchanged."""
    return kind._plain if issubclass(kind, DeferredTensor) else kind


def real(value: Any) -> Any:
    """Return the computed tensor of a deferred tensor, with the attributes that the script has set; any other value unchanged.

    It is the same object each time, so that its shape may be changed in place.
    """
    kind = type(value)
    if not issubclass(kind, DeferredTensor):
        return value
    fields = value.__dict__
    tensor: Any = fields.get("_real")
    if tensor is None:
        tensor = fields["_state"].computed()
        if kind is not DeferredTensor:
            tensor = fields["_real"] = tensor.as_subclass(kind._plain)
    if len(fields) > 1:
        tensor.__dict__.update((name, one) for name, one in fields.items() if name not in ("_state", "_real"))
    return tensor


@functools.lru_cache(4096)
def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous tensor of a shape."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


@functools.lru_cache(4096)
def keeps_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether a pointwise operation keeps these strides: dense memory with an unambiguous order of axes."""
    reach = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    return strides == contiguous_strides(shape) or (min(shape) > 1 and math.prod(shape) == 1 + reach)


def _from_metadata(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of an operation that needs only shape, strides and dtype; `NotImplemented` for other arguments."""
    if not is_deferred(args[0]) or len(args) + len(kwargs) > 2:
        return NotImplemented
    with _subclass_off():
        return func(*args, **kwargs)


def _pointwise(func: Any, args: Any, kwargs: Any) -> Any:
    """Apply a pointwise operation to the value table."""
    at = 0
    state = described_state(args[0]) if args else None
    if state is None and len(args) > 1:
        at, state = 1, described_state(args[1])
    if kwargs or state is None or not keeps_strides(state.shape, state.strides):
        return NotImplemented
    if getattr(func, "__name__", "") == "to" and any(type(one) is bool for one in args):  # `copy` may be one of them
        return NotImplemented
    dimensions = len(state.shape)
    if any(number != at and isinstance(one, torch.Tensor) and one.ndim > dimensions for number, one in enumerate(args)):
        return NotImplemented
    return continued(args[at], lambda values: values.after(func, args, at), func in _IN_PLACE, func in _CONVERSIONS)


def continued(value: Any, after: Callable[[Values], Values | None], in_place: bool = False, conversion: bool = False) -> Any:
    """Return a deferred tensor after a pointwise operation; `after` returns its new value table, or None if there is none.

    `in_place`: change the tensor itself. `conversion`: return the tensor itself if it has the dtype already. Return
    `NotImplemented` if the operation has no value table.
    """
    state: State = value.__dict__["_state"]
    known: dict[Values, Values] = {}
    parts: list[Part] = []
    for part in state.parts:
        if type(part) is not DescribedImage:
            return NotImplemented
        values = known.get(part.values)
        if values is None:
            found = after(part.values)
            if found is None:
                return NotImplemented
            values = known[part.values] = found
        parts.append(DescribedImage(part.description, values))
    types = {values.dtype for values in known.values()}
    if len(types) != 1 or (in_place and types != {state.dtype}):
        return NotImplemented
    if in_place:
        state.parts = tuple(parts)
        return value
    if conversion and types == {state.dtype}:
        return value
    return type(value)(State(tuple(parts), state.shape, state.strides, types.pop(), state.fill))


def _cloned(func: Any, args: Any, kwargs: Any) -> Any:
    state = described_state(args[0])
    if len(args) != 1 or kwargs or state is None or not keeps_strides(state.shape, state.strides):
        return NotImplemented
    return DeferredTensor(State(state.parts, state.shape, state.strides, state.dtype, state.fill))


def _contiguous(func: Any, args: Any, kwargs: Any) -> Any:
    state = described_state(args[0])
    if len(args) != 1 or kwargs or state is None:
        return NotImplemented
    return args[0] if state.strides == contiguous_strides(state.shape) else NotImplemented


def _flipped(func: Any, args: Any, kwargs: Any) -> Any:
    """Flip the images left to right, or top to bottom."""
    state = described_state(args[0])
    axes = args[1] if len(args) == 2 and type(args[1]) in (list, tuple) else args[1:]
    if state is None or kwargs or len(axes) != 1 or type(axes[0]) is not int or not keeps_strides(state.shape, state.strides):
        return NotImplemented
    axis = axes[0] if axes[0] < 0 else axes[0] - len(state.shape)
    if axis not in (-1, -2) or not all(type(part) is DescribedImage for part in state.parts):
        return NotImplemented
    flips = {"left_right": axis == -1, "top_bottom": axis == -2}
    parts = (DescribedImage(part.description.flipped(**flips), part.values) for part in state.parts)
    return DeferredTensor(State(tuple(parts), state.shape, state.strides, state.dtype, state.fill))


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
    """Return tensors and axis of a call of `stack` or `cat`. No tensors: the call has other arguments."""
    if not args or len(args) + len(kwargs) > 2 or not set(kwargs) <= {"dim"} or type(args[0]) not in (list, tuple):
        return (), 0
    return args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0)


def joined(tensors: Sequence[Any], function: Any, *, contiguous: bool = False) -> Any:
    """Return `torch.stack(tensors)` or `torch.cat(tensors)`, given as `function`, as a deferred tensor.

    `contiguous`: accept any strides, and return a contiguous tensor. `NotImplemented` if no tensor is deferred, or if the
    shapes or dtypes do not fit.
    """
    first: State | None = next((tensor.__dict__["_state"] for tensor in tensors if is_deferred(tensor)), None)
    if first is None:
        return NotImplemented
    shape, dtype = first.shape, first.dtype
    seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    parts: list[Part] = []
    for tensor in tensors:
        if is_deferred(tensor):
            state: State = tensor.__dict__["_state"]
            parts += state.parts
            own_shape, strides, own_dtype = state.shape, state.strides, state.dtype
        else:
            tensor = real(tensor)
            if not _is_plain(tensor):
                return NotImplemented
            own_shape, strides, own_dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype
            # A copy, as `stack` makes one: the script may change its tensor afterwards.
            copied = tensor.as_subclass(torch.Tensor).clone(memory_format=torch.contiguous_format)
            parts += copied.reshape(-1, *own_shape[-3:]).unbind() if len(own_shape) >= 3 else ()
        if own_dtype != dtype or (own_shape != shape if function is torch.stack else own_shape[1:] != shape[1:]):
            return NotImplemented
        seen.append((own_shape, strides))
    whole = (len(tensors), *shape) if function is torch.stack else (sum(one[0][0] for one in seen), *shape[1:])
    strides = contiguous_strides(whole) if contiguous else _joined_strides(function, tuple(seen), whole)
    return DeferredTensor(State(tuple(parts), whole, strides, dtype, first.fill))


def _is_plain(tensor: Any) -> bool:
    """Return whether a tensor can be an image of a deferred tensor: of a plain class, on the CPU, without a gradient."""
    known = {torch.Tensor, *(kind._plain for kind in DeferredTensor.__subclasses__())}
    return type(tensor) in known and tensor.device.type == "cpu" and not tensor.requires_grad and not tensor.is_sparse


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
    """Return the operations that need no values, each with its handler."""
    found: dict[Any, Callable[[Any, Any, Any], Any]] = {}
    for name in _METADATA.split():
        use = getattr(torch.Tensor, name, None)
        if use is not None:
            found[use if callable(use) else use.__get__] = _from_metadata
    for space, names in ((torch.Tensor, _POINTWISE), (torch, _POINTWISE_FUNCTIONS)):
        found |= {getattr(space, name): _pointwise for name in names.split() if hasattr(space, name)}
    found |= {torch.is_floating_point: _from_metadata, torch.Tensor.clone: _cloned, torch.clone: _cloned}
    found |= {torch.Tensor.contiguous: _contiguous, torch.stack: _stack, torch.cat: _cat, torch.concat: _cat}
    found |= {torch.Tensor.flip: _flipped, torch.flip: _flipped}
    return found


_HANDLERS = _handlers()
