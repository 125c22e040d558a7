"""The jobs of two ranks: one that is slower than the other, and one that exchanges large gradients."""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from job import Job


def straggler(options: argparse.Namespace, phase: str) -> Job:
    """15: two ranks; rank 1 takes 20 ms longer in the loader, forward or backward."""
    torch.distributed.init_process_group("gloo")
    slow = torch.distributed.get_rank() == 1 and not options.fixed

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, value: Any) -> Any:
            return value.clone()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            time.sleep(0.02 if slow and phase == "backward" else 0.0)
            return gradient

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(16, 64), torch.nn.Linear(64, 2)

        def forward(self, value: Any) -> Any:
            time.sleep(0.02 if slow and phase == "forward" else 0.0)
            return Backward.apply(self.last(torch.relu(self.first(value))))

    model = torch.nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def read(index: int) -> Any:
        time.sleep(0.1 / 8 if slow and phase == "loader" else 0.0)
        return torch.zeros(16)

    def compute(batch: Any, step: int) -> None:
        time.sleep(0.03)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return Job(num_workers=2, sample=read, compute=compute, steps=200, model=model)


def communication(options: argparse.Namespace) -> Job:
    """23: two ranks that exchange 80 MB of gradients after 20 ms of computation."""
    torch.distributed.init_process_group("gloo")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.weights = torch.nn.Linear(16, 2), torch.nn.Parameter(torch.zeros(20_000_000))

        def forward(self, value: Any) -> Any:
            time.sleep(0.02)
            return self.layer(value) + self.weights[:2]

    model = torch.nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def compute(batch: Any, step: int) -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return Job(num_workers=1, compute=compute, steps=150, model=model)
