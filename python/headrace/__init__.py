"""headrace keeps GPUs fed: it finds why an image training job waits, and removes the wait.

Importing this package is light: torch, boto3 and numpy are loaded when a name that needs them is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace import errors

if TYPE_CHECKING:
    from headrace import transforms
    from headrace.decode import checkpoint_index, decode_into
    from headrace.loader import Loader
    from headrace.packing import pack
    from headrace.records import Dataset
    from headrace.restart import restart_markers
    from headrace.sources import open_to_load as open
    from headrace.verification import verify
    from headrace.watched import watch

__all__ = [
    "Dataset",
    "Loader",
    "checkpoint_index",
    "decode_into",
    "errors",
    "open",
    "pack",
    "restart_markers",
    "transforms",
    "verify",
    "watch",
]

# Name -> (module, attribute); None: the module itself.
_LAZY: dict[str, tuple[str, str | None]] = {
    "Dataset": ("headrace.records", "Dataset"),
    "Loader": ("headrace.loader", "Loader"),
    "checkpoint_index": ("headrace.decode", "checkpoint_index"),
    "decode_into": ("headrace.decode", "decode_into"),
    "open": ("headrace.sources", "open_to_load"),
    "pack": ("headrace.packing", "pack"),
    "restart_markers": ("headrace.restart", "restart_markers"),
    "transforms": ("headrace.transforms", None),
    "verify": ("headrace.verification", "verify"),
    "watch": ("headrace.watched", "watch"),
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
