"""Override arguments of the job's training loader (number of workers, pinning, prefetch), or its threads, to re-measure a fix.

The environment holds the settings as JSON: `{"match": {"batch_size": 64, "num_workers": 2}, "set": {"num_workers": 8}}`. Only
loaders whose arguments match are changed, so that a validation loader keeps its arguments. `{"threads": 1}` sets the threads of
PyTorch and OpenCV, also where the script sets more. `{"flush_denormal": true}` lets PyTorch take denormal numbers for 0.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from headrace.attach.record import load_hooks

__all__ = ["OVERRIDES_VARIABLE", "install"]

OVERRIDES_VARIABLE = "HEADRACE_OVERRIDES"

NEEDS_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
"""DataLoader arguments that raise an error if `num_workers` is 0."""


def install() -> None:
    """Patch `DataLoader.__init__`, limit the threads, or flush denormals. Raise `ValueError` if the settings are not JSON."""
    settings = json.loads(os.environ.get(OVERRIDES_VARIABLE, "{}"))
    if settings.get("threads"):
        limit = int(settings["threads"])
        _limit_threads(sys.modules["torch"], "set_num_threads", limit)
        load_hooks.when_imported("cv2", lambda cv2: _limit_threads(cv2, "setNumThreads", limit))
    if settings.get("flush_denormal"):
        sys.modules["torch"].set_flush_denormal(True)
    if settings.get("set"):
        from torch.utils.data import DataLoader

        DataLoader.__init__ = _changed_init(DataLoader.__init__, settings.get("match", {}), settings["set"])


def _limit_threads(module: Any, name: str, limit: int) -> None:
    """Set the threads of a library, and let its function set no more. OpenCV: a negative number means all, 0 means none."""
    original = getattr(module, name)
    original(limit)

    def set_threads(number: int) -> None:
        original(min(number, limit) if number >= 0 else limit)

    setattr(module, name, set_threads)


def _changed_init(original: Callable[..., None], match: dict[str, Any], changes: dict[str, Any]) -> Callable[..., None]:
    signature = inspect.signature(original)

    def __init__(self: Any, *args: Any, **options: Any) -> None:
        bound = signature.bind(self, *args, **options)
        given = {**bound.arguments}
        given.pop("self", None)
        if not _matches(signature, given, match):
            original(self, *args, **options)
            return
        given.update(changes)
        if given.get("num_workers") == 0:
            given = {name: value for name, value in given.items() if name not in NEEDS_WORKERS}
        original(self, **given)
        self._headrace_overridden = tuple(changes)

    return __init__


def _matches(signature: inspect.Signature, given: dict[str, Any], match: dict[str, Any]) -> bool:
    """Return whether the arguments, or their defaults, equal those in `match`."""
    for name, wanted in match.items():
        value = given.get(name, signature.parameters[name].default)
        if name == "batch_size" and given.get("batch_sampler") is not None:
            value = getattr(given["batch_sampler"], "batch_size", None)
        if value != wanted:
            return False
    return True
