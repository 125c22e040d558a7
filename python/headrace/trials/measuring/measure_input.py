"""One process of a trial: the input alone, the computing alone, and both, for each model of a group of cells.

    python -m headrace.trials.measuring.measure_input SPEC.json RESULT.json

It prints nothing. Rates are those of the steady state, from the arrival of an epoch's first batch on. The start of a pass is a
figure of its own, and a pass of several short epochs counts no start of the others.
"""

from __future__ import annotations

import gc
import json
import math
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.system.processes.end_with_parent import end_with_parent
from headrace.trials.experiment.accelerator import (
    FORWARD_SHARE,
    Accelerator,
    SimulatedAccelerator,
    TorchAccelerator,
    busy_shares,
    rate_of,
)
from headrace.trials.experiment.cells import Cell
from headrace.trials.experiment.source import Source, workers_of
from headrace.trials.inputs.materials import Materials
from headrace.trials.measuring.loaders import open_loader

__all__ = ["PIXEL_IMAGES", "ROUNDS", "Pass", "main", "measure_pass", "steady_part"]

LONGEST_EPOCH = 2048
"""Make folders and packs of at most this many images. A longer measurement takes several epochs."""

FILL_ROUNDS, DRAIN_ROUNDS = 2, 1
"""Rounds that a steady rate leaves out: the first, in which a DataLoader fills its queues of two batches a worker
(`prefetch_factor` of torch's documentation), and the last, in which workers have no next batch."""

ROUNDS = FILL_ROUNDS + 11 + DRAIN_ROUNDS
"""Batches that each worker makes in a pass, where time allows it: ten and more in the steady part."""

RAMP_S = 0.5
"""Seconds of warm-up after which a GPU that was idle runs at its full clock, with a margin. The measurement lasts as long."""

PIXEL_IMAGES = 24
"""Number of images whose pixels are compared between loaders."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over a loader. seconds, first_s: of the whole pass, and until its first batch. img_s: the steady rate.
    cpu_s: CPU time of this process and of workers that ended, per image. own_cpu_s: of this process alone, per image.
    handover_s: CPU time of this thread between two steps, per batch; None where it was not asked. rounds: turns of all workers
    in the steady rate."""

    images: int
    seconds: float
    first_s: float
    img_s: float
    cpu_s: float
    own_cpu_s: float
    handover_s: float | None
    begin_s: float
    end_s: float
    rounds: int


def measure_pass(
    epochs: Iterable[Iterable[Any]], step: Callable[[Any, Any], None], *, together: int, ask_handover: bool = False
) -> Pass:
    """Iterate over all epochs of a pass, call `step` with each batch, and return the measured times.

    together: batches that are made at the same time: one a worker process. See `steady_part`.
    ask_handover: ask for the CPU time of each handover. Not where a training's rate is measured: a thread that asks for its CPU
    time loses its core, if its slice has ended and another thread waits for it. It lost 3 ms between two steps here.
    Raises `UsageError` when there is no batch.
    """
    _collect_garbage()
    own, workers, begin = _own_cpu_s(), _ended_cpu_s(), time.monotonic()
    taken = [_take(batches, step, ask_handover) for batches in epochs]
    end = time.monotonic()
    own, workers = _own_cpu_s() - own, _ended_cpu_s() - workers
    count = sum(sum(epoch.sizes) for epoch in taken)
    if not count:
        raise UsageError("the loader gave no batch")
    parts = [steady_part(epoch.arrivals, epoch.sizes, together) for epoch in taken]
    steady_images, steady_s, rounds = (sum(column) for column in zip(*parts, strict=True))
    handovers = [seconds for epoch in taken for seconds in epoch.handovers]
    return Pass(
        images=count,
        seconds=end - begin,
        first_s=taken[0].arrivals[0] - begin,
        img_s=steady_images / steady_s if steady_s > 0 else count / (end - begin),
        cpu_s=(own + workers) / count,
        own_cpu_s=own / count,
        handover_s=sum(handovers) / max(1, len(handovers)) if ask_handover else None,
        begin_s=begin,
        end_s=end,
        rounds=int(rounds),
    )


def _collect_garbage() -> None:
    """Collect Python's garbage, and leave all that is there out of later collections.

    A full collection took 70 to 100 ms here once torch was imported, and comes once in many hundred batches: it would be no
    part of most passes, and 2 % of the others.
    """
    gc.collect()
    gc.freeze()


@dataclass
class _Epoch:
    """The batches of one epoch. arrivals: seconds. sizes: images. handovers: CPU seconds before each, if they were asked."""

    arrivals: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    handovers: list[float] = field(default_factory=list)


def _take(batches: Iterable[Any], step: Callable[[Any, Any], None], ask_handover: bool) -> _Epoch:
    """Take the batches of one epoch."""
    epoch = _Epoch()
    asked_cpu: float | None = None  # not before the first batch, whose handover also starts the workers
    for images, labels in batches:
        if asked_cpu is not None:
            epoch.handovers.append(time.thread_time() - asked_cpu)
        epoch.arrivals.append(time.monotonic())
        epoch.sizes.append(len(labels))
        step(images, labels)
        if ask_handover:
            asked_cpu = time.thread_time()
    return epoch


