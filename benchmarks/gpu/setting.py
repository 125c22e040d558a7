"""How a measurement runs, and what several of them need."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from headrace.system.files.atomic_write import atomic_write
from headrace.system.hardware import machine

__all__ = ["CORES", "MODELS", "Row", "Run", "endless", "trainer"]

Row = dict[str, Any]
MODELS = ("resnet18", "resnet50", "resnet152")
CORES = max(1, round(machine.cores().usable))


@dataclass(frozen=True)
class Run:
    """How a measurement runs. `is_tiny`: a dry run, which shows that everything starts."""

    device: str
    is_tiny: bool
    folder: Path  # the photographs are in `folder` and packed in `pack` below it
    seconds: float = 3.0
    partial: Path | None = None  # file of the rows of a measurement that is under way
    kept: Path | None = None  # folder of the results, for what a measurement keeps to go on with
    limit_s: float = 600.0  # after which the measurement is ended

    @property
    def is_gpu(self) -> bool:
        """Whether a real GPU is measured."""
        return self.device.startswith("cuda")

    def document(self, name: str, found: dict[str, Any]) -> None:
        """Leave the document of a page of its own, which the runner takes."""
        (self.folder / f"document-{name}.json").write_text(json.dumps(found), encoding="utf-8")

    def note(self, rows: list[Row]) -> None:
        """Save the rows measured so far. The runner reads them if the measurement fails or runs out of time."""
        if self.partial is not None:
            atomic_write(self.partial, json.dumps(rows))

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def rate(self, work: Callable[[], object], amount: float) -> float:
        """Return the amount of work per second, between synchronised points, after a warm-up of two calls."""
        for _ in range(1 if self.is_tiny else 2):
            work()
        self.synchronize()
        calls, began = 0, time.perf_counter()
        while calls == 0 or time.perf_counter() - began < self.seconds:
            for _ in range(1 if self.is_tiny else 10):
                work()
                calls += 1
            self.synchronize()
        return calls * amount / (time.perf_counter() - began)


def trainer(run: Run, name: str) -> Callable[[Any, Any], None]:
    """Return a real training step of one of torchvision's models: it takes images and labels."""
    from torchvision import models

    tiny = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 8)
    )
    model = (tiny if run.is_tiny else getattr(models, name)()).to(run.device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, fused=run.is_gpu)
    loss_of = torch.nn.CrossEntropyLoss()

    def step(images: Any, labels: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda" if run.is_gpu else "cpu", dtype=torch.bfloat16, enabled=run.is_gpu):
            loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def endless(loader: Any) -> Iterator[Any]:
    """Yield the batches of one pass after the other."""
    while True:
        yield from loader
