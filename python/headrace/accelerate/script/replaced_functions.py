"""Detect library functions that the script or a package has replaced (monkey patches): native code would ignore the patch.

Known by where a function's code comes from: its variables are those of its own module, whatever name it bears
(`functools.wraps` copies names). And a function is not another one than it was when a loader was first looked at.
"""

from __future__ import annotations

import builtins
import functools
import random
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.script.library_code import PYTHON, is_of

__all__ = [
    "foreign_reader",
    "is_own_function",
    "replaced_tool",
    "require_no_module_hooks",
    "require_own_functions",
    "require_own_readers",
]

PACKAGES = (PYTHON - {"unittest"}) | {"PIL", "headrace", "numpy", "timm", "torch", "torchvision", "typing_extensions"}
"""Packages that may define or patch functions in `MODULES` without causing a refusal. Mocks of `unittest` count as patches."""

GENERATED = ("_cython_", "namedtuple_")
"""Prefixes of the module names of code that Cython and `namedtuple` generate, which counts as the library's own."""

MODULES = (
    *("PIL.BmpImagePlugin", "PIL.GifImagePlugin", "PIL.PngImagePlugin", "PIL.PpmImagePlugin", "PIL.TiffImagePlugin"),
    *("PIL.Image", "PIL.ImageOps", "PIL.ImageEnhance", "PIL.ImageFilter", "PIL.ImageFile", "PIL.JpegImagePlugin"),
    *("PIL.WebPImagePlugin", "torch.utils.data._utils.collate", "torch.utils.data._utils.fetch"),
    "torch.utils.data.dataset",
    *("torch.utils.data._utils.worker", "torchvision.datasets.folder", "torchvision.datasets.vision"),
    *("torchvision.transforms.transforms", "torchvision.transforms.autoaugment", "torchvision.transforms.functional"),
    *("torchvision.transforms._functional_pil", "torchvision.transforms._functional_tensor"),
    *("torchvision.transforms.v2._transform", "torchvision.transforms.v2._container", "torchvision.transforms.v2._geometry"),
    *("torchvision.transforms.v2._color", "torchvision.transforms.v2._misc", "torchvision.transforms.v2._meta"),
    *("torchvision.transforms.v2._type_conversion", "torchvision.transforms.v2._auto_augment"),
    *("torchvision.transforms.v2._augment", "torchvision.transforms.v2.functional"),
    *("torchvision.transforms.v2.functional._geometry", "torchvision.transforms.v2.functional._color"),
    *("torchvision.transforms.v2.functional._misc", "torchvision.transforms.v2.functional._meta"),
    *("torchvision.transforms.v2.functional._type_conversion", "torchvision.transforms.v2.functional._augment"),
    *("timm.data.transforms", "timm.data.auto_augment", "timm.data.random_erasing", "timm.data.readers.reader_image_folder"),
    *("timm.data.dataset", "random"),
)
"""Modules whose functions and methods native code replaces. The loader is refused if one of them was patched."""

NAMES = {
    "torch": ("as_tensor", "empty", "from_numpy", "rand", "randint", "randperm", "stack", "tensor", "where", "zeros"),
    "torch.utils.data": ("default_collate",),
    "torch.utils.data.dataloader": ("default_collate",),
    "numpy": ("array", "asarray"),
    "numpy.random": ("choice", "normal", "rand", "randint", "random", "uniform"),
}
"""As `MODULES`, for large modules: only the functions named here are checked for patches."""

FORMATS = frozenset({"BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"})
"""Pillow's names of the formats that native code decodes."""

_known: dict[str, list[tuple[Any, str, Any, str]]] = {
    "": [(vars(builtins), "open", builtins.open, "builtins"), (vars(random), "random", random.random, "random")]
}
"""Each checked function of a module, as first found: the dict that holds it, its name there, the function, its origin."""


def require_own_functions() -> None:
    """Raise `Unsupported` if one of the library functions that native code replaces has been patched."""
    for name in (*MODULES, *NAMES):
        if name not in _known and name in sys.modules:
            found = []
            for one in _functions(name, vars(sys.modules[name])):
                _, own, value, place = one
                if is_own_function(value):
                    found.append(one)
                elif _is_defined(name, place, own):
                    raise Unsupported(f"{place}.{own} is replaced")
            _known[name] = found
    for functions in _known.values():
        for held, own, value, place in functions:
            if held.get(own) is not value:
                raise Unsupported(f"{place}.{own} is replaced")
    require_own_readers()
    require_no_module_hooks()


