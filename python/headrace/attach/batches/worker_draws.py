"""Record the states of the random number generators that a worker uses: copies of one generator draw the same numbers.

Read are the global generators of Python, NumPy and PyTorch, and those found in the dataset, its transforms, the collate
function and the modules of the script that define them. States are read before the first batch and after the first two, and
nothing is drawn.
Only datasets with indices are asked: workers that read one stream may have to draw alike to divide it.
"""

from __future__ import annotations

import functools
import random
import sys
import time
import types
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.attach.batches.batch_values import digest
from headrace.attach.record import load_hooks
from headrace.attach.record.recorder import Recorder
from headrace.attach.record.script_files import is_own

__all__ = ["MOST_PASSES", "WorkerDraws"]

LAST_READ = 2
"""Read the states before the first batch, and after each one up to this."""

MOST_PASSES = 8
"""Read the states in the workers of so many passes over a loader."""

MOST_OBJECTS, MOST_GENERATORS, MOST_CHILDREN, DEEPEST = 400, 20, 64, 6

NOT_ENTERED = ("torch", "torchdata", "webdataset", "datasets", "litdata", "streaming", "numpy", "PIL", "builtins")
"""Top names of modules whose objects are not looked into: they may keep generators that draw alike on purpose."""

ENTERED = ("torch.nn.", "torch.utils.data.dataset")
"""Beginnings of modules whose objects are looked into all the same: containers of the script's own objects."""


class WorkerDraws:
    """Reads the generators of one worker process. passes: over its loader, before this one. An error ends the reading only."""

    def __init__(self, recorder: Recorder, loader: int, worker: int, passes: int) -> None:
        self._recorder = recorder
        self._loader = loader
        self._worker = worker
        self._off = passes > MOST_PASSES
        self._made = 0
        self._found: list[tuple[str, Any]] = []

    def before_first(self, fetcher: Any, collate: Any) -> None:
        """Find the generators, and read them. Call it before the first batch is made."""
        self._off = self._off or type(fetcher).__name__ != "_MapDatasetFetcher"
        if not self._off:
            try:
                self._found = list(_generators({"dataset": fetcher.dataset, "collate_fn": collate}))
            except Exception:
                self._fail()
            self._read()

    def after_batch(self) -> None:
        """Read the generators again, after the first batches."""
        self._made += 1
        self._read()
        if self._made >= LAST_READ:
            self._off = True
            self._found = []

    def _fail(self) -> None:
        self._off = True
        load_hooks.disable("reading of random number generators")

    def _read(self) -> None:
        if self._off:
            return
        try:
            import torch

            with torch._C.DisableTorchFunction():
                states = [
                    {"name": name, "type": kind, "state": state, "seed": seed}
                    for name, generator in (*_global_generators(), *self._found)
                    for kind, state, seed in _state(generator)
                ]
        except Exception:
            self._fail()
            return
        self._recorder.line(
            "draws", loader=self._loader, worker=self._worker, time_s=time.monotonic(), made=self._made, generators=states
        )


def _global_generators() -> Iterator[tuple[str, Any]]:
    yield "random", random
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None:
        yield "torch", torch.default_generator
    if numpy is not None and "numpy.random" in sys.modules:
        yield "np.random", numpy.random.mtrand._rand


def _generators(roots: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the generators in some objects and in the modules of the script that define them, each with its place."""
    known = {id(generator) for _, generator in _global_generators()}
    seen: set[int] = set()
    modules: dict[str, None] = {}
    waiting = [(name, root, 0) for name, root in roots.items()]
    count = 0
    while waiting and len(seen) < MOST_OBJECTS and count < MOST_GENERATORS:
        name, each, depth = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        if _is_generator(each):
            if id(each) not in known:
                known.add(id(each))
                count += 1
                yield name, each
            continue
        modules[_module_of(each)] = None
        if depth < DEEPEST:
            waiting += [(name + way, child, depth + 1) for way, child in _children(each)]
    for module in modules:
        file = getattr(sys.modules.get(module), "__file__", None)
        names = vars(sys.modules[module]) if isinstance(file, str) and is_own(file) else {}
        for name, each in list(names.items()):
            if _is_generator(each) and id(each) not in known and count < MOST_GENERATORS:
                known.add(id(each))
                count += 1
                yield f"{name} (in {Path(str(file)).name})", each


def _module_of(thing: Any) -> str:
    own = getattr(thing, "__module__", None) if isinstance(thing, types.FunctionType) else type(thing).__module__
    return own if isinstance(own, str) else ""


def _children(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a plain container or an object of the script holds, each with the way to it. No code of it is called."""
    if type(thing) in (list, tuple):
        yield from ((f"[{number}]", child) for number, child in enumerate(thing[:MOST_CHILDREN]))
        return
    if type(thing) is dict:
        inner = list(thing.items())[:MOST_CHILDREN] if len(thing) <= MOST_CHILDREN else []
        yield from ((f"[{key!r}]", child) for key, child in inner if isinstance(key, str | int))
        return
    if type(thing) is functools.partial:
        yield from ((".func", thing.func), (".args", thing.args), (".keywords", thing.keywords))
        return
    if type(thing) is types.MethodType:
        yield ".__self__", thing.__self__
        return
    module = _module_of(thing)
    if isinstance(thing, type | types.ModuleType) or (
        module.partition(".")[0] in NOT_ENTERED and not module.startswith(ENTERED)
    ):
        return
    if type(thing) is types.FunctionType:
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False):
            with suppress(ValueError):  # an empty cell: the name is bound later, or was deleted
                yield f".{name}", cell.cell_contents
        return
    for owner in type(thing).__mro__:
        if is_own(getattr(sys.modules.get(owner.__module__), "__file__", None) or ""):
            of_class = list(vars(owner).items())[:MOST_CHILDREN]
            yield from ((f".{name}", child) for name, child in of_class if _is_generator(child))
    try:
        own = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return
    if type(own) is dict:
        yield from ((f".{name}", child) for name, child in list(own.items())[:MOST_CHILDREN])


def _is_generator(thing: Any) -> bool:
    return (type(thing).__module__, type(thing).__name__) in KINDS


def _state(generator: Any) -> Iterator[tuple[str, str, str | None]]:
    """Yield class, digest of the state, and digest of the part of it that drawing leaves as it is."""
    if generator is random or type(generator) is random.Random:
        state = generator.getstate()
        yield "random.Random", digest(repr(state).encode()), None
        return
    kind = KINDS.get((type(generator).__module__, type(generator).__name__))
    if kind == "torch.Generator":
        yield kind, digest(bytes(generator.get_state().tolist())), str(generator.initial_seed())
    elif kind == "numpy RandomState":
        name, keys, *rest = generator.get_state()
        yield kind, digest(keys.tobytes() + repr((name, rest)).encode()), None
    elif kind is not None:
        state = generator.bit_generator.state
        inner = state.get("state", {})
        seed = str(inner["inc"]) if isinstance(inner, dict) and "inc" in inner else None  # PCG64
        yield kind, digest(repr(_plain(state)).encode()), seed and digest(seed.encode())


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return state.tobytes() if hasattr(state, "tobytes") else state


KINDS = {
    ("random", "Random"): "random.Random",
    ("torch._C", "Generator"): "torch.Generator",
    ("numpy.random.mtrand", "RandomState"): "numpy RandomState",
    ("numpy.random._generator", "Generator"): "numpy Generator",
}
"""Classes of generators, by module and name."""
