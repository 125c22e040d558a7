"""Checks before the first step that need the model or the output folder."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path
from typing import BinaryIO

from headrace.errors import HeadraceError, UsageError
from headrace.system.files.private_files import check_unnamed_folder, make_output_folder, output_opener
from headrace.system.text.sizes import count_text
from headrace.training.distributed.devices import Device
from headrace.training.distributed.ranks import Ranks
from headrace.training.learning.learner import Learner
from headrace.training.settings.options import Options
from headrace.training.weights import checkpoint

__all__ = ["check_model", "claim_folder"]


def check_model(learner: Learner, options: Options, device: Device, classes: int) -> None:
    """Run one image through the model. Raise UsageError if it fails, or if it gives another number of scores than `classes`."""
    import torch

    if device.simulated:
        return
    image = torch.zeros(1, 3, options.image_size, options.image_size, device=device.torch_name)
    learner.model.eval()
    try:
        with torch.no_grad(), torch.autocast(device.torch_type, dtype=learner.autocast, enabled=learner.autocast is not None):
            scores = learner.model(image)
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        what = f"{options.model} cannot take an image of {options.image_size} pixels: {line}"
        raise UsageError(what, hint="another --image-size, or another --model") from error
    finally:
        learner.model.train()
    shape = tuple(getattr(scores, "shape", ()))
    if shape != (1, classes):
        what = f"{options.model} returns {shape or type(scores).__name__} for one image, not (1, {classes})"
        raise UsageError(what, hint=f"the data has {count_text(classes, 'class')}: the model must give one number for each")


def claim_folder(out: Path, learner: Learner, keep: int, ranks: Ranks) -> BinaryIO | None:
    """Create the output folder, check its free space, and lock it against other runs; return the lock, None except on rank 0.

    The lock ends when its file is closed or the process ends. Raises UsageError if the folder cannot be written to or another
    run uses it, HeadraceError if the disk is too full.
    """
    try:
        make_output_folder(out)
        for name in ("checkpoints", "tensorboard"):
            check_unnamed_folder(out / name)
    except OSError as error:
        hint = "choose a folder that can be written to, and that nobody else has made"
        raise UsageError(f"--out {error.filename or out}: {error.strerror}", hint=hint) from error
    if not ranks.main:
        return None
    _check_space(out, learner, keep)
    lock = _lock(out)
    checkpoint.remove_partial(out / "checkpoints")
    return lock


def _check_space(folder: Path, learner: Learner, keep: int) -> None:
    """Raise HeadraceError if the disk cannot hold the checkpoints to keep, and one more that is being written."""
    size = sum(tensor.nbytes for tensor in learner.model.state_dict().values())
    weights = sum(parameter.nbytes for parameter in learner.model.parameters() if parameter.requires_grad)
    copies = 1 if "momentum" in learner.optimizer.defaults else 2  # SGD keeps one number a weight, Adam and LAMB two
    size += copies * weights + (0 if learner.average is None else size)
    free = shutil.disk_usage(folder).free
    needed = size * max(1, keep + 1 - len(list(checkpoint.candidates(folder / "checkpoints"))))
    if free < needed:
        raise HeadraceError(
            f"{folder} has {free / 1e6:,.0f} MB free; checkpoints of {size / 1e6:,.0f} MB need {needed / 1e6:,.0f} MB",
            hint="free some space, change --out, or keep fewer (--keep)",
        )


def _lock(out: Path) -> BinaryIO:
    try:
        lock = open(out / ".lock", "ab", opener=output_opener)  # noqa: SIM115 - TrainingRun.close closes it
    except OSError as error:
        raise UsageError(f"{out / '.lock'}: {error.strerror}", hint="remove it, or choose another --out") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise UsageError(f"another run is writing to {out}", hint="wait for it, stop it, or choose another --out") from error
    return lock