def replaced_tool(package: str) -> str | None:
    """Return the name of a function of torch or NumPy (`package`) that the script has replaced, or None.

    headrace calls these itself where it computes tensors and images in the place of a library.
    """
    for name, functions in NAMES.items():
        module = sys.modules.get(name) if name.partition(".")[0] == package else None
        for own in functions if module is not None else ():
            if not is_own_function(getattr(module, own, None)):
                return f"{name}.{own}"
    return None


def require_no_module_hooks() -> None:
    """Raise `Unsupported` if a hook is registered for the forward of all modules, which transforms are, too."""
    modules: Any = sys.modules.get("torch.nn.modules.module")
    if modules is not None and (modules._global_forward_hooks or modules._global_forward_pre_hooks):
        raise Unsupported("a hook is registered for the forward of all modules")


def require_own_readers() -> None:
    """Raise `Unsupported` if Pillow would try an image plugin of the script before its own (`foreign_reader`)."""
    if (reader := foreign_reader()) is not None:
        raise Unsupported(f"{reader} is not Pillow's own")


def foreign_reader() -> str | None:
    """Return the first foreign plugin that `Image.open` tries before a format that native code decodes, or None."""
    pillow: Any = sys.modules.get("PIL.Image")
    asked = [one for one in pillow.ID if one in pillow.OPEN] if pillow is not None else []
    last = max((number for number, one in enumerate(asked) if one in FORMATS), default=-1)
    foreign = (one for one in asked[: last + 1] if not is_own_function(pillow.OPEN[one][0]))
    return next((f"PIL.Image.OPEN[{one!r}]" for one in foreign), None)


def _functions(module: str, names: Mapping[str, Any]) -> Iterator[tuple[Any, str, Any, str]]:
    wanted = NAMES.get(module)
    for own, value in list(names.items()):
        if isinstance(value, type):
            if value.__module__ == module and wanted is None:
                place = f"{module}.{own}"
                yield from ((vars(value), key, one, place) for key, one in list(vars(value).items()) if _may_run(one))
        elif _may_run(value) and (wanted is None or own in wanted):
            yield names, own, value, module


def _is_defined(module: str, place: str, own: str) -> bool:
    """Return whether a module itself defines a name, as far as its code tells: packages add methods to Pillow's images.

    `place`: the module, or the class in it.
    """
    try:
        code = sys.modules[module].__spec__.loader.get_code(module)  # type: ignore[union-attr]
    except Exception:
        return True
    kind = place[len(module) + 1 :]
    codes = [one for one in code.co_consts if isinstance(one, types.CodeType) and one.co_name == kind] if kind else [code]
    return not codes or any(own in one.co_names for one in codes)


def _may_run(value: Any) -> bool:
    return callable(value) or isinstance(value, staticmethod | classmethod | property)


def is_own_function(value: Any) -> bool:
    """Return whether calling or reading a value runs only code of the packages in `PACKAGES`."""
    if isinstance(value, property):
        return all(is_own_function(part) for part in (value.fget, value.fset, value.fdel) if part is not None)
    if isinstance(value, staticmethod | classmethod | types.MethodType):
        return is_own_function(value.__func__)
    if isinstance(value, functools.partial | functools.partialmethod):
        return is_own_function(value.func)
    # What a decorator of a package has made, such as `torch.no_grad()`, calls the function that it wraps.
    wrapped = None if isinstance(value, type) else getattr(value, "__wrapped__", None)
    if wrapped is not None and not is_own_function(wrapped):
        return False
    if isinstance(value, types.FunctionType):
        return _is_of_package(value.__globals__.get("__name__"))
    kind = value if isinstance(value, type) else type(value)
    return _is_of_package(kind.__module__)


def _is_of_package(name: Any) -> bool:
    return is_of(name, PACKAGES) or (isinstance(name, str) and name.startswith(GENERATED))
