"""Plan items: run the code of a dataset's `__getitem__` without decoding; each call is executed, replaced or refused.

The code is the script's own, rewritten by `script_code.rewrite`. Opening an image file returns a planned image, and a transform
that headrace knows returns a planned view of it (`planned_images`). Functions of the script, and of the datasets of libraries,
are rewritten too. Functions without side effects (`pure_functions`) are called. Everything else is refused. So planning an item
changes nothing, whatever the item's code is, and its result depends on the data only: it is the same in each process, at each
time. The same holds for a `target_transform` and for a collate function.
"""

from __future__ import annotations

import builtins
import functools
import io
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from headrace.accelerate.runtime.unsupported import Unsupported, attempt
from headrace.accelerate.script.library_code import is_constant, is_of_library, loaded_names, nested_codes
from headrace.accelerate.script.replaced_functions import is_own_function
from headrace.accelerate.script_code.attributes import computed_attribute, property_of, vars_of
from headrace.accelerate.script_code.deep_copies import own_special_method
from headrace.accelerate.script_code.hf_datasets import DatasetRows, is_rows_dataset
from headrace.accelerate.script_code.planned_images import (
    Chain,
    NotUnderstood,
    PlannedFile,
    PlannedImage,
    PlannedView,
    note_opened,
    path_text,
    refusal_of,
)
from headrace.accelerate.script_code.pure_functions import (
    is_plain_type,
    method_differs,
    pure_functions,
    pure_method,
    tells_the_process,
    writes_into_argument,
)
from headrace.accelerate.script_code.rewrite import RewrittenCode, rewritten
from headrace.accelerate.script_code.written_calls import called_name, is_library
from headrace.accelerate.transforms.flat_transforms import require_unmodified
from headrace.accelerate.transforms.names import full_name
from headrace.accelerate.transforms.translate import Trace
from headrace.accelerate.workers.settings import collate_as_worker

__all__ = ["ItemCalls", "has_own_default_collate"]

#: Special methods that an expression calls implicitly, and that may have side effects.
IMPLICIT = ("__getattribute__", "__getattr__", "__iter__", "__eq__", "__add__", "__contains__", "__bool__", "__enter__")

#: Classes whose special methods in `IMPLICIT` have no side effects.
KNOWN_OWNERS = (object, torch.nn.Module, torch.utils.data.Dataset, tuple)

COMPOSE = frozenset({"torchvision.transforms.transforms.Compose", "torchvision.transforms.v2.Compose"})
LAMBDA = "torchvision.transforms.transforms.Lambda"
_ABSENT = object()


