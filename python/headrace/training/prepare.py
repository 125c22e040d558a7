"""Everything before the first step: data, model, optimizer, the checkpoint to go on from. Errors of use are raised here."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import BinaryIO

from headrace.datasets.open import open_stored
from headrace.datasets.records import Dataset
from headrace.datasets.splits import train_and_validation
from headrace.errors import HeadraceError, SourceError, UsageError
from headrace.training import checkpoint, devices, options_file
from headrace.training.checkpoint import Writer
from headrace.training.devices import Device, StepTimer
from headrace.training.distributed.ranks import RankVote, join, ranks_from_environment
from headrace.training.enlarging import enlarged
from headrace.training.environment import environment
from headrace.training.input import TrainingInput, validation_loader
from headrace.training.learner import Learner
from headrace.training.loggers import Loggers
from headrace.training.metrics import Metrics
from headrace.training.nonfinite_loss import BadStep, LossMonitor
from headrace.training.options import Options, check
from headrace.training.resume import find, share
from headrace.training.state import TrainingProgress, TrainingRun, restore
from headrace.training.uploads import Uploads

__all__ = ["open_data", "prepare"]


def prepare(options: Options, watch: Callable[[TrainingProgress], None]) -> TrainingRun:
    """Checks and builds everything, and loads the checkpoint to resume from. All errors of use are raised here."""
    import torch

    check(options)
    ranks = ranks_from_environment()
    device = devices.open_device(options.device, local_rank=ranks.local_rank)
    if options.sync_batch_norm and device.kind == "cpu":
        raise UsageError("--sync-batch-norm: PyTorch offers it on GPUs only", hint="leave it out, or train on GPUs")
    out = Path(options.out)
    found, remarks = find(options) if ranks.main else (None, [])
    for remark in remarks:
        _remark(watch, remark)
    data, val = open_data(options)
    if ranks.main and (said := enlarged(data, options.image_size)):
        _remark(watch, f"note: {said}")
    join(ranks, device)
    found = share(found, ranks)
    feed = TrainingInput(options, data, device, ranks)
    loader = feed.loader(0)
    val_loader = validation_loader(options, val, device, ranks) if val is not None else None
    steps_per_epoch = len(loader)
    if steps_per_epoch == 0:
        raise SourceError(
            f"{data.root} holds {len(data)} images, fewer than one batch of {options.batch_size}",
            hint=f"--batch-size {max(1, len(data) // 2)}",
        )
    total_steps = min(options.epochs * steps_per_epoch, options.steps or options.epochs * steps_per_epoch)
    if device.simulated:
        torch.set_num_threads(1)  # the stand-in needs no more, and the loader's threads need the cores
    epoch = 0
    if found is not None:
        # The last batch's epoch, not the next one's: the checkpoint holds the state of its loader.
        epoch = max(0, int(found.state["step"]) - 1) // steps_per_epoch
        if feed.size(epoch) != feed.size(0):
            loader = feed.loader(epoch)
    learner = Learner(
        options if found is None else replace(options, pretrained=None),
        device,
        ranks,
        classes=len(data.classes),
        total_steps=total_steps,
        warmup_steps=options.optimization.warmup_steps(options.epochs, steps_per_epoch),
    )
    _check_model(learner, options, device, len(data.classes))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}", hint="choose a folder that can be written to") from error
    if ranks.main:
        _check_space(out, learner, options.keep)
    lock = _locked(out) if ranks.main else None
    if ranks.main:
        checkpoint.remove_partial(out / "checkpoints")
    uploads = Uploads(options.checkpoint_url, keep=options.keep) if options.checkpoint_url and ranks.main else None
    run = TrainingRun(
        options=options,
        ranks=ranks,
        device=device,
        learner=learner,
        loader=loader,
        feed=feed,
        image_size=feed.size(epoch),
        val_loader=val_loader,
        writer=_writer(out / "checkpoints", options.keep, uploads),
        uploads=uploads,
        metrics=Metrics(out / "metrics.jsonl", _loggers(options, out, watch) if ranks.main else None),
        pace=StepTimer(device),
        agreement=RankVote(ranks),
        loss_monitor=LossMonitor(options.nan_steps, steps_per_epoch, lambda bad: _tell_bad_step(run, bad)),
        watch=watch,
        lock=lock,
        total_steps=total_steps,
    )
    if found is not None:
        try:
            restore(run, found)
        except BaseException:
            if lock is not None:
                lock.close()
            raise
    if ranks.main:
        options_file.write(options, out / "config.toml")
        if learner.loaded is not None:
            _remark(watch, f"start: {learner.loaded}")
    facts: dict[str, object] = {
        "model": options.model,
        "device": device.name,
        "images": len(data),
        "classes": len(data.classes),
    }
    facts |= {"world_size": ranks.world_size, "batch_size": options.batch_size}
    if ranks.main:
        facts |= {"precision": options.precision, "environment": environment(device)}
        run.metrics.write(step=run.step, resumed_from_step=run.resumed_from_step, total_steps=total_steps, **facts)
    return run


def _tell_bad_step(run: TrainingRun, bad: BadStep) -> None:
    run.watch(TrainingProgress(run.step, run.total_steps, bad.epoch, 0, None, None, None, remark=f"warning: {bad.describe()}"))
    if run.ranks.main:
        facts = asdict(bad) | {"loss": None, "not_finite": str(bad.loss)}
        run.metrics.write(**facts)


def _check_model(learner: Learner, options: Options, device: Device, classes: int) -> None:
    """One image goes through the model. Raises UsageError when it cannot take it, or answers for another number of classes."""
    import torch

    if device.simulated:
        return
    image = torch.zeros(1, 3, options.image_size, options.image_size, device=device.torch_name)
    learner.model.eval()
    try:
        with torch.no_grad(), torch.autocast(device.torch_type, dtype=learner.autocast, enabled=learner.autocast is not None):
            answers = learner.model(image)
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        what = f"{options.model} cannot take an image of {options.image_size} pixels: {line}"
        raise UsageError(what, hint="another --image-size, or another --model") from error
    finally:
        learner.model.train()
    shape = tuple(getattr(answers, "shape", ()))
    if shape != (1, classes):
        what = f"{options.model} answers with {shape or type(answers).__name__} for one image, not with (1, {classes})"
        raise UsageError(what, hint=f"the data has {classes} classes: the model must give one number for each")


def _check_space(folder: Path, learner: Learner, keep: int) -> None:
    """Raises HeadraceError when the disk cannot hold the checkpoints that are to be kept, and one more being written."""
    size = sum(tensor.nbytes for tensor in learner.model.state_dict().values())
    weights = sum(parameter.nbytes for parameter in learner.model.parameters() if parameter.requires_grad)
    copies = 1 if "momentum" in learner.optimizer.defaults else 2  # SGD keeps one number a weight, Adam and LAMB two
    size += copies * weights + (0 if learner.average is None else size)
    free = shutil.disk_usage(folder).free
    wanted = size * max(1, keep + 1 - len(list(checkpoint.candidates(folder / "checkpoints"))))
    if free < wanted:
        raise HeadraceError(
            f"{folder} has {free / 1e6:,.0f} MB free; checkpoints of {size / 1e6:,.0f} MB need {wanted / 1e6:,.0f} MB",
            hint="free some space, change --out, or keep fewer (--keep)",
        )


def _remark(watch: Callable[[TrainingProgress], None], words: str) -> None:
    watch(TrainingProgress(0, 0, 0, 0, None, None, None, remark=words))


def _loggers(options: Options, out: Path, watch: Callable[[TrainingProgress], None]) -> Loggers:
    return Loggers(options.log, out, options_file.flatten(options), warn=lambda words: _remark(watch, words))


def _locked(out: Path) -> BinaryIO:
    """Keeps other runs out of `out` until the file is closed, or this process ends in whatever way."""
    lock = open(out / ".lock", "wb")  # noqa: SIM115 - closed by the trainer
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise UsageError(f"another run is writing to {out}", hint="wait for it, stop it, or choose another --out") from error
    return lock


def _writer(folder: Path, keep: int, uploads: Uploads | None) -> Writer:
    if uploads is None:
        return Writer(folder, keep=keep)
    return Writer(folder, keep=keep, done=uploads.submit, held=uploads.held)


def open_data(options: Options) -> tuple[Dataset, Dataset | None]:
    """Training and validation data; a local folder with `train` and `val` (or `test`) inside stands for both."""
    data, val = options.data, options.val
    if (inside := train_and_validation(Path(data))) is not None and val is None:
        data, val = map(str, inside)
    training = open_stored(data)
    if len(training.classes) < 2:
        raise SourceError(
            f"{data} holds one class only: there is nothing to tell apart", hint="give data of two or more classes"
        )
    if val is None:
        return training, None
    validation = open_stored(val)
    if validation.classes != training.classes:
        raise SourceError(
            f"{val}: {_class_difference(training.classes, validation.classes)}", hint="use the same class folders"
        )
    return training, validation


def _class_difference(training: tuple[str, ...], validation: tuple[str, ...]) -> str:
    missing, surplus = sorted(set(training) - set(validation)), sorted(set(validation) - set(training))
    words = f"its {len(validation)} classes are not the {len(training)} of the training data"
    if missing:
        words += f"; missing: {', '.join(missing[:5])}"
    if surplus:
        words += f"; not in training: {', '.join(surplus[:5])}"
    return words
