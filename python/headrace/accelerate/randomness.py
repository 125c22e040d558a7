"""Random generators for the parts of the script that headrace runs in the main process."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = ["holds_generator", "separate_randomness"]

GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)

#: Functions of these packages draw from the shared generators only. What their code names is not looked at.
LIBRARIES = frozenset({"PIL", "numpy", "timm", "torch", "torchvision"})

#: Look this deep into attributes, lists and captured values.
DEPTH = 4


@contextmanager
def separate_randomness(seed: int) -> Iterator[None]:
    """Seed the generators of torch, Python and NumPy for the block, and restore their states afterwards.

    Code of the script that its workers would run (target transforms, erasing, files that are not decoded natively) must not
    change the generators of the main process.
    """
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    torch.default_generator.manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def holds_generator(thing: Any) -> bool:
    """Whether an object or function refers to a random generator other than those that `separate_randomness` restores.

    Attributes, items of containers, and what a function captures, binds or names are looked at. Nothing is called.
    """
    shared = {id(random._inst), id(np.random.mtrand._rand), id(torch.default_generator)}
    found, seen = [thing], {id(thing)}
    for _ in range(DEPTH):
        if any(isinstance(one, GENERATORS) and id(one) not in shared for one in found):
            return True
        inner = {id(one): one for parent in found for one in _referred(parent)}
        found = [one for key, one in inner.items() if key not in seen]
        seen |= inner.keys()
    return any(isinstance(one, GENERATORS) and id(one) not in shared for one in found)


def _referred(thing: Any) -> Iterable[Any]:
    if isinstance(thing, dict):
        return thing.values()
    if isinstance(thing, list | tuple | set | frozenset):
        return thing
    if isinstance(thing, type | np.ndarray | torch.Tensor | str | bytes | int | float):
        return ()
    return [*_state(thing), *_named(thing), *_bound(thing)]


def _state(thing: Any) -> Iterable[Any]:
    """Return the attributes of an object of the script. Modules are not looked into."""
    return () if hasattr(thing, "__spec__") else list(getattr(thing, "__dict__", {}).values())


def _named(thing: Any) -> list[Any]:
    """Return what the code of a function, or of a callable object's own methods, names or captures."""
    if str(getattr(thing if hasattr(thing, "__code__") else type(thing), "__module__", "")).partition(".")[0] in LIBRARIES:
        return []
    methods = vars(type(thing)).values() if callable(thing) and not hasattr(thing, "__code__") else (thing,)
    values: list[Any] = []
    for function in (one for one in methods if hasattr(one, "__code__") and hasattr(one, "__globals__")):
        values += [function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__]
        values += [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        values += function.__defaults__ or ()
    return values


def _bound(thing: Any) -> list[Any]:
    """Return the object of a bound method, and the parts of a `functools.partial`."""
    names = ("__self__", "func", "args", "keywords")
    return [getattr(thing, name) for name in names if name in dir(type(thing))]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a name that is not bound yet
        return False
