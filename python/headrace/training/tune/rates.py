"""Three rates that bound a training run: input without a model, compute without input, and both together."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.datasets.records.dataset import Dataset
from headrace.errors import CommandError
from headrace.system.files.scratch_folder import scratch_folder
from headrace.system.processes.own_python import own_module
from headrace.training.distributed.devices import Device
from headrace.training.distributed.ranks import Ranks
from headrace.training.inputs.input import TrainingInput
from headrace.training.logs.step_timer import WARM_UP_STEPS
from headrace.training.settings import options_file
from headrace.training.settings.options import Options
from headrace.training.tune.compute_rate import measure_compute_rate
from headrace.training.tune.deadline import Deadline, OutOfTime
from headrace.training.tune.machine_use import MachineMeter, MachineUse

__all__ = ["UNWATCHED", "CombinedRate", "InputRate", "combined_rate", "compute_rate", "input_rate"]

WARM_UP_BATCHES = 4  # leave the first batches out of a rate: threads start, the ring of batches fills
LEAST_STEPS, MOST_STEPS = 30, 2000
MOST_SECONDS = 60.0  # time limit of a short run if steps are slow; LEAST_COUNTED steps after the warm-up always run
LEAST_COUNTED = 3
TIMEOUT_S = 1800.0
STOPPING_S = 8.0  # time for a short run that was asked to stop to end its step and save

UNWATCHED = "HEADRACE_UNWATCHED"
"""Environment variable that turns off the diagnosis of `headrace train`: for short runs that only measure a rate."""


@dataclass(frozen=True, slots=True)
class InputRate:
    """The measured rate of a loader alone. cores: how many it kept busy. use: of the machine meanwhile; None: unknown."""

    threads: int
    img_s: float
    cores: float
    use: MachineUse | None = None


@dataclass(frozen=True, slots=True)
class CombinedRate:
    """The measured rate of a short training run of all ranks. wait_share: share of time waiting for input, 0 to 1."""

    prefetch: int
    img_s: float
    wait_share: float
    use: MachineUse | None = None


def input_rate(
    options: Options, data: Dataset, device: Device, *, threads: int, seconds: float, deadline: Deadline | None = None
) -> InputRate:
    """Return the rate of one loader with `threads` threads, measured for `seconds` by taking batches as fast as they come.

    Raises OutOfTime if `deadline` passes before a batch after the warm-up was timed.
    """
    deadline = deadline or Deadline()
    feed = TrainingInput(replace(options, threads=threads), data, device, Ranks())
    with feed.loader(max(0, options.epochs - 1)) as loader:  # the last epoch: the full image size
        images, batches, began_s, now_s, meter = 0, 0, 0.0, 0.0, MachineMeter()
        while batches <= WARM_UP_BATCHES or now_s - began_s < seconds:
            for _, labels in loader:
                now_s = time.perf_counter()
                if batches == WARM_UP_BATCHES:
                    began_s, images, meter = now_s, -len(labels), MachineMeter()
                batches, images = batches + 1, images + len(labels)
                if batches > WARM_UP_BATCHES + 1 and (now_s - began_s >= seconds or deadline.passed):
                    break
                if batches <= WARM_UP_BATCHES + 1 and deadline.passed:
                    raise OutOfTime(f"measuring input with {threads} threads had no time left")
            if batches > WARM_UP_BATCHES + 1 and deadline.passed:
                break
        use = meter.use()
        return InputRate(threads, images / max(now_s - began_s, 1e-9), use.own_cores, use)


def compute_rate(
    options: Options, device: Device, *, classes: int, ranks: int, timeout_s: float = math.inf
) -> tuple[float | None, int | None]:
    """Return the compute rate of all ranks in images a second, and the GPU's peak memory in bytes (None on the CPU).

    The rate of a simulated device is the stated one. It is None if the batch does not fit. Raises OutOfTime after `timeout_s`.
    """
    if device.img_s is not None:
        return device.img_s, None
    trial = measure_compute_rate(
        replace(options, optimization=replace(options.optimization, accumulate=1)),
        classes=classes,
        processes=ranks,
        timeout_s=timeout_s,
    )
    return trial.img_s, trial.memory_bytes


def combined_rate(
    options: Options, data: Dataset, *, ranks: int, expected_img_s: float, seconds: float, deadline: Deadline | None = None
) -> CombinedRate:
    """Return the rate of `headrace train`, run for about `seconds` in processes of its own, without evaluation.

    At `deadline` the run is asked to stop; what it measured until then counts. Raises OutOfTime if that is nothing,
    CommandError if the run fails.
    """
    deadline = deadline or Deadline()
    per_second = expected_img_s / (options.batch_size * ranks)
    steps = round(seconds * per_second) + LEAST_STEPS
    steps = max(WARM_UP_STEPS + LEAST_COUNTED, min(steps, round(max(MOST_SECONDS, seconds) * per_second)))
    with scratch_folder("tune") as folder:
        short = replace(
            options, data=data.root, val=None, out=f"{folder}/run", steps=min(steps, MOST_STEPS), resume=None, log=(),
            epochs=max(options.epochs, 1 + steps * options.batch_size * ranks // max(1, len(data))), checkpoint_minutes=None,
            checkpoint_steps=None, checkpoint_url=None, keep=1,
        )  # fmt: skip
        short = replace(short, optimization=replace(short.optimization, start_scale=1.0, accumulate=1))
        config = folder / "tune.toml"
        options_file.write(short, config, secrets=True)
        more = ("--processes", str(ranks), "--json")
        command = own_module("headrace", "train", "--config", str(config), "--model", options.model, *more)
        meter = MachineMeter()
        try:
            done = _run_until(command, deadline)
        except subprocess.TimeoutExpired as error:
            if deadline.left_s <= STOPPING_S:
                raise OutOfTime("the short training run had no time left") from error
            raise CommandError(f"the short training run took more than {TIMEOUT_S:.0f} s") from error
        try:
            found = json.loads(done.stdout)
            return CombinedRate(options.prefetch, float(found["img_s"]), float(found["wait_share"]), meter.use())
        except (ValueError, KeyError, TypeError) as error:
            # A run that is asked to stop while it starts ends without a result, before the deadline.
            if deadline.left_s <= STOPPING_S:
                raise OutOfTime("the short training run had no time left") from error
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise CommandError(f"the short training run failed: {last}") from error


def _run_until(command: list[str], deadline: Deadline) -> subprocess.CompletedProcess[str]:
    """Run `command`; at the deadline send SIGTERM, on which a run stops after its step and prints its result."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path.cwd(),
        env={**os.environ, UNWATCHED: "1"},
        start_new_session=True,
    ) as child:
        try:
            try:
                printed, problems = child.communicate(timeout=max(0.01, min(TIMEOUT_S, deadline.left_s - STOPPING_S)))
            except subprocess.TimeoutExpired:
                child.terminate()
                printed, problems = child.communicate(timeout=STOPPING_S)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(command, child.returncode, printed, problems)
