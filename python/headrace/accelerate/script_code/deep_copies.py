"""Deep copies of the script's objects, made without calling code of the script.

Objects are copied by exact type. Immutable ones are shared, and so are functions, classes and modules: `kept_state` copies the
variables that they name. `NotKept` is raised for anything else: an object with a state in C, such as a generator or a lock,
memory that processes share, and more data than `MOST_BYTES`, `MOST_CONTAINERS` and `MOST_VISITS` allow.
"""

from __future__ import annotations

import array
import bisect
import collections
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import pathlib
import pickle
import re
import sys
import types
from collections.abc import Callable, Iterable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from headrace.accelerate.script.library_code import is_of_library
from headrace.accelerate.script_code.hf_datasets import is_rows_dataset

__all__ = ["BatchCopies", "DeepCopies", "NotKept", "are_unchangeable", "is_unchangeable", "own_special_method"]

MOST_BYTES = 256 << 20
"""Deep-copy at most this many bytes of arrays, tensors and tables. `NotKept` is raised for more, to save memory."""

MOST_CONTAINERS = 500_000
"""Deep-copy at most this many lists and dicts inside one container: about 50 ms, 100 MB. `NotKept` is raised for more."""

MOST_GAPS = 4
"""Copy an array or tensor with its strides if they span at most this many times its bytes; else raise `NotKept`."""

MOST_VISITS = 100_000
"""A deep copy visits at most this many objects: about 100 ms. `NotKept` is raised for more. A list of numbers counts as one."""

