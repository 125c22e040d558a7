"""The compute rate of a model: how fast it trains on one random batch that is already on the device.

It is measured in a process of its own: a batch that does not fit leaves the allocator, cuDNN's workspaces and sometimes the
CUDA context in a state that would falsify later measurements. The child is
`python -m headrace.training.tune.compute_rate OPTIONS_AS_JSON`. For several ranks it starts each in a process of its own, so
that gradients are exchanged as in training.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace

from headrace.errors import CommandError
from headrace.system.processes.own_python import own_module
from headrace.training.distributed.devices import open_device
from headrace.training.distributed.processes import run_processes
from headrace.training.distributed.ranks import Ranks, join_group, leave_group, ranks_from_environment
from headrace.training.learning.learner import Learner
from headrace.training.settings.optimization import OptimizationOptions
from headrace.training.settings.options import Options
from headrace.training.tune.deadline import OutOfTime
from headrace.training.tune.memory_limit import limit_this_process

__all__ = ["ComputeRate", "measure_compute_rate", "run_steps"]

WARM_UP_STEPS, STEPS, LEAST_SECONDS, MOST_SECONDS = 5, 20, 0.5, 10.0
TIMEOUT_S = 600.0
MARK = "headrace-trial:"
_MODULE = "headrace.training.tune.compute_rate"

# Messages of torch and cuDNN when memory runs out. The last is cuDNN's for batch normalisation of too large a batch.
OUT_OF_MEMORY = (
    "out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUDNN_STATUS_NOT_SUPPORTED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
# Further messages of a process that reached its memory limit: C++ and Python allocations, oneDNN, the threads of OpenMP.
OVER_LIMIT = ("std::bad_alloc", "MemoryError", "Cannot allocate memory", "could not create a", "could not execute a",
              "Thread creation failed", "can't start new thread", "unable to mmap", "failed to map segment")  # fmt: skip


@dataclass(frozen=True, slots=True)
class ComputeRate:
    """The training rate with one batch size per rank. img_s: None if the batch did not fit. memory_bytes: None on the CPU.

    With several ranks, `img_s` is that of all together, and `memory_bytes` the highest peak of any GPU. On the CPU,
    `host_bytes` is the highest resident memory of all ranks together, and `base_bytes` their memory before the first batch.
    """

    batch_size: int
    img_s: float | None
    memory_bytes: int | None
    host_bytes: int | None = None
    base_bytes: int | None = None


def run_steps(options: Options, *, classes: int, image_size: int | None = None) -> ComputeRate:
    """Return the rate of training `options.model` on one random batch, measured in this process. Raises torch's errors."""
    import torch

    ranks = ranks_from_environment()
    device = open_device(options.device, local_rank=ranks.local_rank)
    join_group(ranks, device)
    learner = Learner(options, device, ranks, classes=classes, total_steps=1 << 30, warmup_steps=1 << 30)
    base = _peak_host_bytes()
    size = image_size or options.image_size
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    images = torch.rand(options.batch_size, 3, size, size, device=device.torch_name).contiguous(memory_format=layout)
    if learner.autocast is not None:
        images = images.to(learner.autocast)
    labels = torch.randint(0, classes, (options.batch_size,), device=device.torch_name)
    warm_up_s = time.perf_counter()
    for step in range(WARM_UP_STEPS):
        learner.train_step(step, images, labels)
        if device.kind == "cpu" and _largest(time.perf_counter() - warm_up_s, ranks) > MOST_SECONDS:
            break
    _synchronize(device.torch_name)
    steps, began_s, elapsed_s = 0, time.perf_counter(), 0.0
    while elapsed_s < LEAST_SECONDS:
        for _ in range(STEPS):
            learner.train_step(WARM_UP_STEPS + steps, images, labels)
            steps += 1
            if device.kind == "cpu" and _largest(time.perf_counter() - began_s, ranks) > MOST_SECONDS:
                break
        _synchronize(device.torch_name)
        elapsed_s = _largest(
            time.perf_counter() - began_s, ranks
        )  # the same on all ranks, so that all stop after the same step
    peak = torch.cuda.max_memory_reserved(device.torch_name) if device.kind == "cuda" else None
    if peak is not None:
        peak = int(_largest(peak, ranks))
    host = None
    if device.kind == "cpu":
        host, base = (int(_largest(value, ranks)) * ranks.world_size for value in (_peak_host_bytes(), base))
    leave_group()
    img_s = steps * options.batch_size * ranks.world_size / elapsed_s
    return ComputeRate(options.batch_size, img_s, peak, host, None if host is None else base)


def _peak_host_bytes() -> int:
    """Return the highest resident memory of this process so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _largest(value: float, ranks: Ranks) -> float:
    """Return the largest value of all ranks."""
    import torch.distributed

    if ranks.world_size == 1:
        return value
    values = torch.tensor([value], dtype=torch.float64)
    torch.distributed.all_reduce(values, torch.distributed.ReduceOp.MAX)
    return float(values[0])


def _synchronize(device: str) -> None:
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def measure_compute_rate(
    options: Options,
    *,
    classes: int,
    processes: int = 1,
    memory_limit_bytes: int | None = None,
    timeout_s: float = math.inf,
) -> ComputeRate:
    """Return the rate that `run_steps` measures in a process of its own, or in `processes` ranks on this machine.

    `memory_limit_bytes`: of each process; allocations beyond it fail. A batch that does not fit gives a ComputeRate without
    rate. Raises OutOfTime after `timeout_s`, CommandError when the measurement fails otherwise.
    """
    # Rates do not depend on the values of the weights.
    facts = {"classes": classes, "memory_limit_bytes": memory_limit_bytes, "processes": processes}
    arguments = json.dumps({**asdict(replace(options, pretrained=None)), **facts})
    command = own_module(_MODULE, arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(0.01, min(TIMEOUT_S, timeout_s)))
    except subprocess.TimeoutExpired as error:
        if timeout_s < TIMEOUT_S:
            raise OutOfTime(f"measuring a batch of {options.batch_size} had no time left") from error
        raise CommandError(f"measuring a batch of {options.batch_size} took more than {TIMEOUT_S:.0f} s") from error
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return ComputeRate(**json.loads(line.removeprefix(MARK)))
    printed = done.stdout + done.stderr
    # The kernel kills a process that takes all memory of the machine (signal 9), without a message.
    messages = OUT_OF_MEMORY if memory_limit_bytes is None else OUT_OF_MEMORY + OVER_LIMIT
    if any(words in printed for words in messages) or done.returncode == -9:
        return ComputeRate(options.batch_size, None, None)
    last = (printed.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    raise CommandError(f"measuring a batch of {options.batch_size} failed: {last}")


def main() -> int:
    """Run in the child process: options as JSON in, one line of JSON out. Return the exit code."""
    given = json.loads(sys.argv[1])
    classes, limit, processes = (given.pop(name) for name in ("classes", "memory_limit_bytes", "processes"))
    if processes > 1 and "WORLD_SIZE" not in os.environ:
        code, printed = run_processes(processes, own_module(_MODULE, sys.argv[1]))
        print(printed, end="")
        return code
    if limit is not None:
        limit_this_process(limit)
    options = Options(**{**given, "optimization": OptimizationOptions(**given["optimization"])})
    found = run_steps(options, classes=classes)
    if ranks_from_environment().main:
        print(MARK + json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
