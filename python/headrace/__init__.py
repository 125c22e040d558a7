"""headrace keeps GPUs fed: it finds why an image training job waits, and removes the wait.

Importing this package is light: torch, boto3 and numpy are loaded when a name that needs them is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace import errors

if TYPE_CHECKING:
    from headrace import transforms
    from headrace.decode import decode_into
    from headrace.loader import Loader
    from headrace.records import Dataset
    from headrace.sources import open_dataset as open

__all__ = ["Dataset", "Loader", "decode_into", "errors", "open", "transforms"]

# Name -> (module, attribute); None: the module itself.
_LAZY: dict[str, tuple[str, str | None]] = {
    "Dataset": ("headrace.records", "Dataset"),
    "Loader": ("headrace.loader", "Loader"),
    "decode_into": ("headrace.decode", "decode_into"),
    "open": ("headrace.sources", "open_dataset"),
    "transforms": ("headrace.transforms", None),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    module_name, attribute = _LAZY[name]
    module = importlib.import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