def steady_part(arrivals: Sequence[float], sizes: Sequence[int], together: int) -> tuple[int, float, int]:
    """Return (images, seconds, rounds of all workers) of the steady part of an epoch.

    A round is one batch from each worker. All three are 0 for an epoch that has no whole round.

    A DataLoader gives its workers their batches in turn and hands them out in order, so batch i and batch i + `together` come
    from the same worker, and the time between their arrivals is that worker's time for one batch, whatever the phase of the
    others. Only whole rounds count: workers that are done at the same time would otherwise give some of their batches for
    nothing. The first rounds fill the queues and in the last the workers run out of work. They are left out where there are
    enough others.

    arrivals: seconds. sizes: images of each batch. together: worker processes.
    """
    rounds = (len(sizes) - 1) // together
    if rounds < 1:
        return 0, 0.0, 0
    skipped = min(FILL_ROUNDS, rounds // 4)
    counted = rounds - skipped - min(DRAIN_ROUNDS, rounds // 8)
    first = skipped * together
    last = first + counted * together
    return sum(sizes[first + 1 : last + 1]), arrivals[last] - arrivals[first], counted


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _ended_cpu_s() -> float:
    """Return the CPU seconds of child processes that have ended: a DataLoader's workers end with their pass."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(arguments: list[str]) -> int:
    """Measure what a JSON file asks for and write the result as JSON. Return the exit code."""
    end_with_parent()  # below `headrace run`, which ends with the trial
    spec = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    result = _measure(spec)
    target = Path(arguments[1])
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(result), encoding="utf-8")
    partial.rename(target)
    return 0


def _measure(spec: dict[str, Any]) -> dict[str, Any]:
    cells = [Cell(**values) for values in spec["cells"]]
    cell, seconds = cells[0], float(spec["seconds"])
    materials = Materials(
        Path(spec["data"]),
        train_images=spec["train_images"],
        validation_images=spec["validation_images"],
        mean_bytes=spec["mean_bytes"],
        own=Path(spec["own"]) if spec["own"] else None,
        scale=spec["scale"],
    )
    import torch

    if spec["gpu"] is not None:
        torch.set_num_threads(1)  # a simulated step computes nothing, and the loader's threads need the cores
    if spec["phase"] == "pixels":
        return {"pixels": _pixels(cell, materials, Path(spec["pixels"]))}
    job = _Job(spec, cell, materials, max(1, workers_of(cell)) if cell.loader == "pytorch" else 1)
    result: dict[str, Any] = {"models": {}}
    first = _accelerator(spec, cell)
    measure_pass(job.prepared("train", 2 * cell.batch_size), first.arrive, together=1)  # imports, first calls, page cache
    train = job.long_pass("train", first.host_only, seconds, ask_handover=True)
    result["ingest"] = asdict(train)
    if spec["validation_images"]:
        result["ingest_val"] = asdict(job.long_pass("val", first.arrive, seconds / 2, rate=train.img_s))
    for each in cells:
        result["models"][each.model] = _model(job, each, result)
    return result


@dataclass
class _Job:
    """What the passes of this process have in common. `together`: see `measure_pass`."""

    spec: dict[str, Any]
    cell: Cell
    materials: Materials
    together: int

    @property
    def fewest(self) -> int:
        """The least number of batches that a pass takes: two for each worker, at least four."""
        return max(4, 2 * self.together)

    def epochs(self, split: str, images: int) -> Iterator[Iterable[Any]]:
        """Return the epochs of a pass over `images` images, each of at most `longest_epoch` images."""
        epoch = min(images, self.longest_epoch)
        device = "cpu" if self.spec["gpu"] else self.spec["device"]
        source = Source(self.materials.path(self.cell, split, epoch), validation=split == "val", device=device)
        loader = open_loader(self.cell, source)
        for _ in range(images // epoch):
            yield loader

    def prepared(self, split: str, images: int) -> Iterator[Iterable[Any]]:
        """Return `epochs(split, images)`, after making the files it reads, so that no measurement includes that."""
        self.materials.path(self.cell, split, min(images, self.longest_epoch))
        return self.epochs(split, images)

    @property
    def longest_epoch(self) -> int:
        """Images of the longest epoch: every worker's rounds, as a new epoch starts new workers."""
        return max(LONGEST_EPOCH, ROUNDS * self.together * self.cell.batch_size)

    def images_in(self, seconds: float, rate: float) -> int:
        """Return the length of a pass at `rate` img/s: about `seconds`, and `ROUNDS` of all workers where time allows it.

        The time for the rounds is the spec's `longest_s`. A pass has `fewest` batches or more.
        """
        batch = self.cell.batch_size
        rounds = ROUNDS * self.together
        least = rounds if rounds * batch <= rate * max(seconds, self.spec["longest_s"]) else self.fewest
        wanted = int(seconds * rate)
        if wanted <= least * batch:
            return least * batch
        if wanted > self.longest_epoch:
            most = 1 if self.cell.data == "s3" else 8  # a second epoch would read the cache on disk
            return self.longest_epoch * min(most, round(wanted / self.longest_epoch))
        steps = int(math.log2(wanted / (least * batch)) * 2)  # few different lengths, as each is a tree or a pack of its own
        return min(self.longest_epoch, batch * round(least * 2 ** (steps / 2)))

    def long_pass(
        self, split: str, step: Callable[[Any, Any], None], seconds: float, *, rate: float = 0.0, ask_handover: bool = False
    ) -> Pass:
        """Measure passes until one is long enough for its own rate, or half as long, and return that one."""
        images = self.images_in(seconds, rate)
        while True:
            found = measure_pass(self.prepared(split, images), step, together=self.together, ask_handover=ask_handover)
            longer = self.images_in(seconds, found.img_s)
            if longer < 2 * images:
                return found
            images = longer


def _accelerator(spec: dict[str, Any], cell: Cell) -> Accelerator:
    if spec["gpu"] is None:
        return TorchAccelerator(cell.model, spec["device"], precision=cell.precision)
    rate, source = rate_of(spec["gpu"], cell.model, cell.precision)
    return SimulatedAccelerator(cell.model, rate, source)


def _model(job: _Job, cell: Cell, result: dict[str, Any]) -> dict[str, Any]:
    """Measure computing alone, then training and validation with the loader, and a recorded training.

    The rate is that of the training that is not recorded: nothing is recorded of computing alone either, and the recording
    takes time of the training thread in each step (0.3 to 0.5 ms, measured beside a step of 39 ms on two cores).
    """
    spec, seconds = job.spec, float(job.spec["seconds"])
    accelerator = _accelerator(spec, cell)
    compute = _compute_alone(cell, accelerator, 0.2 * seconds)
    images = job.images_in(seconds, min(compute, result["ingest"]["img_s"]))
    trained = measure_pass(job.prepared("train", images), accelerator.train, together=job.together)
    session = Path(spec["sessions"]) / cell.model
    recorded = _recorded(session, job.prepared("train", images), accelerator, together=job.together)
    gpu_busy = busy_shares(accelerator.busy, recorded.begin_s, recorded.end_s)
    validated = None
    if "ingest_val" in result:
        images = job.images_in(0.5 * seconds, min(compute / FORWARD_SHARE, result["ingest_val"]["img_s"]))
        validated = measure_pass(job.prepared("val", images), accelerator.evaluate, together=job.together)
    return {
        "compute_img_s": compute,
        "compute_val_img_s": compute / FORWARD_SHARE,
        "train": asdict(trained),
        "recorded_img_s": recorded.img_s,
        "val": asdict(validated) if validated else None,
        "gpu_busy": gpu_busy,
        "accelerator": accelerator.source,
        "simulated": accelerator.simulated,
        "session": str(session),
    }


def _recorded(session: Path, epochs: Iterable[Iterable[Any]], accelerator: Accelerator, *, together: int) -> Pass:
    """Measure a training pass that is recorded in the folder `session`, for the diagnosis."""
    from headrace.profiling.in_process import Watch

    accelerator.busy.clear()
    _collect_garbage()  # before the recording begins
    watch = Watch(session, report=False)
    watch.start()
    try:
        return measure_pass(epochs, accelerator.train, together=together)
    finally:
        watch.end()


def _compute_alone(cell: Cell, accelerator: Accelerator, seconds: float) -> float:
    """Return images/s of training steps on a batch that is there already, on the device."""
    import torch

    images = torch.randn(cell.batch_size, 3, 224, 224).to(accelerator.device)  # of zeros a GPU computes faster
    labels = torch.arange(cell.batch_size).to(accelerator.device)
    if not accelerator.simulated:
        seconds = max(seconds, RAMP_S)
        accelerator.train(images, labels)  # chooses algorithms and allocates
        begin = time.monotonic()  # from here on a GPU raises its clock
        while time.monotonic() < begin + RAMP_S:
            accelerator.train(images, labels)
    begin, steps = time.monotonic(), 0
    while steps < 3 or time.monotonic() < begin + seconds:
        accelerator.train(images, labels)
        steps += 1
    return steps * cell.batch_size / (time.monotonic() - begin)


def _pixels(cell: Cell, materials: Materials, target: Path) -> dict[str, Any]:
    """Write the uint8 pixels (N, 3, H, W) of fixed operations on some images, in the order of the folder."""
    import numpy as np
    import torch

    source = Source(materials.path(cell, "train", PIXEL_IMAGES), fixed=True)
    found = [images.cpu() if isinstance(images, torch.Tensor) else images for images, _ in open_loader(cell, source)]
    pixels = np.concatenate([np.asarray(images) for images in found])
    np.save(target, pixels)
    return {"shape": list(pixels.shape), "dtype": str(pixels.dtype)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
