"""Read settings of PyTorch that cost time or learn nothing: debugging modes left on, denormal numbers, a learning rate near 0,
number formats that the processor computes slowly.

Read after a few optimizer steps and again after 64, 512, 4,096 …: schedules change learning rates, profilers
end by themselves, and weights decay to denormal numbers late. Of each tensor `MOST_VALUES` values are read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from headrace.attach.record.counters import COUNTERS
from headrace.attach.record.unseen_frames import are_operators_seen

__all__ = ["slow_settings", "slower_format"]

MOST_TENSORS = 12
MOST_VALUES = 1024
SLOW_SHARE = 0.01
"""Measure how slow denormal numbers are from this share of them on."""

TRIED_VALUES = 1 << 15
TRIED_SIDE = 128
TRIES = 5


def slow_settings(optimizer: Any) -> dict[str, Any]:
    """Return the modes of PyTorch by name, the learning rates, and the denormal numbers among weights and gradients on the CPU.

    Example: `{"anomaly": False, "deterministic": True, "profiler": False, "learning_rate": 1e-3, …}`
    """
    import torch

    rates = [group.get("lr") for group in optimizer.param_groups]
    known = [abs(rate) for rate in rates if isinstance(rate, int | float)]
    with torch._C.DisableTorchFunction():  # modes of the script see nothing of this
        return {
            "anomaly": torch.is_anomaly_enabled(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "profiler": torch.autograd._profiler_enabled(),
            "find_unused_parameters": COUNTERS.find_unused,
            "without_gradient": sum(one.requires_grad and one.grad is None for one in _parameters(optimizer)),
            "learning_rate": max(known) if known and len(known) == len(rates) else None,
            "denormals": None if are_operators_seen() else _denormals(optimizer),
        }


def slower_format(name: str | None) -> float | None:
    """Return how many times longer a product of matrices in this number format takes on this processor than in float32.

    None for another format than the half precisions. Takes some 10 ms where the processor has no instructions for it.
    """
    import torch

    if name not in ("float16", "bfloat16") or are_operators_seen():
        return None
    with torch._C.DisableTorchFunction(), torch.no_grad(), torch.autocast("cpu", enabled=False):
        square = torch.ones((TRIED_SIDE, TRIED_SIDE), dtype=torch.float32, device="cpu")
        wide_s, half_s = (_shortest_s(values, values) for values in (square, square.to(getattr(torch, name))))
    return round(half_s / max(1e-9, wide_s), 1)


def _shortest_s(left: Any, right: Any) -> float:
    times_s = []
    for _ in range(TRIES):
        begin_s = time.perf_counter()
        left @ right
        times_s.append(time.perf_counter() - begin_s)
    return min(times_s)


def _parameters(optimizer: Any) -> Iterator[Any]:
    return (each for group in optimizer.param_groups for each in group["params"])


def _denormals(optimizer: Any) -> dict[str, float] | None:
    """Return the largest share of denormal numbers among weights, gradients and the optimizer's state, and how much slower
    arithmetic with them is here; None where there are hardly any, and on other devices than the CPU."""
    import torch

    parameters = sorted(filter(_is_plain, _parameters(optimizer)), key=lambda each: -int(each.numel()))[:MOST_TENSORS]
    read: dict[str, list[Any]] = {}
    with torch.no_grad():
        for each in parameters:
            state = optimizer.state.get(each) or {}
            kinds = [("weights", each), ("gradients", each.grad)]
            kinds += [("optimizer state", value) for value in state.values() if getattr(value, "shape", None) == each.shape]
            for kind, values in kinds:
                if _is_plain(values):
                    read.setdefault(kind, []).append(_some_of(values))
        shares = {kind: _denormal_share(torch.cat(values).abs()) for kind, values in read.items()}
        if max(shares.values(), default=0.0) < SLOW_SHARE:
            return None
        return {**shares, "slower": _slower()}


def _is_plain(values: Any) -> bool:
    """Whether this is an ordinary tensor on the CPU. Operators on one of another class may wait for other ranks (DTensor)."""
    import torch

    is_own_class = type(values) in (torch.Tensor, torch.nn.Parameter)
    return is_own_class and values.is_cpu and values.layout is torch.strided and values.dtype is torch.float32


def _some_of(values: Any) -> Any:
    """Return a view of up to `MOST_VALUES` values. A dense tensor is not copied, whatever the order of its dimensions."""
    outermost_first = sorted(range(values.dim()), key=lambda dimension: -values.stride(dimension))
    flat = values.detach().permute(outermost_first).reshape(-1)
    return flat[:: max(1, flat.numel() // MOST_VALUES)][:MOST_VALUES]


def _denormal_share(values: Any) -> float:
    import torch

    count = int(((values > 0) & (values < torch.finfo(torch.float32).tiny)).sum())
    return round(count / max(1, int(values.numel())), 4)


def _slower() -> float:
    """Return how many times longer a product of denormal numbers takes here than one of ordinary numbers."""
    import torch

    took_s = []
    for value in (1.0, 1e-39):
        values = torch.full((TRIED_VALUES,), value, dtype=torch.float32, device="cpu")
        times_s = []
        for _ in range(TRIES):
            begin_s = time.perf_counter()
            values * 0.5
            times_s.append(time.perf_counter() - begin_s)
        took_s.append(min(times_s))
    return round(took_s[1] / max(1e-9, took_s[0]), 1)
