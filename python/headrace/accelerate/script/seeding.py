"""Check that a `worker_init_fn` can do nothing but seed the random generators of its worker.

The instructions of the function are read, not its source. Each module, function and attribute that they load is known, and
they store nothing but local variables. So the function may be called anywhere: apart from the states of the shared generators
of torch, `random` and NumPy nothing is another afterwards.
"""

from __future__ import annotations

import builtins
import dis
import functools
import random
import sys
import types
from typing import Any

import numpy as np

__all__ = ["only_seeds"]

#: Modules that a `worker_init_fn` may use, and the names that it may load from each.
MODULES: dict[str, frozenset[str]] = {
    "random": frozenset({"seed", "random"}),
    "numpy": frozenset({"random", "uint32", "int64"}),
    "numpy.random": frozenset({"seed", "random", "get_state"}),
    "torch": frozenset({"initial_seed", "manual_seed", "seed", "random", "utils", "cuda"}),
    "torch.random": frozenset({"initial_seed", "manual_seed", "seed"}),
    "torch.cuda": frozenset({"manual_seed", "manual_seed_all"}),
    "torch.utils": frozenset({"data"}),
    "torch.utils.data": frozenset({"get_worker_info"}),
}

#: Attributes that a `worker_init_fn` may read of numbers and of the result of `get_worker_info`.
ATTRIBUTES = frozenset({"id", "seed", "num_workers"})

#: Built-in functions that a `worker_init_fn` may call.
BUILTINS = frozenset({"abs", "int", "max", "min", "pow", "range", "round"})

#: `worker_init_fn`s of frameworks that only seed, also inside `functools.partial` with values.
FRAMEWORKS = (
    ("lightning.fabric.utilities.seed", "pl_worker_init_function"),
    ("lightning_fabric.utilities.seed", "pl_worker_init_function"),
    ("transformers.trainer_utils", "seed_worker"),
    ("timm.data.loader", "_worker_init"),
)

VALUES = (type(None), bool, int, float, str)
DEPTH = 4
"""Follow calls of the script's functions to this depth. A `worker_init_fn` with deeper calls is refused."""

