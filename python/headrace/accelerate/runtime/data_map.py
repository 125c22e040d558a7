"""`headrace run --data-map A=B`: when the script opens a file below folder A for reading, open its copy below folder B.

The script lists and checks its own tree A; only opening a file for reading goes to the copy. A file that B lacks is read from
A. Writing is never redirected. `mapped` is what native readers ask; `install` redirects `open`, and `redirect_readers` the
readers of libraries that open files in C.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.attach.record.unseen_frames import drop_own_frames

__all__ = ["DATA_MAP", "install", "mapped", "redirect_readers", "variables"]

DATA_MAP = "HEADRACE_DATA_MAP"
"""Environment variable that passes the pairs of folders to the script's processes, as JSON."""

#: Functions of libraries that read the file named by their first argument, without Python's `open`.
READERS = (("cv2", "imread"), ("torchvision.io", "read_file"), ("torchvision.io.image", "read_file"))

_pairs: list[tuple[str, str]] = []


def variables(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Return the environment variable that passes pairs of folders (A, B) to `install`."""
    return (
        {DATA_MAP: json.dumps([[os.path.normpath(Path(folder).absolute()) for folder in pair] for pair in pairs])}
        if pairs
        else {}
    )


def mapped(path: str) -> str:
    """Return the path to read instead of `path`: the copy below B if `path` lies below A and the copy exists, else `path`."""
    if not _pairs:
        return path
    if ".." in path:
        return _mapped_upwards(path)
    whole = path if path.startswith("/") else os.path.abspath(path)  # noqa: PTH100 (one of these lines runs for every file)
    for folder, copy in _pairs:
        if whole.startswith(folder):
            candidate = copy + whole[len(folder) :]
            return candidate if os.path.isfile(candidate) else path  # noqa: PTH113
    return path


def _mapped_upwards(path: str) -> str:
    """Return `mapped(path)` for a path with `..`: it may leave A, and a link may lead elsewhere than the text says."""
    real = os.path.realpath(path)
    for folder, copy in _pairs:
        inside = os.path.realpath(folder) + "/"
        if real.startswith(inside):
            candidate = copy + real[len(inside) :]
            return candidate if os.path.isfile(candidate) else path  # noqa: PTH113
    return path


def install(environment: Mapping[str, str] = os.environ) -> None:
    """Redirect `open` by the folders in the environment variable. Called once in each process of the script."""
    text = environment.get(DATA_MAP)
    if not text or _pairs:
        return
    _pairs.extend((a.rstrip("/") + "/", b.rstrip("/") + "/") for a, b in json.loads(text))
    original = builtins.open

    def open_mapped(file: Any, mode: Any = "r", *arguments: Any, **options: Any) -> Any:
        try:
            return original(_for_reading(file) if mode in READING else file, mode, *arguments, **options)
        except BaseException as error:
            drop_own_frames(error)
            raise

    builtins.open = open_mapped
    io.open = open_mapped
    _redirect_in_workers()


def _redirect_in_workers() -> None:
    """Redirect the readers of libraries in worker processes that are spawned: those import the libraries anew."""
    worker = importlib.import_module("torch.utils.data._utils.worker")
    original = worker._worker_loop

    @functools.wraps(original)  # a spawned worker finds the function by its name
    def loop(*arguments: Any, **options: Any) -> Any:
        redirect_readers()
        return original(*arguments, **options)

    vars(worker)["_worker_loop"] = loop


#: Modes of `open` that only read.
READING = frozenset({"r", "rb", "rt", "br", "tr"})


def _for_reading(file: Any) -> Any:
    """Return the path to open in place of `file`: the mapped path as the same type, or `file` itself."""
    if not isinstance(file, str | bytes | os.PathLike):
        return file  # a descriptor
    path = os.fspath(file)
    text = os.fsdecode(path)
    found = mapped(text)
    if found == text:
        return file
    return os.fsencode(found) if isinstance(path, bytes) else found


def redirect_readers() -> None:
    """Redirect the image readers of imported libraries that open files in C. Called before a loader makes items."""
    if not _pairs:
        return
    for module_name, name in READERS:
        module = sys.modules.get(module_name)
        reader = getattr(module, name, None)
        if reader is not None and not hasattr(reader, "_headrace_data_map"):
            setattr(module, name, _redirected(reader))


def _redirected(reader: Callable[..., Any]) -> Callable[..., Any]:
    def read(path: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return reader(_for_reading(path), *arguments, **options)
        except BaseException as error:
            drop_own_frames(error)
            raise

    read._headrace_data_map = True  # type: ignore[attr-defined]
    read.__name__, read.__doc__ = getattr(reader, "__name__", "read"), reader.__doc__
    return read
