"""Everything before the first step: data, model, optimizer, output folder, and the checkpoint to continue from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from headrace.errors import UsageError
from headrace.loading.loader import Loader
from headrace.training.distributed import devices
from headrace.training.distributed.devices import Device
from headrace.training.distributed.ranks import Ranks, RankVote, join_group, ranks_from_environment
from headrace.training.inputs.data import check_batch_size, data_notes, open_data
from headrace.training.inputs.enlarging import short_side
from headrace.training.inputs.input import TrainingInput, validation_loader
from headrace.training.inputs.sharded_data import agree_on_parts
from headrace.training.learning.learner import Learner
from headrace.training.learning.nonfinite_loss import BadStep, LossMonitor
from headrace.training.logs.loggers import Loggers
from headrace.training.logs.metrics import Metrics
from headrace.training.logs.step_timer import StepTimer
from headrace.training.preflight import check_model, claim_folder
from headrace.training.settings import options_file
from headrace.training.settings.environment import environment
from headrace.training.settings.options import Options, check_options
from headrace.training.state import TrainingProgress, TrainingRun, restore
from headrace.training.weights.checkpoint import Checkpoint, Writer
from headrace.training.weights.resume import broadcast_checkpoint, find_checkpoint, is_continued_by, loader_epoch
from headrace.training.weights.saved_state import saved_step
from headrace.training.weights.uploads import Uploads

__all__ = ["prepare"]

OnProgress = Callable[[TrainingProgress], None]


def prepare(options: Options, on_progress: OnProgress) -> TrainingRun:
    """Check the options, build everything a run needs, and load the checkpoint to resume from.

    Nothing is written before the options, the data and the model are known to fit. Raises UsageError for options that cannot
    work here, SourceError for data that cannot be used, StateError for a checkpoint that does not fit.
    """
    check_options(options)
    ranks = ranks_from_environment()
    device = devices.open_device(options.device, local_rank=ranks.local_rank)
    if options.sync_batch_norm and device.kind == "cpu":
        raise UsageError("--sync-batch-norm: PyTorch offers it on GPUs only", hint="leave it out, or train on GPUs")
    found, remarks = find_checkpoint(options) if ranks.main else (None, [])
    for remark in remarks:
        _report_remark(on_progress, remark)
    data, val = open_data(options)
    for note in data_notes(options, data, val, ranks=ranks.world_size) if ranks.main else ():
        _report_remark(on_progress, f"note: {note}")
    join_group(ranks, device)
    images = len(data)
    if options.sharded_data or options.sharded_val:
        agreed = agree_on_parts(data, val, ranks, batch_size=options.batch_size, sharded=options.sharded_data)
        data, val, images = agreed.data, agreed.val, agreed.images
        if ranks.main and agreed.note:
            _report_remark(on_progress, agreed.note)
    found = broadcast_checkpoint(found, ranks)
    training_input = TrainingInput(options, data, device, ranks)
    loader, epoch = _open_loader(training_input, found)
    val_loader = validation_loader(options, val, device, ranks) if val is not None else None
    learner = _make_learner(options, device, ranks, classes=len(data.classes), steps_per_epoch=len(loader), resumed=found)
    check_model(learner, options, device, len(data.classes))
    out = Path(options.out)
    lock = claim_folder(out, learner, options.keep, ranks)
    uploads = Uploads(options.checkpoint_url, keep=options.keep) if options.checkpoint_url and ranks.main else None
    run = TrainingRun(
        options=options,
        ranks=ranks,
        device=device,
        learner=learner,
        loader=loader,
        input=training_input,
        image_size=training_input.size(epoch),
        val_loader=val_loader,
        writer=_make_writer(out / "checkpoints", options.keep, uploads),
        uploads=uploads,
        metrics=Metrics(out / "metrics.jsonl", _make_loggers(options, out, on_progress) if ranks.main else None),
        timer=StepTimer(device),
        vote=RankVote(ranks),
        loss_monitor=LossMonitor(options.nan_steps, len(loader), lambda bad: _report_bad_step(run, bad)),
        on_progress=on_progress,
        lock=lock,
        total_steps=learner.total_steps,
        trained_side=short_side(data) if ranks.main else None,
    )
    _begin(run, found, images=images)
    return run


def _open_loader(training_input: TrainingInput, found: Checkpoint | None) -> tuple[Loader, int]:
    """Open the loader of the epoch that the run continues in; return it and the epoch. Raise SourceError for too few images."""
    options, data = training_input.options, training_input.data
    if not options.sharded_data:  # the Loader knows the parts
        check_batch_size(options, data, ranks=training_input.ranks.world_size)
    loader = training_input.loader(0)
    epoch = 0 if found is None else loader_epoch(saved_step(found), len(loader))
    if training_input.size(epoch) != training_input.size(0):
        loader.close()
        loader = training_input.loader(epoch)
    return loader, epoch


def _make_learner(
    options: Options, device: Device, ranks: Ranks, *, classes: int, steps_per_epoch: int, resumed: Checkpoint | None
) -> Learner:
    import torch

    if device.simulated:
        torch.set_num_threads(1)  # the stand-in needs no more, and the loader's threads need the cores
    all_steps = options.epochs * steps_per_epoch
    return Learner(
        options if resumed is None else replace(options, pretrained=None),
        device,
        ranks,
        classes=classes,
        total_steps=min(all_steps, options.steps or all_steps),
        warmup_steps=options.optimization.warmup_steps(options.epochs, steps_per_epoch),
    )


def _begin(run: TrainingRun, found: Checkpoint | None, *, images: int) -> None:
    """Restore the checkpoint, save the options as config.toml, and write the first line of metrics.jsonl."""
    if found is not None:
        try:
            restore(run, found)
        except BaseException:
            if run.lock is not None:
                run.lock.close()
            raise
    if not run.ranks.main:
        return
    options = run.options
    if found is not None and is_continued_by(found, options):
        rate = run.learner.learning_rate
        _report_remark(
            run.on_progress,
            f"continuing a finished run to {options.epochs} epochs, from step {run.step}: the learning rate is that of a run "
            f"of {options.epochs} epochs at this step, {rate(run.step):.3g} ({options.optimization.schedule} to its end)",
        )
    options_file.write(options, Path(options.out) / "config.toml")
    if run.learner.loaded is not None:
        _report_remark(run.on_progress, f"start: {run.learner.loaded}")
    run.metrics.write(
        step=run.step,
        resumed_from_step=run.resumed_from_step,
        total_steps=run.total_steps,
        model=options.model,
        device=run.device.name,
        images=images,
        classes=len(run.loader.dataset.classes),
        world_size=run.ranks.world_size,
        batch_size=options.batch_size,
        precision=options.precision,
        environment=environment(run.device),
    )


def _report_bad_step(run: TrainingRun, bad: BadStep) -> None:
    run.warn(bad.describe())
    if run.ranks.main:
        facts = asdict(bad) | {"loss": None, "not_finite": str(bad.loss)}
        run.metrics.write(**facts)


def _report_remark(on_progress: OnProgress, remark: str) -> None:
    on_progress(TrainingProgress(0, 0, 0, 0, None, None, None, remark=remark))


def _make_loggers(options: Options, out: Path, on_progress: OnProgress) -> Loggers:
    return Loggers(options.log, out, options_file.shown(options), warn=lambda message: _report_remark(on_progress, message))


def _make_writer(folder: Path, keep: int, uploads: Uploads | None) -> Writer:
    if uploads is None:
        return Writer(folder, keep=keep)
    return Writer(folder, keep=keep, done=uploads.submit, held=uploads.held)
