"""Find code that uses the internals of torch's DataLoader iterators (worker processes, queues), which a native iterator lacks.

The text of the script's own modules is searched for the names. Of installed packages, a module counts that has imported one of
torch's iterator classes, unless it is known what the module does with them. A loader of such a job is taken over by lazy images
only (`lazy.loader`): the iterator, its workers and its queues are then torch's.
"""

from __future__ import annotations

import re

from headrace.accelerate.script.text import module_with, modules_beside

__all__ = ["looks_at_iterators"]

CLASSES = ("_BaseDataLoaderIter", "_MultiProcessingDataLoaderIter", "_SingleProcessDataLoaderIter")

ATTRIBUTES = (
    *("_data_queue", "_dataset_fetcher", "_index_queues", "_mark_worker_as_unavailable", "_next_data", "_next_index"),
    *("_pin_memory_thread", "_sampler_iter"),
    *("_pin_memory_thread_done_event", "_prefetch_factor", "_rcvd_idx", "_send_idx", "_task_info", "_tasks_outstanding"),
    *("_try_get_data", "_try_put_index", "_worker_init_fn", "_worker_pids_set", "_worker_queue_idx_cycle"),
    *("_worker_result_queue", "_workers", "_workers_done_event", "_workers_num_tasks", "_workers_status"),
)
"""Attributes of torch's iterators that a native iterator does not have. A script that names one keeps torch's iterator.

`_shutdown_workers`, and what the base class of both has, need no entry. Names that scripts use for their own are left out.
"""

HARMLESS = {
    "accelerate.data_loader": "changes the state of a StatefulDataLoader only",
    "fastai.data.load": "makes its own iterators, which are left alone",
    "lightning.pytorch.utilities.combined_loader": "ends an iterator before it drops it",
    "pytorch_lightning.trainer.supporters": "ends an iterator before it drops it",
    "pytorch_lightning.utilities.combined_loader": "ends an iterator before it drops it",
    "torchdata.stateful_dataloader.stateful_dataloader": "makes its own iterators, which are left alone",
}
"""Framework modules that import torch's iterator classes, and why a native iterator is safe with each."""

_LOOK = re.compile(
    rf"\b({'|'.join(CLASSES)})\b"
    rf"|(?<!\bself)\.({'|'.join(ATTRIBUTES)})\b"
    rf"|[\"']({'|'.join(ATTRIBUTES)})[\"']"
    r"|\bactive_children\(|\.children\(\s*(recursive\s*=\s*)?(True|False)\s*\)"
)


_without_classes: set[str] = set()


def looks_at_iterators() -> str | None:
    """Return the name of a module that uses internals of torch's iterators or looks for worker processes, or None."""
    return module_with(_LOOK) or _unknown_framework()


def _unknown_framework() -> str | None:
    """Return the name of an imported module that has one of torch's iterator classes, and is not known to be harmless."""
    for name, module in modules_beside(_without_classes):
        if name.startswith(("torch.", "headrace.")) or name in HARMLESS:
            continue
        held = getattr(module, "__dict__", {})
        if any(kind in held for kind in CLASSES):
            return name
    return None
