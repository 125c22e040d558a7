"""Read how the model is run: number format, memory format, DataParallel, versions. Once, after a few optimizer steps.

What changes later is read again, ever more rarely: modes, learning rates (`slow_settings`), threads.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from headrace.attach.record import load_hooks, stacks
from headrace.attach.record.processes import write_threads
from headrace.attach.record.recorder import Recorder
from headrace.attach.training.slow_settings import slow_settings, slower_format

__all__ = ["install"]

AFTER_STEPS = 5
"""Read the settings after this many optimizer steps: by then autocast and the memory format are in use."""

AGAIN_FROM, AGAIN_FACTOR = 64, 8
"""Read what may change again after this many optimizer steps, and each time that their number has grown by this factor.

Reading takes some two milliseconds: 0.3 % of the first 64 steps, if a step takes 10 ms."""

RATES = ("lr", "momentum", "weight_decay")
"""Optimizer settings to record. Values that are tensors are left out: reading one may wait for the device."""


def install(recorder: Recorder) -> None:
    """Record once, after the first optimizer steps, how the model is run: autocast and DataParallel are patched until then."""
    _SettingsReader(recorder).begin()


class _SettingsReader:
    """Reads the settings once. `_autocast`: the number format of the last autocast region entered."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._steps = 0
        self._off = False
        self._again = AGAIN_FROM
        self._autocast: str | None = None
        self._data_parallel: int | None = None
        self._restore: list[Callable[[], None]] = []

    def begin(self) -> None:
        import torch
        from torch.optim import optimizer

        optimizer.register_optimizer_step_post_hook(self._after_step)  # stays: torch iterates over its hooks while it calls one
        self._patch(torch.amp.autocast_mode.autocast, "__enter__", self._noting_autocast)
        self._patch(torch.nn.DataParallel, "forward", self._noting_data_parallel)

    def _patch(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, make(original))
        self._restore.append(lambda: setattr(owner, name, original))

    def _noting_autocast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __enter__(region: Any) -> Any:
            if getattr(region, "_enabled", False):
                self._autocast = str(getattr(region, "fast_dtype", "")).removeprefix("torch.")
            return original(region)

        return __enter__

    def _noting_data_parallel(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(module: Any, *args: Any, **options: Any) -> Any:
            self._data_parallel = len(module.device_ids)
            return original(module, *args, **options)

        return forward

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self._steps += 1
        is_again = self._steps == self._again
        if self._off or not (is_again or self._steps == AFTER_STEPS):
            return
        while self._restore:
            self._restore.pop()()
        try:
            self._recorder.line("fact", name="slow_settings", value={"steps": self._steps, **slow_settings(optimizer)})
            if is_again:
                self._again *= AGAIN_FACTOR
                write_threads(self._recorder)
                return
            self._recorder.line("fact", name="configuration", value=self._facts(optimizer))
            self._recorder.line("fact", name="training_path", value=stacks.calling_places())
        except Exception:
            self._off = True
            load_hooks.disable("reading of the model's settings")

    def _facts(self, optimizer: Any) -> dict[str, Any]:
        import torch

        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        formats = Counter(str(each.dtype).removeprefix("torch.") for each in parameters)
        weights = [each for each in parameters if each.dim() == 4 and each.shape[2] * each.shape[3] > 1]
        timers = getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", None)
        facts: dict[str, Any] = {
            "device": parameters[0].device.type if parameters else None,
            "parameter_format": formats.most_common(1)[0][0] if formats else None,
            "autocast": self._autocast,
            "compiled": bool(timers),
            "convolutions": len(weights),
            "channels_last": sum(each.is_contiguous(memory_format=torch.channels_last) for each in weights),
            "data_parallel": self._data_parallel,
            "optimizer": type(optimizer).__name__,
            **{name: value for name in RATES if isinstance(value := optimizer.param_groups[0].get(name), int | float)},
        }
        if facts["device"] == "cpu":
            facts["autocast_slower"] = slower_format(self._autocast)
        if facts["device"] == "cuda" and torch.version.cuda:
            facts |= {
                "capability": list(torch.cuda.get_device_capability()),
                "architectures": torch._C._cuda_getArchFlags().split(),
                "cuda": torch.version.cuda,
                "cudnn": torch.backends.cudnn.version(),
                "matmul_precision": torch.get_float32_matmul_precision(),
            }
        return facts
