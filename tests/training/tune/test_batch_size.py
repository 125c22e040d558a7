"""--batch-size auto chooses the knee of the throughput; sizes that do not fit are no error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from headrace.cli.main import main
from headrace.errors import CommandError, UsageError
from headrace.training.settings.options import Options
from headrace.training.tune import batch_size, compute_rate
from headrace.training.tune.batch_size import candidate_sizes, choose_batch_size
from headrace.training.tune.compute_rate import ComputeRate, measure_compute_rate
from headrace.training.tune.memory_limit import memory_budget_bytes
from PIL import Image

HELPERS = Path(__file__).parents[2] / "helpers"

OPTIONS = Options(model="resnet18", data="/data", out="/out", device="cpu", image_size=32)


def device(rate: Callable[[int], float | None], memory_bytes: Callable[[int], int] = lambda size: 0):
    return lambda options, *, classes, processes, memory_limit_bytes=None: ComputeRate(
        options.batch_size, rate(options.batch_size), memory_bytes(options.batch_size)
    )


def tried(choice: batch_size.BatchSizeChoice) -> list[int]:
    return [one.batch_size for one in choice.trials]


def test_candidates_are_powers_of_two_and_one_and_a_half_times_them() -> None:
    assert candidate_sizes(32, 200) == [32, 48, 64, 96, 128, 192]


def test_the_size_at_the_knee_is_chosen() -> None:
    # launch overhead of 20 ms and 0.1 ms an image, no more gain from 400 on
    found = choose_batch_size(
        OPTIONS, classes=10, images=10**6, try_size=device(lambda n: min(n, 400) / (0.02 + 0.0001 * min(n, 400)))
    )
    assert found.batch_size == 384
    assert tried(found)[-1] == 768  # two more without gain end the search
    assert found.batch_size < tried(found)[-1]


def test_the_smallest_size_is_chosen_when_none_gains() -> None:
    found = choose_batch_size(OPTIONS, classes=10, images=10**6, try_size=device(lambda n: 100.0))
    assert (found.batch_size, tried(found)) == (32, [32, 48, 64])


def test_a_size_that_does_not_fit_ends_the_search() -> None:
    found = choose_batch_size(OPTIONS, classes=10, images=10**6, try_size=device(lambda n: float(n) if n <= 128 else None))
    assert (found.batch_size, tried(found)[-1]) == (128, 192)


def test_the_chosen_size_leaves_five_per_cent_of_memory_free() -> None:
    try_size = device(lambda n: float(n), lambda n: n)
    found = choose_batch_size(OPTIONS, classes=10, images=10**6, memory_bytes=260, try_size=try_size)
    assert (found.batch_size, tried(found)[-1]) == (192, 256)


def test_a_batch_is_at_most_a_tenth_of_the_data() -> None:
    found = choose_batch_size(OPTIONS, classes=10, images=1000, try_size=device(lambda n: float(n)))
    assert tried(found)[-1] == 96


def test_a_search_with_a_time_limit_lists_the_sizes_left_out() -> None:
    """Ten images a second, each size a little faster: without a bound the largest would take hours."""
    now = [0.0]

    def slow(options: Options, *, classes: int, processes: int) -> ComputeRate:
        rate = 10.0 * (1 + options.batch_size / 200)
        now[0] += 20 + 2 * options.batch_size / rate  # starting, and two steps
        return ComputeRate(options.batch_size, rate, None)

    found = choose_batch_size(OPTIONS, classes=10, images=10**6, seconds=120.0, clock=lambda: now[0], try_size=slow)
    assert tried(found) == [32, 48, 64, 96]
    assert now[0] <= 120
    assert found.left_out[0] > tried(found)[-1] and found.left_out[-1] == 8192
    assert f"from {found.left_out[0]} on are left out" in str(found.left_out_message())
    once = choose_batch_size(OPTIONS, classes=10, images=10**6, seconds=1.0, clock=lambda: now[0], try_size=slow)
    assert (once.batch_size, tried(once)) == (32, [32])  # the first is always tried
    free = choose_batch_size(OPTIONS, classes=10, images=2000, clock=lambda: now[0], try_size=slow)
    assert free.left_out == () and free.left_out_message() is None


GIB = 1 << 30


def test_the_search_on_a_cpu_ends_before_a_size_that_would_not_fit_into_free_memory() -> None:
    """A third of a GiB an image: the size after 96 is predicted to need more than the budget, and is not tried."""

    def hungry(options: Options, *, classes: int, processes: int, memory_limit_bytes: int) -> ComputeRate:
        assert memory_limit_bytes == 40 * GIB
        return ComputeRate(options.batch_size, 1.0 * options.batch_size, None, GIB + options.batch_size * GIB // 3, GIB)

    found = choose_batch_size(OPTIONS, classes=10, images=10**6, host_budget_bytes=40 * GIB, try_size=hungry)
    assert tried(found) == [32, 48, 64, 96]
    assert (found.batch_size, found.left_out[0], found.lack) == (96, 128, "memory")
    assert "from 128 on are left out: 43." in str(found.left_out_message()) and "40.0 GiB" in str(found.left_out_message())


def test_ranks_share_the_memory_of_the_machine() -> None:
    limits: list[int] = []

    def measure(options: Options, *, classes: int, processes: int, memory_limit_bytes: int) -> ComputeRate:
        limits.append(memory_limit_bytes)
        return ComputeRate(options.batch_size, 1.0, None, 2 * GIB, GIB)

    choose_batch_size(OPTIONS, classes=10, images=1000, processes=4, host_budget_bytes=8 * GIB, try_size=measure)
    assert limits == [2 * GIB]


def test_the_budget_is_the_least_of_free_memory_and_of_what_each_control_group_leaves(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    write("proc/meminfo", f"MemTotal: {64 * 2**20} kB\nMemAvailable: {40 * 2**20} kB\n")
    assert memory_budget_bytes(tmp_path) == 40 * GIB - int(6.4 * GIB)
    write("proc/self/cgroup", "0::/slice/job\n")
    write("sys/fs/cgroup/cgroup.controllers", "memory")
    for folder, limit, used in (("slice", 20 * GIB, 12 * GIB), ("slice/job", 16 * GIB, 2 * GIB)):
        write(f"sys/fs/cgroup/{folder}/memory.max", str(limit))
        write(f"sys/fs/cgroup/{folder}/memory.current", str(used + GIB))
        write(f"sys/fs/cgroup/{folder}/memory.stat", f"inactive_file {GIB}")
    assert memory_budget_bytes(tmp_path) == 8 * GIB - int(1.6 * GIB)


@pytest.mark.slow
def test_a_batch_beyond_the_limit_of_its_process_does_not_fit_and_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """4096 images of 256 pixels are 3.2 GB; the process may have 1.5 GiB."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(HELPERS))
    large = Options(model="tiny:make", data="/data", out="/out", device="cpu", image_size=256, batch_size=4096)
    assert measure_compute_rate(large, classes=3, memory_limit_bytes=3 * GIB // 2) == ComputeRate(4096, None, None)
    small = Options(model="tiny:make", data="/data", out="/out", device="cpu", image_size=16, batch_size=4)
    found = measure_compute_rate(small, classes=3, memory_limit_bytes=3 * GIB // 2)
    assert found.img_s is not None and found.host_bytes is not None and 0 < found.base_bytes <= found.host_bytes < 2 * GIB


def test_a_model_that_never_fits_raises() -> None:
    with pytest.raises(UsageError, match="does not fit with a batch of 32"):
        choose_batch_size(OPTIONS, classes=10, images=10**6, try_size=device(lambda n: None))


@pytest.mark.slow
def test_a_compute_rate_is_measured_in_a_child_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(HELPERS))
    small = Options(model="tiny:make", data="/data", out="/out", device="cpu", image_size=16, batch_size=4)
    found = measure_compute_rate(small, classes=3)
    assert found.batch_size == 4 and found.img_s is not None and found.img_s > 0
    assert found.memory_bytes is None


@pytest.mark.slow
def test_two_ranks_measure_one_rate_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(HELPERS))
    monkeypatch.setattr(compute_rate, "TIMEOUT_S", 100.0)
    small = Options(model="tiny:make", data="/data", out="/out", device="cpu", image_size=16, batch_size=4)
    found = measure_compute_rate(small, classes=3, processes=2)
    assert found.batch_size == 4 and found.img_s is not None and found.img_s > 0


