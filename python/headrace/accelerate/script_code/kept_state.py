"""Snapshot of the dataset and of all variables that its code reads, as workers would have when they are started.

A worker process has a copy of everything, so later changes in the training loop do not reach its items. Here the dataset and
the collate function are copied with all objects that they hold (`deep_copies`). Other variables that the code names (global and
captured variables, variables of modules and classes, default arguments) are copied too. While items and batches are made, the
variables have the values of the copies (`KeptItems.in_place`).
"""

from __future__ import annotations

import pickle
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.script.library_code import is_of_library, loaded_names
from headrace.accelerate.script_code.calls import ItemCalls
from headrace.accelerate.script_code.deep_copies import BatchCopies, DeepCopies, NotKept
from headrace.accelerate.workers.one_at_a_time import one_at_a_time

__all__ = ["KeptItems"]

_ABSENT: Any = object()


@dataclass(frozen=True, slots=True)
class _Place:
    """A variable outside of the dataset, and its value in the snapshot."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
    kept: Any


class KeptItems:
    """A snapshot of a loader's dataset, its collate function, and all variables that their code reads.

    `calls` has planned items and made a batch, so it knows that code. `operations`: the transforms of the items. Raise
    `Unsupported` if something cannot be copied.

        kept = KeptItems(calls, dataset, collate, operations)
        kept.close()
        with kept.in_place():
            calls.plan(kept.dataset, 3)  # whatever has changed since
    """

    def __init__(self, calls: ItemCalls, dataset: Any, collate: Any, operations: Iterable[Any]) -> None:
        self._calls = calls
        self._operations = tuple(operations)
        code = calls.code()
        names = (loaded_names(function.__code__)[1] for function, _, _ in code)
        self._reads = frozenset().union(*names)
        self._copies = DeepCopies(self._reads, self._operations)
        self._places: list[_Place] = []
        self._spaces: set[tuple[int, str]] = set()
        try:
            self.dataset = self._copies.copy(dataset, "the dataset")
            self.collate = self._copies.copy(collate, "the collate_fn")
            self._add_code(code)
        except NotKept as error:
            reason = f"its items read {error.place}, which headrace cannot copy as a worker would have it ({error.what})"
            raise Unsupported(reason) from error
        self._add_further_functions({function for function, _, _ in code})
        self._memory = self._copies.memory()

    def close(self) -> None:
        """Make `calls` refuse functions and attributes that it has not met yet: the snapshot does not have them."""
        copies = [(one, self._copies.copy_of(one)) for one in self._operations]
        self._calls.close(self._reads, [(one, copy) for one, copy in copies if one is not copy])

    def require_sendable(self, batch: Any) -> None:
        """Raise `Unsupported` if a worker could not send this batch as an independent copy."""
        try:
            BatchCopies(self._memory).copy(batch, "a batch")
        except NotKept as error:
            raise Unsupported(f"its collate_fn returns {error.what}") from error

    def sent(self, batch: Any) -> Any:
        """Return a copy of a batch, as the training process receives it from a worker."""
        try:
            return BatchCopies(self._memory).copy(batch, "a batch")
        except NotKept:
            return pickle.loads(pickle.dumps(batch))  # as a worker sends it

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context manager: the variables have the values of the snapshot. Changes by other threads of the script stay."""
        with one_at_a_time():
            yield from self._exchanged()

    def _exchanged(self) -> Iterator[None]:
        changed: list[tuple[_Place, Any]] = []
        try:
            for place in self._places:
                live = place.read()
                if live is not place.kept:
                    changed.append((place, live))
                    place.write(place.kept)
            yield
        finally:
            for place, live in reversed(changed):
                if place.read() is place.kept:
                    place.write(live)

    def _add_code(self, code: list[tuple[types.FunctionType, type | None, types.FunctionType]]) -> None:
        for function, owner, made in code:
            if owner is not None:
                for parent in owner.__mro__:
                    if not is_of_library(parent.__module__):
                        self._copies.classes[parent] = None
            if not is_of_library(function.__globals__.get("__name__")):
                self._add_function(function, made)
        for module, name in self._calls.variables():
            self._add(_variable(vars(module), name), (id(vars(module)), name), f"{module.__name__}.{name}")
        self._add_classes(self._reads)

    def _add_function(self, function: types.FunctionType, made: types.FunctionType | None) -> None:
        """Copy the variables that a function names and captures, and its defaults. `made`: its rewritten copy."""
        space = function.__globals__
        for name in sorted(loaded_names(function.__code__)[0] & space.keys()):
            self._add(_variable(space, name), (id(space), name), name)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._add(_cell(cell), (id(cell), ""), name)
        for one in (function,) if made is None else (function, made):
            for attribute in ("__defaults__", "__kwdefaults__"):
                place = f"a default argument of {function.__name__}"
                self._add(_attribute(one, attribute), (id(one), attribute), place)

    def _add_further_functions(self, known: set[types.FunctionType]) -> None:
        """Copy the variables that functions of transforms name, as far as possible: native code does not read them."""
        done: set[types.FunctionType] = set(known)
        while left := [function for function in self._copies.functions if function not in done]:
            done.update(left)
            for function in left:
                try:
                    self._add_function(function, None)
                except NotKept:
                    continue
        names = (loaded_names(function.__code__)[1] for function in done)
        try:
            self._add_classes(frozenset().union(*names))
        except NotKept:
            return

    def _add_classes(self, names: frozenset[str]) -> None:
        """Copy the class variables of these names, of all classes of the script that were met."""
        done: set[type] = set()
        while left := [kind for kind in self._copies.classes if kind not in done]:
            done.update(left)
            for kind in left:
                for parent in kind.__mro__:
                    if is_of_library(parent.__module__):
                        continue
                    for name in sorted(names & vars(parent).keys()):
                        self._add(_class_variable(parent, name), (id(parent), name), f"{parent.__name__}.{name}")

    def _add(self, access: tuple[Callable[[], Any], Callable[[Any], None]], space: tuple[int, str], place: str) -> None:
        if space in self._spaces:
            return
        self._spaces.add(space)
        read, write = access
        live = read()
        kept = live if live is _ABSENT else self._copies.copy(live, place)
        self._places.append(_Place(read, write, kept))


def _variable(space: dict[str, Any], name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    def write(value: Any) -> None:
        if value is _ABSENT:
            space.pop(name, None)
        else:
            space[name] = value

    return lambda: space.get(name, _ABSENT), write


def _class_variable(kind: type, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    def write(value: Any) -> None:
        if value is _ABSENT:
            type.__delattr__(kind, name)
        else:
            type.__setattr__(kind, name, value)

    return lambda: vars(kind).get(name, _ABSENT), write


def _cell(cell: types.CellType) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    def read() -> Any:
        try:
            return cell.cell_contents
        except ValueError:  # a name that is not bound yet
            return _ABSENT

    def write(value: Any) -> None:
        if value is _ABSENT:
            del cell.cell_contents
        else:
            cell.cell_contents = value

    return read, write


def _attribute(function: types.FunctionType, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(function, name), lambda value: setattr(function, name, value)
