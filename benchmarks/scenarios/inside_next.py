"""The jobs whose time goes inside `next()`, beside what workers do: sampler, collate function, hand-over, Python's lock."""

from __future__ import annotations

import argparse
import gzip
import io
import random
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from job import Job, Samples, burn, burning_sample, sleeping
from torch.utils.data import Sampler


class Draws(Sampler[int]):
    """Indices by weights that are drawn anew for each image, `seconds` of the training process for one."""

    def __init__(self, seconds: float, length: int) -> None:
        self.seconds, self.length = seconds, length

    def draw(self) -> int:
        burn(self.seconds)
        return 0

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.length):
            yield self.draw()


def slow_sampler(options: argparse.Namespace, num_workers: int) -> Job:
    """31: a sampler that takes 50 ms of the training process for a batch."""
    sampler = None if options.fixed else Draws(0.05 / 8, 8 * 150)
    return Job(num_workers=num_workers, sample=burning_sample(0.006, 8), compute=sleeping(0.02), steps=150, sampler=sampler)


def slow_collate(options: argparse.Namespace, num_workers: int) -> Job:
    """32: a collate function that takes 60 ms for a batch: half of it on a core, half asleep."""

    def gather(samples: list[Any]) -> Any:
        if not options.fixed:
            burn(0.03)
            time.sleep(0.03)
        return torch.stack(samples)

    return Job(num_workers=num_workers, sample=burning_sample(0.004, 8), collate=gather, compute=sleeping(0.01), steps=150)


def odd_batches(options: argparse.Namespace) -> Job:
    """33: batches with 40,000 small Python objects, which are pickled, sent through a pipe, and unpickled."""
    count = 0 if options.fixed else 5000

    def make(index: int) -> Any:
        return torch.zeros(16), [{"name": f"box {number}", "at": (number, index)} for number in range(count)]

    def gather(samples: list[Any]) -> Any:
        return torch.stack([values for values, _ in samples]), [boxes for _, boxes in samples]

    return Job(num_workers=2, sample=make, collate=gather, compute=sleeping(0.01), steps=150)


def busy_thread(options: argparse.Namespace) -> Job:
    """34, 35: a thread of the script counts in Python, which holds the lock; with --fixed it compresses, which does not."""
    content = bytes(8_000_000)

    def keep_statistics() -> None:
        total = 0
        while True:
            if options.fixed:
                zlib.compress(content, 6)
            else:
                for number in range(1000):
                    total += number

    threading.Thread(target=keep_statistics, daemon=True).start()
    return Job(num_workers=1, sample=burning_sample(0.004, 8), compute=sleeping(0.02), steps=250)


def busy_thread_beside_steps(options: argparse.Namespace) -> Job:
    """41: the thread of 34 beside a model of many small operators, each of which asks for the lock again."""
    job = busy_thread(options)
    layers = torch.nn.Sequential(*(torch.nn.Linear(96, 96) for _ in range(40)))
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3)

    def compute(batch: Any, step: int) -> None:
        optimizer.zero_grad()
        layers(torch.ones(64, 96)).sum().backward()
        optimizer.step()

    job.compute, job.model, job.steps = compute, layers, 120
    return job


def compressed(options: argparse.Namespace) -> Job:
    """43: records of a compressed file in any order: each jump back begins at its start. With --fixed they lie as they are."""
    size, count = 20_000, 400
    file = io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1) as archive:
        archive.write(random.Random(0).randbytes(size * count))
    data = gzip.decompress(file.getvalue())
    opened: Any = io.BytesIO(data) if options.fixed else gzip.GzipFile(fileobj=file)

    def make(index: int) -> Any:
        opened.seek(index * 7919 % count * size)
        return torch.frombuffer(bytearray(opened.read(16)), dtype=torch.uint8)

    file.seek(0)
    return Job(num_workers=0, sample=make, compute=sleeping(0.01), steps=150 if not options.fixed else 1500)


def single_numbers(options: argparse.Namespace) -> Job:
    """44: records that are lists of 400 numbers, of which the default collation makes 400 tensors a batch."""
    row = [0.5] * 400
    whole = torch.tensor(row)
    return Job(num_workers=0, batch_size=64, sample=lambda index: whole if options.fixed else row, compute=sleeping(0.01))


def new_iterators(options: argparse.Namespace) -> Job:
    """36: `next(iter(loader))` in each step, with two workers."""
    data = Samples(10_000, burning_sample(0.01, 8))
    one_each = not options.fixed
    return Job(num_workers=2, dataset=data, compute=sleeping(0.02), steps=120, batch_of_each_iterator=one_each)