def test_only_sizes_that_divide_the_global_batch_are_measured() -> None:
    many = choose_batch_size(
        OPTIONS, classes=10, images=10**6, global_batch=256, processes=2, try_size=device(lambda n: float(n))
    )
    assert tried(many) == [32, 64, 128]
    with pytest.raises(UsageError, match="divides --global-batch 100"):
        choose_batch_size(OPTIONS, classes=10, images=10**6, global_batch=100, try_size=device(lambda n: float(n)))


@pytest.mark.parametrize(
    "words",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB",
        "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes",
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input",
    ],
)
def test_out_of_memory_messages_mean_does_not_fit(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_for_python(tmp_path, monkeypatch, f"cat >&2 <<'X'\n{words}\nX\nexit 1")
    assert measure_compute_rate(OPTIONS, classes=3) == ComputeRate(OPTIONS.batch_size, None, None)


def test_other_failures_of_the_child_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_for_python(tmp_path, monkeypatch, "echo 'CUDA error: an illegal memory access' >&2; exit 1")
    with pytest.raises(CommandError, match="illegal memory access"):
        measure_compute_rate(OPTIONS, classes=3)


def stand_for_python(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (folder / "python").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    assert compute_rate.sys.executable == str(folder / "python")


def test_batch_size_auto_trains_and_resumes_with_the_chosen_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    for index in range(12):
        (tmp_path / "data" / f"class{index % 2}").mkdir(parents=True, exist_ok=True)
        pixels = np.full((20, 20, 3), 20 * index, dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "data" / f"class{index % 2}" / f"{index}.jpg")
    monkeypatch.syspath_prepend(str(HELPERS))
    monkeypatch.setattr(batch_size, "SMALLEST", 2)
    monkeypatch.setattr(
        batch_size.choose_batch_size, "__kwdefaults__", {**choose_batch_size.__kwdefaults__, "try_size": device(lambda n: 9.0)}
    )
    monkeypatch.setattr(batch_size.candidate_sizes, "__defaults__", (2, 6))
    words = ["train", "--model", "tiny:make", "--data", str(tmp_path / "data"), "--image-size", "16", "--device", "cpu"]
    words += ["--epochs", "1", "--batch-size", "auto", "--out", str(tmp_path / "run"), "--json", "--threads", "1"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["batch_size"] == 2
    assert main(["train", *words[1:], "--resume", "auto"]) == 0  # goes on with the size that was chosen, untried
    assert json.loads(capsys.readouterr().out)["batch_size"] == 2
    assert main(["train", *words[1:], "--device", "sim:a100", "--out", str(tmp_path / "other")]) == 2
    assert main(["train", *words[1:], "--batch-size", "many"]) == 2
