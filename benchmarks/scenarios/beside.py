"""Jobs whose script works beside the model, jobs whose workers copy what the fork shares, and healthy jobs like them."""

from __future__ import annotations

import argparse
import gc
import time
from typing import Any

import numpy as np
import torch
from job import Job, burn


class Network:
    """A small model with its optimizer, beside an accelerator that is a wait."""

    def __init__(self, seconds: float) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.seconds = seconds

    def step(self, batch: Any) -> None:
        """One training step."""
        self.optimizer.zero_grad()
        self.model(batch).sum().backward()
        time.sleep(self.seconds)
        self.optimizer.step()


def post_metrics(step: int) -> None:
    """A tracker that answers after 40 ms."""
    time.sleep(0.04)


def draw_picture(step: int) -> None:
    """A picture of the batch, drawn in each step."""
    burn(0.02)


def tracker(options: argparse.Namespace) -> Job:
    """31: a tracker that blocks 40 of 60 ms."""
    network = Network(0.02)

    def compute(batch: Any, step: int) -> None:
        network.step(batch)
        if not options.fixed:
            post_metrics(step)

    return Job(num_workers=1, compute=compute, steps=220, model=network.model)


def pictures(options: argparse.Namespace) -> Job:
    """31: a picture drawn in each step takes 20 of 30 ms of a core."""
    network = Network(0.01)

    def compute(batch: Any, step: int) -> None:
        network.step(batch)
        draw_picture(step)

    return Job(num_workers=1, compute=compute, steps=400, model=network.model)


def validation(options: argparse.Namespace) -> Job:
    """31: a validation of 1.5 s in the loop, every 40 steps of 20 ms."""
    network = Network(0.02)

    @torch.no_grad()
    def validate() -> None:
        for _ in range(30):
            network.model(torch.zeros(8, 16))
            time.sleep(0.05)

    def compute(batch: Any, step: int) -> None:
        network.step(batch)
        if step % 40 == 39:
            validate()

    return Job(num_workers=1, compute=compute, steps=240, model=network.model)


def collects(options: argparse.Namespace) -> Job:
    """32: `gc.collect()` after each step, beside 400,000 live objects."""
    network, live = Network(0.02), [[number] for number in range(400_000)]

    def compute(batch: Any, step: int) -> None:
        network.step(batch)
        if not options.fixed:
            gc.collect()
        assert live

    return Job(num_workers=1, compute=compute, steps=300, model=network.model)


def waits_in_the_loop(options: argparse.Namespace) -> Job:
    """33, healthy: the accelerator is waited for after the optimizer's step, in the loop's own frame."""
    network = Network(0.0)

    def compute(batch: Any, step: int) -> None:
        network.step(batch)
        time.sleep(0.04)

    return Job(num_workers=1, compute=compute, steps=250, model=network.model)


def rare_log(options: argparse.Namespace) -> Job:
    """33, healthy: the tracker of 31 in one step of 50."""
    network = Network(0.04)

    def compute(batch: Any, step: int) -> None:
        network.step(batch)
        if step % 50 == 49:
            post_metrics(step)

    return Job(num_workers=1, compute=compute, steps=250, model=network.model)


def growing_bank(options: argparse.Namespace) -> Job:
    """42: a model that keeps the features of all batches, and compares each batch with all of them; --fixed: the last few."""
    network, bank = Network(0.005), torch.zeros(0, 128)

    def compute(batch: Any, step: int) -> None:
        nonlocal bank
        network.step(batch)
        bank = torch.cat([bank, torch.ones(64, 128)])[-640 if options.fixed else 0 :]
        network.optimizer.zero_grad()
        with torch.no_grad():
            (torch.ones(64, 128) @ bank.t()).softmax(1)
        network.optimizer.step()

    return Job(num_workers=1, compute=compute, steps=400, model=network.model)


def copied_labels(options: argparse.Namespace) -> Job:
    """34: workers that read labels of Python objects, and thereby copy 150 MB each."""
    labels: Any = [f"label number {number} of the data set" for number in range(1_500_000)]
    if options.fixed:
        labels = np.arange(1_500_000)

    def make(index: int) -> Any:
        for label in labels[index % 1500 * 1000 : (index % 1500 + 1) * 1000]:
            assert label is not None
        time.sleep(0.004)
        return torch.zeros(16)

    return Job(batch_size=8, num_workers=2, sample=make, compute=lambda batch, step: time.sleep(0.005), steps=700)