class ItemCalls:
    """Plans items: runs the code of `dataset[i]` without opening images, and returns stand-ins for its tensors.

    One object may plan items of any number of datasets; it caches the code that it has rewritten. `trace`: translates the
    script's own transforms.

    calls = ItemCalls(Tracer())
    calls.plan(dataset, 3)  # (PlannedView, 7)
    """

    _refuses_ahead = True

    def __init__(self, trace: Trace) -> None:
        self._empty = Chain(trace)
        self._handlers: dict[int, tuple[Any, Callable[..., Any]]] = {}
        self._methods: dict[tuple[type, str], tuple[Any, Any]] = {}
        self._rewritten: dict[tuple[types.FunctionType, type | None, int | None], types.FunctionType] = {}
        self._plain: dict[type, bool] = {}
        self._operands: set[type] = set()
        self._datasets: dict[int, DatasetRows] = {}
        self._originals: dict[int, tuple[Any, Any]] = {}
        self._known_names: frozenset[str] | None = None
        self._telling: str | None = None
        self._variables: dict[tuple[types.ModuleType, str], None] = {}
        self._iterators: dict[int, Any] = {}  # those that the last item has made itself, by their identity
        self._own_codes: set[int] = set()
        for function in filter(is_own_function, pure_functions()):  # not what the script has put in its place
            self._handlers[id(function)] = (function, self._pure(function))
        for function, handler in self._special():
            self._handlers[id(function)] = (function, handler)

    def plan(self, dataset: Any, index: Any) -> Any:
        """Return `dataset[index]` with `PlannedView` objects in place of image tensors.

        Raise `Unsupported` with the reason if the code makes a call that may have side effects or depends on the process.
        """
        return self._understood(lambda: self.item(dataset, index))

    def run(self, function: Any, *arguments: Any) -> Any:
        """Call a function of the script, such as its collate function, as `plan` does.

        Raise `Unsupported` with the reason if its code makes a call that may have side effects or depends on the process.
        """
        result, refusal = self._refusal_of(lambda: self.call(function, *arguments))
        if refusal is not None:
            whose = f"functions of its collate_fn {called_name(function)} "
            raise Unsupported(refusal.replace("its items ", whose, 1) if refusal.startswith("its items ") else refusal)
        return result

    def code(self) -> list[tuple[types.FunctionType, type | None, types.FunctionType]]:
        """Return each rewritten function, the class of its `self` (None for a function), and its copy."""
        return [(function, owner, made) for (function, owner, _), made in self._rewritten.items()]

    def variables(self) -> list[tuple[types.ModuleType, str]]:
        """Return the variables of the script's modules that the code read as `module.name`."""
        return list(self._variables)

    def close(self, names: frozenset[str], copies: list[tuple[Any, Any]]) -> None:
        """From now on refuse functions that are not rewritten yet, and attributes that are not in `names`.

        `copies`: pairs of a transform and its copy, which counts as the transform itself.
        """
        self._known_names = names
        self._originals = {id(copy): (copy, original) for original, copy in copies}

    def plan_rows(self, dataset: Any, indices: list[Any]) -> list[Any]:
        """Return the planned items that `__getitems__` of a `datasets.Dataset` makes of several rows."""
        made: list[Any] = self._understood(lambda: self._rows(dataset).rows(indices))
        return made

    def length(self, dataset: Any) -> int:
        """Return `len(dataset)`, computed by the dataset's own `__len__`.

        Raise `Unsupported` with the reason if its code makes a call that may have side effects or depends on the process.
        """
        return int(self._understood(lambda: self._len(dataset)))

    def refuse(self, reason: str) -> NotUnderstood:
        """Return an exception for the caller to raise, which refuses the item for this reason."""
        return NotUnderstood(reason)

    def _understood(self, make: Callable[[], Any]) -> Any:
        result, refusal = self._refusal_of(make)
        if refusal is not None:
            raise Unsupported(refusal)
        return result

    def _refusal_of(self, make: Callable[[], Any]) -> tuple[Any, str | None]:
        """Call `make` for a new item or batch. Return its result, and the reason of the first `NotUnderstood`, or None."""
        self._iterators.clear()
        return refusal_of(make)

    # The decisions of rewritten code

    def call(self, function: Any, /, *arguments: Any, **named: Any) -> Any:
        """Return the result of `function(*arguments)`, planned for images. Raise `NotUnderstood` if the call is refused."""
        known = self._handlers.get(id(function))
        if known is not None:
            return known[1](*arguments, **named)
        if type(function) is types.MethodType:
            own = function.__self__
            if isinstance(function.__func__, types.FunctionType):
                return self._code(function.__func__, type(own))(own, *arguments, **named)
            raise self.refuse(f"its items call {called_name(function)}")
        handler = self._handler(function)
        self._handlers[id(function)] = (function, handler)
        return handler(*arguments, **named)

    def call_with_own(self, function: Any, /, own: dict[str, Any]) -> Any:
        """Call a function of the script with a dict that nothing else refers to, so that it may change the dict."""
        if isinstance(function, types.FunctionType):
            return self._code(function, None, fresh=0)(own)
        if type(function) is types.MethodType and isinstance(function.__func__, types.FunctionType):
            kind = type(function.__self__)
            return self._code(function.__func__, kind, fresh=1)(function.__self__, own)
        kind = type(function)
        called = vars_of(kind, "__call__")
        if isinstance(called, types.FunctionType) and not isinstance(function, torch.nn.Module):
            return self._code(called, kind, fresh=1)(function, own)
        return self.call(function, own)

    def method(self, thing: Any, name: str, /, *arguments: Any, **named: Any) -> Any:
        """Return the result of `thing.name(*arguments)`, planned for images. Raise `NotUnderstood` if the call is refused."""
        kind = type(thing)
        if kind is types.ModuleType or kind is type:
            return self.call(self.attribute(thing, name), *arguments, **named)
        if kind is PlannedImage:
            return thing.method(name, arguments, named)
        if kind is PlannedFile and name == "read" and not (arguments or named):
            return thing
        if kind is super:
            function = getattr(thing, name).__func__
            return self._code(function, type(thing.__self__))(thing.__self__, *arguments, **named)
        key = (kind, name)
        found, function = self._methods.get(key, (_ABSENT, None))
        if found is not (now := getattr(kind, name, None)):  # not met before, or the script has replaced it
            function = self._method(kind, name, thing)
            self._methods[key] = now, function
        if function is None or (function is not _PURE and name in getattr(thing, "__dict__", ())):  # the object's own attribute
            if name in ("__getitem__", "__len__"):  # an index and `len` call that of the class
                raise self.refuse(f"an object of {kind.__name__} has its own {name}")
            return self.call(self.attribute(thing, name), *arguments, **named)
        if function is _PURE:
            self._require_plain(arguments, named)
            if method_differs(thing, name, arguments, named):
                raise self.refuse(f"its items call {kind.__name__}.{name} of many values or with `out`")
            return getattr(thing, name)(*arguments, **named)
        return function(thing, *arguments, **named)

    def item(self, thing: Any, index: Any, /) -> Any:
        """Return `thing[index]`. Raise `NotUnderstood` if reading it may change an object or run code that is refused."""
        kind = type(thing)
        if isinstance(thing, type):
            raise self.refuse(f"its items index the class {thing.__name__}")
        if self._is_plain(kind):
            if kind.__module__ == "collections" and kind.__name__ == "defaultdict" and index not in thing:
                raise self.refuse("its items add to a defaultdict")
            return thing[index]
        if isinstance(thing, PlannedImage | PlannedView | PlannedFile):
            return thing[index]
        if is_rows_dataset(thing):
            return self._rows(thing).row(index)
        return self.method(thing, "__getitem__", index)

    def attribute(self, thing: Any, name: str, /) -> Any:
        """Return `thing.name`. Raise `NotUnderstood` for a property, a variable that may change, or a planned view or file."""
        kind = type(thing)
        if kind is types.ModuleType:
            if is_of_library(thing.__name__) and hasattr(thing, name) and not is_constant(vars(thing), name):
                raise self.refuse(f"its items read {thing.__name__}.{name}")
            self._require_stored(thing, name)
            if (thing, name) not in self._variables and not is_of_library(thing.__name__):
                if self._known_names is not None:
                    raise self.refuse(f"its items read {thing.__name__}.{name}, which no item read before")
                self._variables[thing, name] = None
            return getattr(thing, name)
        if self._is_plain(kind) and kind not in (type, super):
            return getattr(thing, name)
        if kind is PlannedImage:
            return thing.attribute(name)
        if isinstance(thing, PlannedView | PlannedFile):
            raise self.refuse(f"its items look at {thing.words()}")
        if kind in _FUNCTIONS and not name.startswith("__"):  # its variables are not those of the beginning of a pass
            raise self.refuse(f"its items read the variable {name} of {called_name(thing)}")
        self._require_stored(thing, name)
        return getattr(thing, name)

    def immutable(self, value: Any, /) -> Any:
        """Return the left operand of `+=` unchanged. Raise `NotUnderstood` for one that `+=` changes in place, as a list."""
        if isinstance(value, str | int | float | tuple | bytes) and self._is_plain(type(value)):
            return value
        raise self.refuse(f"its items change a {type(value).__name__} in place")

    def formatted(self, value: Any, /) -> Any:
        """Return a value of an f-string unformatted. Raise `NotUnderstood` if formatting it runs code of the script."""
        kind = type(value)
        if self._is_plain(kind) or kind is type or isinstance(value, PlannedImage | PlannedView | PlannedFile):
            return value
        raise self.refuse(f"its items make a text of {kind.__name__}")

    def operand(self, value: Any, /) -> Any:
        """Return an operand of an operator or condition. Raise `NotUnderstood` if using it runs code of the script."""
        kind = type(value)
        if kind not in self._operands:
            if kind in _ITERATORS:  # `in` would use it up
                raise self.refuse(f"its items compute with a {kind.__name__}")
            method = None if self._is_plain(kind) else own_special_method(kind)
            if method is not None:
                raise self.refuse(f"its items compute with an object of {kind.__name__}, which has its own {method}")
            self._operands.add(kind)
        return value

    def iterated(self, value: Any, /) -> Any:
        """Return the iterable of a loop unchanged. Raise `NotUnderstood` if iterating runs the script's code or uses it up."""
        kind = type(value)
        if self._is_plain(kind) or self._is_own_iterator(value):
            return value
        if isinstance(value, PlannedImage | PlannedView | PlannedFile):
            return value
        if _is_library(kind) and isinstance(value, torch.nn.Module):  # a list of modules
            return value
        raise self.refuse(f"its items go over a {kind.__name__}")

    # What a function is

    def _special(self) -> list[tuple[Any, Callable[..., Any]]]:
        image = sys.modules.get("PIL.Image")
        folder = sys.modules.get("torchvision.datasets.folder")
        special: list[tuple[Any, Callable[..., Any]]] = [
            (super, super),
            (builtins.open, self._open_file),
            (io.BytesIO, self._bytes),
            (isinstance, self._isinstance),
            (len, self._len),
            (getattr, self._getattr),
            (callable, lambda thing: callable(thing)),
            (torch.is_tensor, self._is_tensor),
            (torch.utils.data.default_collate, self._default_collate),
        ]
        if image is not None:
            special.append((image.open, self._open_image))
        if (operations := sys.modules.get("PIL.ImageOps")) is not None:
            special.append((operations.exif_transpose, self._upright))
        if folder is not None:
            special += [(folder.pil_loader, self._open_rgb), (folder.default_loader, self._open_by_default)]
        return special

    def _handler(self, function: Any) -> Callable[..., Any]:
        """Return the function to call in place of a function or callable object that is met for the first time."""
        if isinstance(function, types.FunctionType):
            return self._code(function, None)
        kind = type(function)
        if kind is functools.partial and not vars(function):
            return lambda *given, **named: self.call(function.func, *function.args, *given, **{**function.keywords, **named})
        if kind in _BOUND and not isinstance(function.__self__, type | types.ModuleType | None):
            own, name = function.__self__, function.__name__
            if name == "__getitem__":
                return lambda index: self.item(own, index)
            return lambda *given, **named: self.method(own, name, *given, **named)
        if kind is type:
            if issubclass(function, tuple) and hasattr(function, "_fields") and is_plain_type(function):
                return lambda *arguments, **named: function(*arguments, **named)
            raise self.refuse(f"its items make objects of {called_name(function)}")
        if kind is types.BuiltinFunctionType or not callable(function):
            raise self.refuse(f"its items call {called_name(function)}")
        return lambda *arguments, **named: self._apply(function, *arguments, **named)

    def _apply(self, operation: Any, /, *arguments: Any, **named: Any) -> Any:
        """Call a callable object: a transform is planned, one of the script's own classes is rewritten."""
        kind = type(operation)
        if len(arguments) == 1 and not named:
            if isinstance(arguments[0], PlannedImage | PlannedView):
                known = self._originals.get(id(operation))
                result = arguments[0].transformed(operation if known is None else known[1])
                if result is not None:
                    return result
            if full_name(operation) in COMPOSE or kind is torch.nn.Sequential:
                if (refusal := attempt(lambda: require_unmodified(operation))) is not None:
                    raise self.refuse(refusal.text)
                result = arguments[0]
                for part in operation.transforms if kind is not torch.nn.Sequential else operation:
                    result = self.call(part, result)
                return result
            if full_name(operation) == LAMBDA:
                return self.call(operation.lambd, arguments[0])
        if isinstance(operation, torch.nn.Module) and kind.__call__ is torch.nn.Module.__call__:
            if any(vars(operation).get(hooks) for hooks in ("_forward_hooks", "_forward_pre_hooks")) or "forward" in vars(
                operation
            ):
                raise self.refuse(f"transform {kind.__name__} has forward hooks")
            function = kind.forward
        else:
            function = kind.__call__
        if not isinstance(function, types.FunctionType) or _is_library(kind):
            raise self.refuse(f"transform {kind.__name__} has no exact native equivalent")
        return self._code(function, kind)(operation, *arguments, **named)

    def _method(self, kind: type, name: str, thing: Any) -> Any:
        """Return the function to call in place of a method of a type. None: look the attribute up."""
        if pure_method(kind, name):
            return _PURE
        if is_plain_type(kind) or isinstance(thing, PlannedView | PlannedFile):
            raise self._refuse_method(kind, name, thing)
        function = getattr(kind, name, None)
        if function is None and name in getattr(thing, "__dict__", ()):
            return None
        if function is None and isinstance(thing, torch.nn.Module):
            return None
        if isinstance(vars_of(kind, name), staticmethod | classmethod):
            return None
        if not isinstance(function, types.FunctionType):
            raise self._refuse_method(kind, name, thing)
        return self._code(function, kind)

    def _refuse_method(self, kind: type, name: str, thing: Any) -> NotUnderstood:
        is_planned = isinstance(thing, PlannedFile | PlannedImage | PlannedView)
        return self.refuse(
            f"its items call {name} on {thing.words()}" if is_planned else f"its items call {kind.__name__}.{name}"
        )

    def _code(self, function: types.FunctionType, owner: type | None, fresh: int | None = None) -> Callable[..., Any]:
        """Return the rewritten copy of a function.

        `owner`: the type of its first argument if it is a method. `fresh`: the number of an argument that it may change.
        """
        key = (function, owner, fresh)
        made = self._rewritten.get(key)
        if made is None:
            if self._known_names is not None:
                raise self.refuse(f"its items call {called_name(function)}, which no item called before")
            if is_of_library(function.__globals__.get("__name__")):
                self._require_constants(function)
            try:
                code = rewritten(function, self, is_method=owner is not None, fresh=fresh)
                if owner is not None:
                    self._require_simple(owner, code)
            except Unsupported as error:
                reason = f"its items call {called_name(function)}" if is_library(function) else str(error)
                raise self.refuse(reason) from error
            made = self._rewritten[key] = code.function
            self._own_codes.update(map(id, nested_codes(made.__code__)))
            self._look_ahead(code, owner)
        return made

    def _require_constants(self, function: types.FunctionType) -> None:
        """Refuse a function of a library that reads a variable which may differ between processes."""
        for name in loaded_names(function.__code__)[0]:
            if name in function.__globals__ and not is_constant(function.__globals__, name, may_contain=True):
                raise self.refuse(f"its items call {called_name(function)}, which depends on the process or on a state")

    def _look_ahead(self, code: RewrittenCode, owner: type | None) -> None:
        """Refuse code with a branch, not taken so far, that asks for the process or draws random numbers."""
        methods = ((vars_of(owner, name), owner) for name in code.own_methods if owner is not None)
        for function, kind in (*((one, None) for one in code.called), *methods):
            if function is None or id(function) in self._handlers:
                continue
            if self._refuses_ahead and tells_the_process(function):
                self._telling = f"its items call {called_name(function)}"
            elif isinstance(function, types.FunctionType) and not is_of_library(function.__globals__.get("__name__")):
                _, refusal = refusal_of(lambda: self._code(function, kind))  # noqa: B023
                if refusal is not None:
                    raise self.refuse(refusal)
            if self._telling is not None:
                raise self.refuse(self._telling)

    def _require_simple(self, kind: type, code: RewrittenCode) -> None:
        """Raise `Unsupported` if reading an attribute of an object, or an expression with it, may call code of the script."""
        for name in IMPLICIT:
            owner = next((parent for parent in kind.__mro__ if name in vars(parent)), object)
            if owner not in KNOWN_OWNERS and not _is_library(owner):
                raise Unsupported(f"class {owner.__name__} has its own {name}")
        for name in code.own_attributes:
            if (computed := property_of(kind, name)) is not None:
                raise self.refuse(f"its items read {computed}")

    def _require_stored(self, thing: Any, name: str) -> None:
        """Refuse an attribute if reading it may run code of the script."""
        if (computed := computed_attribute(thing, name)) is not None:
            raise self.refuse(f"its items read {computed}")

    # Functions with a meaning of their own

    def _pure(self, function: Any) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self._require_plain(arguments, named)
            if writes_into_argument(function, arguments, named):
                raise self.refuse(f"its items call {called_name(function)} with `out`")
            result = function(*arguments, **named)
            if type(result) in _ITERATORS:
                self._iterators[id(result)] = result
            return result

        return call

    def _require_plain(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Refuse arguments that are not plain data: the function might call code of the script, or read a planned image."""
        for argument in (*arguments, *named.values()) if named else arguments:
            kind = type(argument)
            is_known = is_of_library(argument.__module__) if kind is type else self._is_plain(kind)
            if not is_known and not self._is_own_iterator(argument):
                what = argument.words() if isinstance(argument, PlannedImage | PlannedView | PlannedFile) else kind.__name__
                raise self.refuse(f"its items compute with {what}")

    def _is_plain(self, kind: type) -> bool:
        plain = self._plain.get(kind)
        if plain is None:
            plain = self._plain[kind] = is_plain_type(kind) and not hasattr(kind, "__next__")
        return plain

    def _is_own_iterator(self, value: Any) -> bool:
        """Return whether the item's own code made an iterator. Any other would be used up by planning."""
        if type(value) is types.GeneratorType:
            return id(value.gi_code) in self._own_codes
        return id(value) in self._iterators

    def _open_image(self, file: Any, *arguments: Any, **named: Any) -> PlannedImage:
        source = file.source if type(file) is PlannedFile else path_text(file)
        if source is None or arguments or named:
            raise self.refuse("its items open images that are not files")
        note_opened(source)
        return PlannedImage(source, self._empty, is_rgb=False)

    def _open_rgb(self, path: Any) -> PlannedImage:
        return self._open_image(path).method("convert", ("RGB",), {})  # type: ignore[no-any-return]

    def _open_by_default(self, path: Any) -> PlannedImage:
        if sys.modules["torchvision"].get_image_backend() != "PIL":
            raise self.refuse("torchvision's image backend is not Pillow")
        return self._open_rgb(path)

    def _upright(self, image: Any) -> PlannedImage:
        if type(image) is not PlannedImage:
            raise self.refuse("its items turn images that are not files")
        return image.upright()

    def _open_file(self, path: Any, mode: str = "r") -> PlannedFile:
        text = path_text(path)
        if text is None or mode != "rb":
            raise self.refuse("its items open other files than images")
        note_opened(text)
        return PlannedFile(text)

    def _bytes(self, data: Any) -> PlannedFile:
        if type(data) is bytes:
            return PlannedFile(data)
        if type(data) is not PlannedFile:
            raise self.refuse("its items open images that are not files")
        return data

    def _isinstance(self, thing: Any, kinds: Any) -> bool:
        if not isinstance(thing, PlannedImage | PlannedView):
            return isinstance(thing, kinds)
        image = sys.modules["PIL.Image"].Image
        for kind in kinds if isinstance(kinds, tuple) else (kinds,):
            if kind is (image if type(thing) is PlannedImage else torch.Tensor):
                return True
            if not isinstance(kind, type) or issubclass(kind, image | torch.Tensor):
                raise self.refuse(f"its items ask for {kind}")
        return False

    def _is_tensor(self, thing: Any) -> bool:
        return isinstance(thing, torch.Tensor | PlannedView)

    def _rows(self, dataset: Any) -> DatasetRows:
        rows = self._datasets.get(id(dataset))
        if rows is None or rows.dataset is not dataset:
            rows = self._datasets[id(dataset)] = DatasetRows(dataset, self._empty, self.call_with_own, self.item)
        return rows

    def _default_collate(self, batch: Any) -> Any:
        if not has_own_default_collate():
            self._require_collatable(batch)
            return torch.utils.data.default_collate(batch)
        raise self.refuse("its items call default_collate, to which the script has added types")

    def _require_collatable(self, content: Any) -> None:
        """Refuse a batch for which `default_collate` might call code of the script."""
        kind = type(content)
        if kind in (tuple, list) or (isinstance(content, tuple) and hasattr(content, "_fields") and self._is_plain(kind)):
            for one in content:
                self._require_collatable(one)
        elif kind is dict:
            for one in content.values():
                self._require_collatable(one)
        else:
            self._require_plain((content,), {})

    def _len(self, thing: Any) -> Any:
        return len(thing) if self._is_plain(type(thing)) or is_rows_dataset(thing) else self.method(thing, "__len__")

    def _getattr(self, thing: Any, name: str, *default: Any) -> Any:
        if self._known_names is not None and name not in self._known_names and type(thing) is not types.ModuleType:
            raise self.refuse(f"its items read {name}, which no item read before")
        try:
            return self.attribute(thing, name)
        except AttributeError:
            if default:
                return default[0]
            raise


def has_own_default_collate() -> bool:
    """Return whether the script has added or replaced functions by which torch's `default_collate` treats a type."""
    known = sys.modules["torch.utils.data._utils.collate"]
    functions = (one for one in known.default_collate_fn_map.values() if one is not collate_as_worker)
    return any(getattr(known, getattr(one, "__name__", ""), None) is not one for one in functions)


_PURE = object()
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
_FUNCTIONS = frozenset({types.FunctionType, types.MethodType, functools.partial})
_ITERATORS = frozenset({type(iter(zip())), type(iter(reversed([]))), enumerate, map, types.GeneratorType})


def _is_library(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("torch", "torchvision", "timm", "builtins", "typing", "abc")
