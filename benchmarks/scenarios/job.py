"""What the scenarios' jobs are made of: the job itself, work of a stated size, a device that is a queue of timed kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset


def burn(seconds: float) -> None:
    """Use that much CPU time of this thread."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


@dataclass
class Job:
    """One scenario; times in seconds. `model` where `compute` has one forward and backward pass a step.

    dataset: instead of one of `sample`. loader_class: instead of DataLoader. batch_of_each_iterator: `next(iter(loader))`.
    """

    batch_size: int = 8
    num_workers: int = 2
    steps: int = 300
    epochs: int = 1
    sample: Callable[[int], Any] = lambda index: torch.zeros(16)
    compute: Callable[[Any, int], None] = lambda batch, step: None
    collate: Callable[[list[Any]], Any] | None = None
    worker_init: Callable[[int], None] | None = None
    before: Callable[[], None] = lambda: None
    threads: int = 1
    model: torch.nn.Module | None = None
    dataset: Any = None
    loader_class: type[DataLoader[Any]] = DataLoader
    sampler: Any = None
    batch_of_each_iterator: bool = False


class Samples(Dataset):  # type: ignore[type-arg]
    """`make(index)` for each index."""

    def __init__(self, length: int, make: Callable[[int], Any]) -> None:
        self.length = length
        self.make = make

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def batches_of(loader: DataLoader[Any], job: Job) -> Iterator[Any]:
    """The batches of an epoch."""
    if job.batch_of_each_iterator:
        for _ in range(job.steps):
            yield next(iter(loader))
    else:
        yield from loader


def sleeping(seconds: float) -> Callable[[Any, int], None]:
    """An accelerator that takes `seconds` per step and leaves the CPU alone."""
    return lambda batch, step: time.sleep(seconds)


def burning_sample(seconds_per_batch: float, batch_size: int) -> Callable[[int], Any]:
    def make(index: int) -> Any:
        burn(seconds_per_batch / batch_size)
        return torch.zeros(16)

    return make


class RealModel:
    """Matrix products on the CPU that take `seconds` of this thread, and an optimizer step."""

    def __init__(self, seconds: float, size: int = 256) -> None:
        self.layer = torch.nn.Linear(size, size)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=1e-3)
        self.data = torch.randn(size, size)
        self.seconds = seconds
        for _ in range(3):
            self._once()

    def _once(self) -> None:
        torch.tanh(self.layer(self.data)).sum().backward()

    def __call__(self, batch: Any, step: int) -> None:
        end_s = time.thread_time() + self.seconds
        self.optimizer.zero_grad()
        while time.thread_time() < end_s:
            self._once()
        self.optimizer.step()


class FakeDevice:
    """A queue of timed kernels; `sync` waits until all of them would be done, as `.item()` does."""

    def __init__(self) -> None:
        self.done_s = 0.0

    def launch(self, seconds: float) -> None:
        self.done_s = max(time.monotonic(), self.done_s) + seconds

    def sync(self) -> None:
        begin_s = time.monotonic()
        time.sleep(max(0.0, self.done_s - begin_s))
        try:
            from headrace.attach.training.transfers import note_wait
        except ImportError:
            return
        note_wait(time.monotonic() - begin_s)
