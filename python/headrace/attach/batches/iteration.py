"""One pass over a loader while it is recorded."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["Iteration"]


class Iteration:
    """One pass over a loader, with the clocks of its current step. `end_s`: when its last `next()` returned.

    iterator: a weak reference to the iterator. thread: the one that called `next()`. contents: what
    `headrace.attach.batches.contents` notes of the pass.
    """

    __slots__ = (
        "__weakref__", "batch_bytes", "contents", "count", "cpu_s", "drained", "end_s", "epoch", "items", "iterator", "loader",
        "optimizing", "process_cpu_s", "queue_s", "ready", "session", "start_cpu_s", "start_queue_s", "start_s", "thread",
        "wait_s",
    )  # fmt: skip

    def __init__(self, iterator: Any, loader: int, epoch: int, session: int = 0) -> None:
        self.iterator: Callable[[], Any] = lambda: self  # of an iterator without weak references, the step never ends by itself
        with suppress(TypeError):
            self.iterator = weakref.ref(iterator)
        self.thread = 0
        self.session = session
        self.loader = loader
        self.epoch = epoch
        self.contents: Any = None
        self.count = 0
        self.optimizing = False
        self.end_s: float | None = None
        self.start_s = self.wait_s = self.cpu_s = self.start_cpu_s = self.process_cpu_s = 0.0
        self.drained: int | None = None
        self.queue_s: float | None = None
        self.start_queue_s: float | None = None
        self.ready: int | None = None
        self.items: int | None = None
        self.batch_bytes: int | None = None
