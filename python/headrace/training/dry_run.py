"""The dry run: what a training run would take (steps, sizes, time, memory, money), from short measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.datasets.records.dataset import Dataset
from headrace.system.hardware import machine
from headrace.training.distributed.devices import Device
from headrace.training.distributed.ranks import compute_threads
from headrace.training.inputs.data import check_batch_size
from headrace.training.models import factory
from headrace.training.settings.options import Options
from headrace.training.tune.deadline import Deadline, OutOfTime
from headrace.training.tune.machine_use import MachineMeter, MachineUse
from headrace.training.tune.rates import InputRate, compute_rate, input_rate

__all__ = ["DryRun", "measure_dry_run"]

EVALUATION_SPEED = 3.0  # assumed: evaluating is this many times as fast as training (a backward pass costs two forward passes)


@dataclass(frozen=True, slots=True)
class DryRun:
    """The steps, time, memory and cost that a run would take. Rates are measured here (stated for a simulated device).

    `compute_threads`: torch's in each rank; None on a GPU. `sizes`: pairs (first epoch, pixels). The time of compute is
    assumed to grow with the number of pixels. `memory_bytes` is the GPU's peak in the measurement, None on CPUs. `usd` is None
    without a price. `not_measured` lists what had no time; `compute_use` and `ingest_use` say what else used the machine.
    """

    images: int
    val_images: int | None
    classes: int
    parameters: int
    ranks: int
    batch_size: int
    global_batch: int
    steps_per_epoch: int
    total_steps: int
    warmup_steps: int
    peak_learning_rate: float
    sizes: tuple[tuple[int, int], ...]
    compute_img_s: float | None
    ingest_img_s: float | None
    binds: str
    seconds_per_epoch: float | None
    seconds: float | None
    memory_bytes: int | None
    checkpoint_bytes: int
    usd: float | None
    compute_use: MachineUse | None = None
    ingest_use: MachineUse | None = None
    not_measured: tuple[str, ...] = ()
    compute_threads: int | None = None


def measure_dry_run(
    options: Options,
    data: Dataset,
    val: Dataset | None,
    device: Device,
    *,
    ranks: int,
    seconds: float,
    usd_per_hour: float | None = None,
    deadline: Deadline | None = None,
    begin: Callable[[str], None] = lambda what: None,
) -> DryRun:
    """Return the estimate of a run from measurements: input for `seconds`, compute for about as long. Writes no file.

    `begin` receives what is being measured. Raises SourceError for fewer images than one batch.
    """
    check_batch_size(options, data, ranks=ranks)
    deadline = deadline or Deadline()
    optimization = options.optimization
    parameters = _parameters(options, len(data.classes))
    copies = {"sgd": 2, "lars": 2}.get(optimization.optimizer, 3) + (1 if optimization.average else 0)
    per_epoch = len(data) // (options.batch_size * ranks)
    total = min(options.epochs * per_epoch, options.steps or options.epochs * per_epoch)
    begin("compute alone")
    meter = MachineMeter()
    compute, memory, compute_binds = _compute(options, data, device, ranks=ranks, deadline=deadline)
    compute_use = None if device.simulated else meter.use()
    begin("input alone")
    found = _ingest(options, data, device, ranks=ranks, seconds=seconds, deadline=deadline)
    ingest = None if found is None else found.img_s
    sizes = [optimization.train_size(options.image_size, epoch / options.epochs) for epoch in range(options.epochs)]
    whole = (
        None if compute is None or ingest is None else _seconds(options, sizes, compute, ingest, total, per_epoch, ranks, val)
    )
    return DryRun(
        images=len(data),
        val_images=None if val is None else len(val),
        classes=len(data.classes),
        parameters=parameters,
        ranks=ranks,
        batch_size=options.batch_size,
        global_batch=options.batch_size * ranks * optimization.accumulate,
        steps_per_epoch=per_epoch,
        total_steps=total,
        warmup_steps=optimization.warmup_steps(options.epochs, per_epoch),
        peak_learning_rate=optimization.peak_rate(options.batch_size * ranks * optimization.accumulate),
        sizes=tuple((epoch, size) for epoch, size in enumerate(sizes) if epoch == 0 or size != sizes[epoch - 1]),
        compute_img_s=compute,
        ingest_img_s=ingest,
        binds=compute_binds or ("not measured" if not compute or not ingest else "compute" if compute <= ingest else "input"),
        seconds_per_epoch=None if whole is None or not total else whole * per_epoch / total,
        seconds=whole,
        memory_bytes=memory,
        checkpoint_bytes=4 * parameters * copies,
        usd=None if whole is None or usd_per_hour is None else whole / 3600 * usd_per_hour,
        compute_use=compute_use,
        ingest_use=None if found is None else found.use,
        not_measured=tuple(deadline.not_measured),
        compute_threads=_compute_threads(ranks) if device.kind == "cpu" else None,
    )


def _compute_threads(ranks: int) -> int:
    import torch

    return compute_threads(ranks) or torch.get_num_threads()


def _parameters(options: Options, classes: int) -> int:
    blurpool = options.optimization.blurpool
    model = factory.build_model(options.model, classes=classes, image_size=options.image_size, blurpool=blurpool)
    return sum(one.numel() for one in model.parameters())


def _compute(
    options: Options, data: Dataset, device: Device, *, ranks: int, deadline: Deadline
) -> tuple[float | None, int | None, str | None]:
    """Return rate and memory, and what binds if there is no rate: "memory" or "not measured"."""
    try:
        rate, memory = compute_rate(options, device, classes=len(data.classes), ranks=ranks, timeout_s=deadline.left_s)
    except OutOfTime:
        deadline.left_out("compute alone")
        return None, None, "not measured"
    return rate, memory, "memory" if rate is None else None


def _ingest(
    options: Options, data: Dataset, device: Device, *, ranks: int, seconds: float, deadline: Deadline
) -> InputRate | None:
    threads = (options.threads or max(1, round(machine.cores().usable) // ranks)) * ranks
    try:
        if deadline.passed:
            raise OutOfTime("no time left")
        return input_rate(options, data, device, threads=threads, seconds=seconds, deadline=deadline)
    except OutOfTime:
        deadline.left_out("input alone")
        return None


def _seconds(
    options: Options,
    sizes: list[int],
    compute: float,
    ingest: float,
    total: int,
    per_epoch: int,
    ranks: int,
    val: Dataset | None,
) -> float:
    """Return the seconds of all training steps, each epoch at its image size, and of an evaluation after each epoch."""
    spent, left = 0.0, total
    for size in sizes:
        steps = min(left, per_epoch)
        if steps <= 0:
            break
        rate = min(ingest, compute * (options.image_size / size) ** 2)
        spent += steps * options.batch_size * ranks / rate
        if val is not None:
            passes = 2 if options.optimization.flip_test else 1
            pixels = (options.optimization.test_size(options.image_size) / options.image_size) ** 2
            spent += len(val) / min(ingest, EVALUATION_SPEED * compute / (passes * pixels))
        left -= steps
    return spent
