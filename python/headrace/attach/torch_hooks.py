"""The hook module of `headrace diagnose`: install all hooks that time a PyTorch job."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path

from headrace.attach.batches import bare_loops, contents, fetch, other_loaders, steps
from headrace.attach.record import ending, load_hooks, open_step, stacks
from headrace.attach.record.device_clock import CudaClock, DeviceClock
from headrace.attach.record.processes import keep_open_step
from headrace.attach.record.recorder import recorder
from headrace.attach.training import first_step, loss, model_settings, pauses, ranks, transfers

__all__ = ["DEVICE_CLOCK_VARIABLE", "install", "pause", "resume"]

DEVICE_CLOCK_VARIABLE = "HEADRACE_DEVICE_CLOCK"
"""The `module:Class` of a `DeviceClock` for a device other than CUDA."""


def install() -> None:
    """Patch PyTorch in this process. A hook that cannot be installed is reported and left out."""
    target = recorder()
    clock = _device_clock()
    step_recorder = steps.install(target, clock)
    hooks: tuple[tuple[str, Callable[[], None]], ...] = (
        ("watching for standstills", lambda: keep_open_step(target)),
        ("timing of batches", lambda: fetch.install(target)),
        ("looking into batches", lambda: contents.install(step_recorder)),
        ("sampling of stacks", lambda: stacks.install(target)),
        ("timing of downloads", first_step.install),
        ("timing of other loaders", lambda: other_loaders.install(step_recorder)),
        ("reading of the model's settings", lambda: model_settings.install(target)),
        ("reading of the loss", lambda: loss.install(target)),
        ("noting of the end", lambda: ending.install(target)),
        ("timing of pauses", lambda: pauses.install(target)),
        ("timing of ranks", ranks.install),
        ("timing of loops without a loader", lambda: bare_loops.install(step_recorder)),
        ("timing of transfers", lambda: transfers.install(step_recorder.step_clock)),
    )
    for name, install_hook in hooks:
        try:
            install_hook()
        except Exception:
            load_hooks.disable(name)


def pause(error: BaseException | None = None) -> None:
    """End the session in this process, which goes on: write the buffers, then record nothing until `resume`.

    `error`: the exception that ended the training, if one did.
    """
    stacks.pause()
    open_step.stop()
    for step_recorder in steps.STEP_RECORDERS[:1]:
        ending.note_error(step_recorder.recorder, error)
    for step_recorder in steps.STEP_RECORDERS:
        step_recorder.operators.cancel()
        step_recorder.step_clock.drain()
        step_recorder.off = True
        step_recorder.recorder.close()


def resume(folder: Path) -> bool:
    """Record into another session with the installed hooks. Return False if no hooks are installed in this process yet."""
    for step_recorder in steps.STEP_RECORDERS:
        step_recorder.recorder.move(folder)
        step_recorder.begin_session()
    return bool(steps.STEP_RECORDERS)


def _device_clock() -> DeviceClock:
    module, _, name = os.environ.get(DEVICE_CLOCK_VARIABLE, "").partition(":")
    if not module:
        return CudaClock()
    clock: DeviceClock = getattr(importlib.import_module(module), name)()
    return clock