#: Instructions that store outside of local variables, or make code that could: not allowed in a `worker_init_fn`.
FORBIDDEN = (
    *("STORE_GLOBAL", "STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "STORE_DEREF", "STORE_NAME", "DELETE_", "MAKE_FUNCTION"),
    *(
        "YIELD_",
        "RETURN_GENERATOR",
        "LOAD_NAME",
        "LOAD_BUILD_CLASS",
        "LOAD_SUPER",
        "LOAD_CLASSDEREF",
        "IMPORT_STAR",
        "BEFORE_WITH",
    ),
)

_UNKNOWN = object()
"""Stands for a number, or for the result of `get_worker_info`."""


def only_seeds(function: Any, *, forked: bool = True) -> bool:
    """Return whether a `worker_init_fn` can do nothing but seed random generators.

    `forked`: its workers start with the variables of this process. Others may have other numbers in them.
    """
    if type(function) is functools.partial:
        given = (*function.args, *function.keywords.values())
        plain = all(type(value) in VALUES for value in given) and not vars(function)
        return plain and only_seeds(function.func, forked=forked)
    frameworks = (getattr(sys.modules.get(module), name, None) for module, name in FRAMEWORKS)
    return any(function is one for one in frameworks if one is not None) or _seeds(function, DEPTH, forked)


def _seeds(function: Any, depth: int, forked: bool) -> bool:
    if type(function) is not types.FunctionType or depth == 0:
        return False
    given = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if not all(type(value) in VALUES for value in given):
        return False
    return _Instructions(function, depth, forked).seeds()


class _Instructions:
    """The byte code of one function, and the modules and functions that its local variables hold."""

    def __init__(self, function: types.FunctionType, depth: int, forked: bool) -> None:
        self._function = function
        self._depth = depth
        self._forked = forked
        self._all = [one for one in dis.get_instructions(function) if one.opname not in ("CACHE", "EXTENDED_ARG")]
        stored = [name for one in self._all for name in _stored(one)]
        arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
        self._stored_once = {name for name in stored if stored.count(name) == 1} - set(arguments)
        self._locals: dict[str, Any] = {}
        self._imported: Any = _UNKNOWN  # the module whose names the next instructions take

    def seeds(self) -> bool:
        """Return whether each instruction is allowed in a function that only seeds generators."""
        loaded: Any = _UNKNOWN
        constant: Any = None
        for one in self._all:
            if one.opname.startswith(FORBIDDEN) or isinstance(one.argval, types.CodeType):
                return False
            if one.opname == "IMPORT_NAME":  # the constant before it is the tuple of names of `from name import …`
                self._imported = loaded = self._module(one.argval, takes_names=constant is not None)
            else:
                loaded = self._after(one, loaded)
            if loaded is self:
                return False
            constant = one.argval
        return True

    def _after(self, one: dis.Instruction, loaded: Any) -> Any:
        """Return the value after an instruction: a module, a function or `_UNKNOWN`; `self` if the value is not allowed."""
        name = one.opname
        if name in ("LOAD_GLOBAL", "LOAD_DEREF"):
            return self._named(one.argval, is_cell=name != "LOAD_GLOBAL")
        if name == "IMPORT_FROM":
            found = self._attribute(self._imported, one.argval)
            if isinstance(found, types.ModuleType):  # `import a.b.c as d` takes one name after the other
                self._imported = found
            return found
        if name in ("LOAD_ATTR", "LOAD_METHOD"):
            return self._attribute(loaded, one.argval)
        for local in _stored(one):
            if loaded is not _UNKNOWN and local not in self._stored_once:
                return self
            self._locals[local] = loaded
            loaded = _UNKNOWN
        if "LOAD_FAST" in name:
            return self._locals.get(one.argval[-1] if isinstance(one.argval, tuple) else one.argval, _UNKNOWN)
        return loaded if name in ("PUSH_NULL", "PRECALL", "NOP", "RESUME") else _UNKNOWN

    def _module(self, name: str, *, takes_names: bool) -> Any:
        """Return the module that an import names, or `self` if it is not allowed.

        Of `a.b` that is `a.b` with `takes_names` (`from a.b import c`), else `a` (`import a.b`).
        """
        module = sys.modules.get(name if takes_names else name.partition(".")[0])
        return module if name in MODULES and module is not None and self._is_known(module) else self

    def _named(self, name: str, *, is_cell: bool) -> Any:
        """Return the value of a global or captured variable; `self` if the value is not allowed."""
        if is_cell:
            names, cells = self._function.__code__.co_freevars, self._function.__closure__ or ()
            try:
                value = dict(zip(names, cells, strict=True))[name].cell_contents
            except (KeyError, ValueError):  # a variable of the function itself, or not bound yet
                return self
        elif name in self._function.__globals__:
            value = self._function.__globals__[name]
        else:
            return _UNKNOWN if name in BUILTINS and hasattr(builtins, name) else self
        if type(value) in VALUES or (isinstance(value, np.integer) and type(value).__module__ == "numpy"):
            return _UNKNOWN if self._forked else self
        if isinstance(value, types.ModuleType):
            return value if self._is_known(value) else self
        return value if self._is_seeding(value) or _seeds(value, self._depth - 1, self._forked) else self

    def _attribute(self, thing: Any, name: str) -> Any:
        if isinstance(thing, types.ModuleType):
            if not self._is_known(thing) or name not in MODULES[thing.__name__]:
                return self
            value = getattr(thing, name, None)
            known = (isinstance(value, types.ModuleType) and self._is_known(value)) or self._is_seeding(value)
            return value if known else self
        return _UNKNOWN if thing is _UNKNOWN and name in ATTRIBUTES else self

    def _is_known(self, module: types.ModuleType) -> bool:
        return module.__name__ in MODULES and sys.modules.get(module.__name__) is module

    def _is_seeding(self, value: Any) -> bool:
        """Return whether a value is one of the known seeding functions, and not a replacement by the script."""
        return any(value is one for one in _functions())


def _stored(one: dis.Instruction) -> list[str]:
    """Return the local variables that an instruction stores."""
    if not one.opname.startswith("STORE_FAST"):
        return []
    several = list(one.argval) if isinstance(one.argval, tuple) else [one.argval]
    return several if one.opname.count("STORE_FAST") == len(several) else several[:1]


def _functions() -> list[Any]:
    """Return the functions that seed a generator or return a seed, as their modules define them."""
    shared, numbers = random._inst, np.random.mtrand._rand
    found: list[Any] = [np.uint32, np.int64, np.random.mtrand.seed, np.random.mtrand.random, np.random.mtrand.get_state]
    for module, names in MODULES.items():
        for name in names:
            value = getattr(sys.modules.get(module), name, None)
            own = getattr(value, "__self__", None)
            in_torch = type(value) is types.FunctionType and _is_in(value, ("torch.random", "torch.cuda.random"))
            if own is shared or own is numbers or in_torch:
                found.append(value)
    worker = sys.modules["torch.utils.data._utils.worker"]
    return [*found, worker.get_worker_info]


def _is_in(function: types.FunctionType, modules: tuple[str, ...]) -> bool:
    """Return whether a function is that of a module, and its code is written there. Torch's compiler wraps some."""
    while (space := function.__globals__).get("__name__") in ("torch._compile", "torch._dynamo.eval_frame"):
        inner = vars(function).get("__wrapped__")
        if space is not vars(sys.modules[space["__name__"]]) or type(inner) is not types.FunctionType:
            return False
        function = inner
    name = function.__globals__.get("__name__")
    return name in modules and function.__globals__ is vars(sys.modules[name])