#: Special methods that operators and conditions call. Objects of the script's classes that define one are not copied.
IMPLICIT = frozenset(
    {"__getattribute__", "__getattr__", "__iter__", "__next__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}
    | {"__bool__", "__hash__", "__contains__", "__missing__", "__enter__", "__exit__", "__index__", "__int__", "__float__"}
    | {
        f"__{side}{name}__"
        for side in ("", "r")
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
    }
    | {f"__{name}__" for name in ("and", "or", "xor", "neg", "pos", "invert", "lshift", "rshift", "array")}
)

_UNCHANGEABLE = (
    *(type(None), bool, int, float, complex, str, bytes, range, type(...), type(NotImplemented), re.Pattern),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
    *(decimal.Decimal, fractions.Fraction, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(pathlib.PosixPath, pathlib.PurePosixPath, pathlib.WindowsPath, pathlib.PureWindowsPath),
)
_known: dict[type, bool] = dict.fromkeys(_UNCHANGEABLE, True)

_CONTAINERS = (list, dict, set, collections.deque, collections.OrderedDict, collections.Counter, collections.defaultdict)
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)


class NotKept(Exception):
    """Raised for an object that cannot be copied. `what`: its kind. `place`: the name by which code reads it."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.place = ""

    def at(self, place: str) -> NotKept:
        """Return the error with this place, unless it names a place further inside already."""
        self.place = self.place or place
        return self


def is_unchangeable(kind: type) -> bool:
    """Return whether values of a type are immutable and hold nothing mutable."""
    known = _known.get(kind)
    if known is None:
        of_numpy = kind.__module__ == "numpy" and issubclass(kind, np.generic) and kind not in (np.void, np.object_)
        is_fixed = issubclass(kind, enum.Enum) and _has_fixed_values(kind)
        known = _known[kind] = of_numpy or issubclass(kind, np.dtype) or is_fixed
    return known


def _has_fixed_values(kind: type[enum.Enum]) -> bool:
    """Return whether the members of an enumeration hold immutable values alone."""
    held = (value for member in kind for name, value in vars(member).items() if name != "__objclass__")
    return are_unchangeable([*held])


def are_unchangeable(values: Iterable[Any], kinds: set[type] | None = None) -> bool:
    """Return whether all values are immutable: plain values, and tuples of them. `kinds`: their types, if known."""
    kinds = set(map(type, values)) if kinds is None else kinds
    if tuple not in kinds:
        return _are_kinds(kinds)
    inner = itertools.chain.from_iterable(one for one in values if type(one) is tuple)
    return _are_kinds(kinds - {tuple}) and _are_kinds(set(map(type, inner)))


def _are_kinds(kinds: set[type]) -> bool:
    return all(map(is_unchangeable, kinds))


class DeepCopies:
    """Deep-copies objects of the script. Copies refer to each other as the originals do.

    `reads`: the names of attributes that code may read: other attributes of the script's objects are shared, not copied. None:
    all may be read.
    `whole`: objects all of whose attributes are copied. `functions` and `classes` are those of the script that were met.
    """

    def __init__(self, reads: frozenset[str] | None, whole: Iterable[Any] = ()) -> None:
        self._reads = reads
        self._whole = {id(one) for one in whole}
        self._made: dict[int, tuple[Any, Any]] = {}  # the original is kept, so that its id stays its own
        self._shared: list[tuple[int, int]] | None = None
        self._bytes = 0
        self._visits = 0
        self.functions: dict[types.FunctionType, None] = {}
        self.classes: dict[type, None] = {}

    def copy(self, thing: Any, place: str) -> Any:
        """Return a deep copy of any object. Raise `NotKept`, which names `place`, if it cannot be copied."""
        try:
            return self._copy(thing)
        except NotKept as error:
            raise error.at(place) from None
        except RecursionError:
            raise NotKept("an object that is nested too deeply").at(place) from None

    def memory(self) -> list[tuple[int, int]]:
        """Return the first address and the end of the memory of each copied tensor, and of its copy."""
        return [_extent(one) for pair in self._made.values() for one in pair if isinstance(one, torch.Tensor)]

    def copy_of(self, original: Any) -> Any:
        """Return the copy made of an object; the object itself if it was not copied."""
        return self._made.get(id(original), (None, original))[1]

    def _copy(self, thing: Any) -> Any:
        kind = type(thing)
        if is_unchangeable(kind):
            return thing
        known = self._made.get(id(thing))
        if known is not None:
            return known[1]
        self._visits += 1
        if self._visits > MOST_VISITS:
            raise NotKept(f"more than {MOST_VISITS:,} objects")
        if isinstance(thing, enum.Enum):  # a copy would be another member
            raise NotKept("an enumeration with values that can change")
        if kind in _CONTAINERS:
            return self._container(thing, kind)
        if kind is tuple or kind is frozenset or _is_named_tuple(kind):
            return self._fixed(thing, kind)
        if isinstance(thing, type | types.ModuleType | types.FunctionType):
            return self._code(thing)
        made = self._data(thing, kind)
        if made is None:
            return self._instance(thing, kind)
        self._keep(thing, made)
        return made

    def _keep(self, thing: Any, made: Any) -> None:
        self._made[id(thing)] = (thing, made)

    def _code(self, thing: Any) -> Any:
        if isinstance(thing, type):
            if not is_of_library(thing.__module__):
                self.classes[thing] = None
        elif isinstance(thing, types.FunctionType) and not is_of_library(thing.__globals__.get("__name__")):
            self.functions[thing] = None
        return thing

    # Containers

    def _container(self, thing: Any, kind: type) -> Any:
        made = self._set(thing) if kind is set else thing.copy()
        self._keep(thing, made)
        if isinstance(thing, dict):
            self._require_keys(thing)
            if isinstance(thing, collections.defaultdict) and thing.default_factory not in (
                None,
                int,
                float,
                str,
                list,
                dict,
                set,
            ):
                self._copy(thing.default_factory)
            copied = self._all(list(thing.values()))
            for key, value in zip(thing, copied or (), strict=False):
                made[key] = value
        elif kind is set:
            self._require_keys(thing)
        elif (copied := self._all(thing)) is not None:
            for number, value in enumerate(copied):
                made[number] = value
        return made

    def _set(self, thing: Any) -> Any:
        """Return a copy of a set with the same iteration order, as in a forked process."""
        made = thing.copy()
        if list(made) != list(thing):
            raise NotKept("a set whose copy has another order")
        return made

    def _fixed(self, thing: Any, kind: type) -> Any:
        made = thing
        if kind is frozenset:
            self._require_keys(thing)
        elif (copied := self._all(thing)) is not None and any(
            one is not other for one, other in zip(copied, thing, strict=True)
        ):
            made = tuple.__new__(kind, copied)
        self._keep(thing, made)
        return made

    def _all(self, values: Any) -> list[Any] | None:
        """Return copies of values; None if all of them are immutable and can be shared."""
        kinds = set(map(type, values))
        if are_unchangeable(values, kinds):
            return None
        if kinds <= {list} or kinds <= {dict}:
            # Such as the lines of an annotation file: copied at once, where the values in them are plain.
            inner = itertools.chain.from_iterable(values if kinds == {list} else map(dict.values, values))
            keys = itertools.chain.from_iterable(values)
            if _are_kinds(set(map(type, inner))) and _are_kinds(set(map(type, keys))):
                if len(values) > MOST_CONTAINERS:
                    raise NotKept(f"more than {MOST_CONTAINERS:,} lists or dicts")
                for one in values:
                    if id(one) not in self._made:
                        self._keep(one, one.copy())
                return [self._made[id(one)][1] for one in values]
        self._visits += len(values)
        return [self._copy(one) for one in values]

    def _require_keys(self, keys: Iterable[Any]) -> None:
        """Raise `NotKept` if a key is a mutable object."""
        if not are_unchangeable([key for key in keys if not isinstance(key, type | types.FunctionType)]):
            raise NotKept("a dict or set whose keys can change")

    # Data of libraries

    def _data(self, thing: Any, kind: type) -> Any:
        """Return a copy of an array, tensor, table or bound method. None for an object of another class."""
        if isinstance(thing, np.ndarray):
            return self._array(thing, kind)
        if isinstance(thing, torch.Tensor):
            return self._tensor(thing, kind)
        if kind is bytearray or kind is array.array:
            return thing[:]
        if kind is functools.partial:
            made: Any = functools.partial(self._copy(thing.func), *map(self._copy, thing.args))
            made.keywords.update({name: self._copy(value) for name, value in thing.keywords.items()})
            return made
        if kind is types.MethodType:
            return types.MethodType(self._copy(thing.__func__), self._copy(thing.__self__))
        if kind is staticmethod or kind is classmethod or kind is property or kind in _DESCRIPTORS:
            return thing
        if isinstance(thing, _BOUND):
            own = thing.__self__
            if own is None or isinstance(own, type | types.ModuleType):
                return thing
            return getattr(self._copy(own), thing.__name__)
        if kind is types.SimpleNamespace:
            return types.SimpleNamespace(**{name: self._copy(value) for name, value in vars(thing).items()})
        if _is_table(kind):
            return self._table(thing)
        if is_rows_dataset(thing):
            return self._rows(thing)
        return thing if kind in (np.ufunc, type(np.sum), type(np.random.seed)) else None

    def _array(self, thing: Any, kind: type) -> Any:
        if kind is not np.ndarray or thing.dtype.hasobject:
            raise NotKept(f"an array of {'objects' if thing.dtype.hasobject else f'the class {kind.__name__}'}")
        self._require_own_memory(thing.__array_interface__["data"][0])
        self._count(thing.nbytes)
        made = thing.copy(order="K")
        if made.strides != thing.strides and thing.size:  # sums are rounded by the order of values in memory
            made = _array_with_strides(thing)
        made.flags.writeable = thing.flags.writeable
        return made

    def _require_own_memory(self, address: int) -> None:
        """Raise `NotKept` for memory that forked processes share: one would see what another writes."""
        if self._shared is None:
            self._shared = _shared_memory()
        if any(first <= address < end for first, end in self._shared):
            raise NotKept("an array or tensor in memory that processes share")

    def _tensor(self, thing: Any, kind: type) -> Any:
        if kind is not torch.Tensor or thing.device.type != "cpu" or thing.layout != torch.strided or thing.requires_grad:
            raise NotKept("a tensor of another class or device, a sparse one, or one with a gradient")
        self._require_own_memory(thing.data_ptr())
        self._count(thing.nbytes)
        made = thing.clone(memory_format=torch.preserve_format)
        if made.stride() != thing.stride() and thing.numel():
            made = _tensor_with_strides(thing)
        if thing.__dict__:
            raise NotKept("a tensor with attributes of its own")
        return made

    def _table(self, thing: Any) -> Any:
        self._count(int(np.sum(thing.memory_usage())))
        columns = [thing] if thing.ndim == 1 else [thing[name] for name in thing.columns]
        for column in columns:
            if column.dtype == object and not are_unchangeable(column.array):
                raise NotKept("a table whose cells can change")
        return thing.copy()

    def _rows(self, thing: Any) -> Any:
        """Return a copy of a `datasets.Dataset`. Its Arrow tables cannot be changed."""
        made = object.__new__(type(thing))
        self._keep(thing, made)
        for name, value in vars(thing).items():
            kept = self._copy(value) if name == "_format_kwargs" else value
            made.__dict__[name] = kept.copy() if type(kept) in (list, dict) and kept is value else kept
        return made

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > MOST_BYTES:
            raise NotKept(f"more than {MOST_BYTES >> 20} MB of arrays, tensors and tables")

    # Objects

    def _instance(self, thing: Any, kind: type) -> Any:
        if hasattr(kind, "__del__"):  # it would be called for the copy, too
            raise NotKept(f"an object of {kind.__qualname__}, which has its own __del__")
        is_own = not is_of_library(kind.__module__)
        is_operation = id(thing) in self._whole
        is_whole = (
            is_operation or isinstance(thing, torch.nn.Module) or not (is_own or isinstance(thing, torch.utils.data.Dataset))
        )
        try:
            made: Any = object.__new__(kind)
        except TypeError:
            raise NotKept(f"an object of {kind.__qualname__}, whose state is not in its attributes") from None
        if not hasattr(thing, "__dict__") and not _slots(kind):
            if kind.__dictoffset__ == 0 and kind.__basicsize__ == object.__basicsize__:
                return thing  # without any state
            raise NotKept(f"an object of {kind.__qualname__}, whose state is not in its attributes")
        if is_own and not is_operation:
            _require_simple(kind)
        self._keep(thing, made)
        self._code(kind)
        for parent in kind.__mro__ if is_own and is_operation else ():
            for value in vars(parent).values():
                if isinstance(value, types.FunctionType):
                    self._code(value)
        for name, value, store in _attributes(thing, made, kind):
            if is_whole or self._reads is None or name in self._reads:
                try:
                    value = self._copy(value)
                except NotKept as error:
                    raise error.at(f"{kind.__name__}.{name}") from None
            store(value)
        return made


def _array_with_strides(thing: Any) -> Any:
    """Return a copy of an array with its strides, which may be negative. Raise `NotKept` for a view of a small part."""
    steps = [(count - 1) * step for count, step in zip(thing.shape, thing.strides, strict=True)]
    span = sum(map(abs, steps)) + thing.itemsize
    if span > MOST_GAPS * thing.nbytes:
        raise NotKept("an array that is a view of a small part of a larger one")
    first = -sum(step for step in steps if step < 0)
    made = np.ndarray(thing.shape, thing.dtype, np.empty(span, np.uint8), first, thing.strides)
    made[...] = thing
    return made


def _tensor_with_strides(thing: Any) -> Any:
    """Return a copy of a tensor with its strides. Raise `NotKept` for a view of a small part, or if elements share memory."""
    steps = [(count - 1) * step for count, step in zip(thing.shape, thing.stride(), strict=True) if count > 1]
    if 0 in steps or sum(steps) >= MOST_GAPS * thing.numel():
        raise NotKept("a tensor that is a view of a small part of a larger one, or whose elements share memory")
    return torch.empty_strided(thing.shape, thing.stride(), dtype=thing.dtype).copy_(thing)


class BatchCopies(DeepCopies):
    """Copies batches as the training process would receive them from a worker. Tensors are shared with the batch.

    `memory`: address ranges of the tensors of the dataset (`DeepCopies.memory`). Raise `NotKept` for a tensor of the batch in
    them: torch would share its memory between the processes.
    """

    def __init__(self, memory: list[tuple[int, int]]) -> None:
        super().__init__(None)
        self._begins = sorted(memory)
        self._ends = list(itertools.accumulate((end for _, end in self._begins), max))

    def _set(self, thing: Any) -> Any:
        return set(iter(thing))  # as it is unpickled

    def _array(self, thing: Any, kind: type) -> Any:
        if kind is not np.ndarray or thing.dtype.hasobject:
            return super()._array(thing, kind)
        return pickle.loads(ForkingPickler.dumps(thing))  # with strides, and the right to write, as they arrive

    def _tensor(self, thing: Any, kind: type) -> Any:
        first, end = _extent(thing)
        before = bisect.bisect_left(self._begins, (end, 0))
        if first < end and before and self._ends[before - 1] > first:
            raise NotKept("a tensor of the dataset itself, whose memory a worker would share")
        return thing


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first address of the memory of a tensor, and its end."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return 0, 0
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _shared_memory() -> list[tuple[int, int]]:
    """Return the begin and end of the shared mappings of this process (proc_pid_maps(5)). None are known without /proc."""
    try:
        lines = pathlib.Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        extent, rights, *_ = line.split(maxsplit=2)
        if rights.endswith("s"):
            first, _, end = extent.partition("-")
            found.append((int(first, 16), int(end, 16)))
    return found


def _require_simple(kind: type) -> None:
    """Raise `NotKept` if an operator on an object may call code of the script."""
    name = own_special_method(kind, IMPLICIT)
    if name is not None:
        raise NotKept(f"an object of {kind.__name__}, which has its own {name}")


def own_special_method(kind: type, names: frozenset[str] = IMPLICIT | {"__len__"}) -> str | None:
    """Return a special method (`__add__` …) that the script's class defines and that an operator would call; or None."""
    for parent in kind.__mro__:
        if not is_of_library(parent.__module__):
            for name in vars(parent):
                if name in names and not _is_generated(parent, name):
                    return name
    return None


_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType)


