"""The hook module of `headrace diagnose`: installs everything that times a training job."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable

from headrace.attach import fetch, other_loaders, pauses, ranks, startup, steps, transfers
from headrace.attach.device_clock import CudaClock, DeviceClock
from headrace.attach.recorder import recorder

__all__ = ["DEVICE_CLOCK_VARIABLE", "install"]

DEVICE_CLOCK_VARIABLE = "HEADRACE_DEVICE_CLOCK"
"""`module:Class` of a `DeviceClock` for a device other than CUDA."""


def install() -> None:
    """Patch PyTorch in this process. Each part that cannot be installed is reported and left out."""
    target = recorder()
    clock = _device_clock()
    watch = steps.install(target, clock)
    parts: tuple[tuple[str, Callable[[], None]], ...] = (
        ("timing of batches", lambda: fetch.install(target)),
        ("timing of other loaders", lambda: other_loaders.install(watch)),
        ("timing of pauses", lambda: pauses.install(target)),
        ("timing of ranks", ranks.install),
        ("timing of transfers", lambda: transfers.install(watch.step_clock)),
    )
    for name, part in parts:
        try:
            part()
        except Exception:
            startup.disable(name)


def _device_clock() -> DeviceClock:
    module, _, name = os.environ.get(DEVICE_CLOCK_VARIABLE, "").partition(":")
    if not module:
        return CudaClock()
    clock: DeviceClock = getattr(importlib.import_module(module), name)()
    return clock
