"""The number of torch's threads is the script's, and is set in no way that MKL or the script's other threads notice."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace.accelerate.transforms.torch_blur import blurs_alike
from headrace.accelerate.workers import one_thread as module
from headrace.accelerate.workers.one_thread import one_thread, threads_of_torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

STEPS = [transforms.RandomResizedCrop(32), transforms.GaussianBlur(3), transforms.ToTensor()]


def mkl_threads() -> list[str]:
    return [line for line in torch.__config__.parallel_info().splitlines() if "mkl_get_max_threads" in line]


@pytest.mark.parametrize("workers", [0, 2])
def test_no_way_is_used_that_stays(
    workers: int, both: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    original, process = torch.set_num_threads, os.getpid()

    def set_num_threads(count: int) -> None:
        if os.getpid() == process:  # forked children end soon
            given.append(count)
        original(count)

    monkeypatch.setattr(torch, "set_num_threads", set_num_threads)

    def script() -> Any:
        loader = DataLoader(ImageFolder(str(folder), transforms.Compose(STEPS)), 5, shuffle=True, num_workers=workers)
        return [[*batch] for batch in loader], given, torch.get_num_threads(), mkl_threads()

    lines = both(script)[1]
    assert "the same batches, bit for bit" in lines[-1]
    assert blurs_alike(1, (5, 3), (0.1, 1.0), (31, 37)) and not given


@pytest.mark.parametrize("given", [None, 3])
def test_torch_and_mkl_follow_in_this_thread_only(given: int | None) -> None:
    found: list[Any] = []

    def look() -> None:
        if given is not None:
            torch.set_num_threads(given)
        before = torch.get_num_threads(), mkl_threads()
        for count in (1, 4):
            with threads_of_torch(count):
                assert torch.get_num_threads() == count
                assert all(line.endswith(f" {count}") for line in mkl_threads())
                other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
                other.start()
                other.join()
        assert (torch.get_num_threads(), mkl_threads()) == before
        found.append(torch.get_num_threads())

    threads = torch.get_num_threads()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    if given is not None:
        torch.set_num_threads(threads)
    assert len(found) == 3 and len(set(found)) == 1


def test_without_openmp_torch_sets_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIBRARY", "libnothing.so")
    module._library.cache_clear()
    before = torch.get_num_threads()
    try:
        with one_thread():
            assert torch.get_num_threads() == 1 and module._library() is None
    finally:
        module._library.cache_clear()
    assert torch.get_num_threads() == before