def _is_generated(kind: type, name: str) -> bool:
    """Return whether a method is one that `dataclasses` wrote, or the mark of a class whose objects have no hash."""
    value = vars(kind)[name]
    return value is None or (
        "__dataclass_fields__" in vars(kind) and getattr(getattr(value, "__code__", None), "co_filename", "") == "<string>"
    )


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields") and kind.__getitem__ is tuple.__getitem__


def _is_table(kind: type) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and kind in (pandas.DataFrame, pandas.Series)


def _slots(kind: type) -> dict[str, Any]:
    return {
        name: value
        for parent in reversed(kind.__mro__)
        for name, value in vars(parent).items()
        if isinstance(value, types.MemberDescriptorType) and "__slots__" in vars(parent)
    }


def _attributes(thing: Any, made: Any, kind: type) -> Iterable[tuple[str, Any, Callable[[Any], None]]]:
    """Yield the name and value of each attribute of an object, and what stores the attribute of its copy."""
    if hasattr(thing, "__dict__"):
        own = made.__dict__
        for name, value in list(thing.__dict__.items()):
            yield name, value, functools.partial(own.__setitem__, name)
    for name, member in _slots(kind).items():
        try:
            value = member.__get__(thing)
        except AttributeError:  # the slot is empty
            continue
        yield name, value, functools.partial(member.__set__, made)
