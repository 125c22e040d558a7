"""headrace keeps GPUs fed: it finds out why an image training job waits, and removes the wait.

Importing this package is light: torch, boto3 and numpy are imported when a name that needs them is first used.

The folders, ground first. A folder imports only from folders above it in this list. A large folder
has rooms, listed in its `__init__`: a room imports only from rooms above it, the modules beside the rooms from all of them.

- `system`: what the machine gives a process: cores, memory, disks, GPUs, open files; private and atomic files, redaction.
- `images`: one image: decode it, read its header, insert restart markers.
- `session`: what a watched run recorded, as data.
- `transforms`: image transforms as data, and their compilation for the native engine.
- `datasets`: records, packed shards, and sources: folders, archives, lists, object stores, pipes.
- `attach`: hooks in the user's process that time the training and write the session.
- `diagnosis`: from a session to causes and predicted fixes.
- `packing`: `headrace pack`.
- `gpu`: decoding, augmentation and the last steps of a batch on the GPU.
- `loading`: `Loader`: order, caches, feed, resume.
- `inspection`: `inspect`, `verify`, `doctor`.
- `accelerate`: `headrace run`.
- `training`: `headrace train`, `tune`, `evaluate`, `predict`, `export`.
- `report`: a diagnosis as terminal screen, page, JSON and other formats.
- `profiling`: `headrace diagnose` and `watch`: run a job, record, measure, diagnose, re-measure fixes.
- `cost`: `headrace cost`: time and money of an epoch and a run.
- `trials`: `headrace trials`: published experiments, repeated on this machine.
- `launch`: `headrace launch`: training jobs for SageMaker, sent, followed, or run here.
- `demo`, `callbacks`, `cli`: the demonstration, callbacks of other trainers, the command line.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if sys.platform != "linux" and not TYPE_CHECKING:
    raise ImportError(
        "headrace runs on Linux only. On Windows use WSL 2, on macOS a Linux container (docs/guides/install.md says how)"
    )

from headrace import errors

if TYPE_CHECKING:
    from headrace import transforms
    from headrace._native import __version__
    from headrace.datasets.open import open
    from headrace.datasets.records.dataset import Dataset
    from headrace.images.decode import checkpoint_index, decode_into
    from headrace.images.restart_markers import restart_markers
    from headrace.inspection.verify import verify
    from headrace.loading.eval_loader import eval_loader
    from headrace.loading.loader import Loader
    from headrace.loading.show_batch import show_batch
    from headrace.packing import pack
    from headrace.profiling.in_process import watch

__all__ = [
    "Dataset",
    "Loader",
    "__version__",
    "checkpoint_index",
    "decode_into",
    "errors",
    "eval_loader",
    "open",
    "pack",
    "restart_markers",
    "show_batch",
    "transforms",
    "verify",
    "watch",
]

# A public name and the module that defines it; `transforms` is a module itself.
_LAZY = {
    "Dataset": "headrace.datasets.records.dataset",
    "Loader": "headrace.loading.loader",
    "__version__": "headrace._native",
    "checkpoint_index": "headrace.images.decode",
    "decode_into": "headrace.images.decode",
    "eval_loader": "headrace.loading.eval_loader",
    "open": "headrace.datasets.open",
    "pack": "headrace.packing",
    "restart_markers": "headrace.images.restart_markers",
    "show_batch": "headrace.loading.show_batch",
    "transforms": "headrace",
    "verify": "headrace.inspection.verify",
    "watch": "headrace.profiling.in_process",
}

if not TYPE_CHECKING:  # else a type checker would accept any name

    def __getattr__(name: str) -> object:
        import importlib

        if name not in _LAZY:
            from headrace.system.text.arguments import unknown_name
            from headrace.system.text.other_libraries import OF_HEADRACE

            raise unknown_name("module 'headrace'", name, __all__, OF_HEADRACE)
        if _LAZY[name] == "headrace":
            value = importlib.import_module(f"headrace.{name}")
        else:
            value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
