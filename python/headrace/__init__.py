"""headrace keeps GPUs fed: it finds why an image training job waits, and removes the wait.

Importing this package is light: torch, boto3 and numpy are loaded when a name that needs them is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace import errors

if TYPE_CHECKING:
    from headrace import transforms
    from headrace.datasets.open import open
    from headrace.datasets.records import Dataset
    from headrace.images.decode import checkpoint_index, decode_into
    from headrace.images.restart_markers import restart_markers
    from headrace.inspection.verify import verify
    from headrace.loading.loader import Loader
    from headrace.packing import pack
    from headrace.profiling.in_process import watch

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
    "Dataset": ("headrace.datasets.records", "Dataset"),
    "Loader": ("headrace.loading.loader", "Loader"),
    "checkpoint_index": ("headrace.images.decode", "checkpoint_index"),
    "decode_into": ("headrace.images.decode", "decode_into"),
    "open": ("headrace.datasets.open", "open"),
    "pack": ("headrace.packing", "pack"),
    "restart_markers": ("headrace.images.restart_markers", "restart_markers"),
    "transforms": ("headrace.transforms", None),
    "verify": ("headrace.inspection.verify", "verify"),
    "watch": ("headrace.profiling.in_process", "watch"),
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
