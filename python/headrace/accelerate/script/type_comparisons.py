"""Find code of the script that looks at `type(x)`, which shows that a deferred tensor, or a lazy image, is a subclass.

`isinstance` and `__class__` do not.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.script.library_code import nested_codes
from headrace.accelerate.script.reached_code import is_instance, reached_codes
from headrace.accelerate.script.text import module_with

__all__ = ["compares_tensor_types", "require_types_of_images_unseen", "types_looked_at"]

_COMPARISON = re.compile(r"type\([^\n]{1,80}\)\s*(is|is\s+not|==|!=|in|not\s+in)\s[^\n]{0,60}\b(Tensor|tensor|Image)\b")

_OWN_CLASS = frozenset({"type(self)", "self.__class__", "__class__", "cls"})
"""The class in whose method a comparison stands, as `__eq__` asks for it: no tensor's and no image's."""

_TEXTS = frozenset(
    "print str repr format format_exception issubclass debug info warning warn error exception".split()  # noqa: SIM905 -- short
)
"""Functions and methods that make a text of a class, which is the same of a subclass, or ask for its bases."""

_OF_ARRAYS = ("monai.utils.type_conversion",)
"""Modules whose functions get arrays and tensors, never an image of Pillow: MONAI's readers make arrays of images."""


def compares_tensor_types() -> str | None:
    """Return the name of a module of the script that compares `type(…)` with a tensor class, or None."""
    return module_with(_COMPARISON)


def require_types_of_images_unseen(loader: Any) -> None:
    """Raise `Unsupported` if the items or the collate function of a DataLoader may look at the exact type of an image."""
    if "image" in types_looked_at(loader):
        raise Unsupported("its items look at the type of an image or tensor by type()", "isinstance")


def types_looked_at(loader: Any) -> frozenset[str]:
    """Return of which of "tensor" and "image" the items and the collate function of a DataLoader may look at the exact type.

    Comparisons with other classes do not count, nor texts of a class: `type(x) is list`, `type(x).__name__`. A type that is
    looked up in a dict, or compared with one that only running the code would tell, may be that of both.
    """
    found: set[str] = set()
    for code, values in reached_codes([loader.dataset, loader.collate_fn]):
        if "type" in code.co_names:
            lines = {line for one in nested_codes(code) for _, _, line in one.co_lines()}
            for line, others in _looks(code.co_filename):
                if line in lines:
                    kinds = _kinds(others, values)
                    found |= kinds - {"image"} if code.co_filename in _files(_OF_ARRAYS) else kinds
    return frozenset(found)


def _files(names: tuple[str, ...]) -> set[str | None]:
    """Return the files of those modules that are imported."""
    return {getattr(sys.modules[name], "__file__", None) for name in names if name in sys.modules}


def _kinds(others: tuple[str, ...], values: dict[str, Any]) -> set[str]:
    """Return of which things the exact type is looked at by a comparison with these classes, as they are written."""
    found: set[str] = set()
    bases: dict[str, Any] = {"tensor": torch.Tensor, "image": getattr(sys.modules.get("PIL.Image"), "Image", None)}
    kinds: list[Any] = [_class_of(other, values) for other in others]
    for name, base in bases.items():
        for kind in kinds if base is not None else ():
            is_class = is_instance(kind, type)
            if kind is not None and (not is_class or base in kind.__mro__ or (kind is not object and kind in base.__mro__)):
                found.add(name)
    return found


def _class_of(text: str, values: dict[str, Any]) -> Any:
    """Return the class that a dotted name refers to; None for `None`; the text itself if only running the code tells."""
    first, *names = text.split(".")
    found = None if text == "None" else values.get(first, getattr(sys.modules["builtins"], first, text))
    for name in names:
        found = vars(found).get(name, text) if isinstance(found, types.ModuleType) else text
    return found


@functools.lru_cache(256)
def _looks(file: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Return where a file looks at the type of a thing: the line, and the classes that it is compared with, as written."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    above = {part: node for node in ast.walk(tree) for part in ast.iter_child_nodes(node)}
    named = {
        (_function(node, above), node.targets[0].id)
        for node in above
        if isinstance(node, ast.Assign) and _is_type(node.value) and isinstance(node.targets[0], ast.Name)
    }
    found: list[tuple[int, tuple[str, ...]]] = []
    for node in above:
        variable = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        if _is_type(node) or (variable and (_function(node, above), node.id) in named):  # type: ignore[attr-defined]
            found.append((node.lineno, _compared(node, above)))  # type: ignore[attr-defined]
    return tuple((line, others) for line, others in found if others)


def _function(node: ast.AST, above: dict[ast.AST, ast.AST]) -> ast.AST:
    """Return the function in which a node stands, or the module."""
    while not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module):
        node = above[node]
    return node


def _is_type(node: ast.AST) -> bool:
    """Return whether an expression is `type(x)`, of anything but a constant and the object of a method."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type" and len(node.args) == 1):
        return False
    of = node.args[0]
    return not isinstance(of, ast.Constant) and not (isinstance(of, ast.Name) and of.id in ("self", "cls"))


def _compared(node: ast.AST, above: dict[ast.AST, ast.AST]) -> tuple[str, ...]:
    """Return the classes with which a type is compared, as they are written; `?` for what only running the code tells."""
    parent = above[node]
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        return ()  # where the variable is read, counts
    if isinstance(parent, ast.Attribute | ast.Expr) or (isinstance(parent, ast.Call) and parent.func is node):
        return ()
    if isinstance(parent, ast.Compare):
        return tuple(name for one in (parent.left, *parent.comparators) if one is not node for name in _classes(one))
    while not isinstance(parent, ast.stmt):
        if isinstance(parent, ast.FormattedValue) or (isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mod)):
            return ()
        if isinstance(parent, ast.Call) and getattr(parent.func, "attr", getattr(parent.func, "id", "")) in _TEXTS:
            return ()
        parent = above[parent]
    return () if isinstance(parent, ast.Raise | ast.Assert) else ("?",)


def _classes(node: ast.expr) -> Iterator[str]:
    """Yield the classes of one side of a comparison as dotted names; `?` for any other expression."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        for one in node.elts:
            yield from _classes(one)
    else:
        text = ast.unparse(node)
        if text not in _OWN_CLASS:
            yield "None" if text == "type(None)" else text if text.replace(".", "").isidentifier() else "?"
