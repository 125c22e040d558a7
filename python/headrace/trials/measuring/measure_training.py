"""One training of a trial: `headrace train` as a process of its own, and its rate, loss and accuracy after each epoch."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.trials.experiment.cells import Cell
from headrace.trials.experiment.source import workers_of

__all__ = ["IMAGE_SIZE", "epochs_of", "steady_rate", "train_command"]

IMAGE_SIZE = {"small": 32, "imagenet": 224, "caltech": 224, "augmentation-load": 224}
"""Side of the images of each list of operations, in pixels."""

PRECISION = {"fp32": "fp32", "amp": "bf16"}
"""Precision of a trial → that of `headrace train`; bfloat16 needs no scaling of the loss and exists on CPUs too."""


def train_command(cell: Cell, train: Path, val: Path, out: Path, device: str) -> list[str]:
    """Return the arguments of `headrace` that train a cell's model on `train` and evaluate it on `val` after each epoch.

    Batch size and number of threads of a cell are totals over all ranks, so a training takes the same steps with any number of
    ranks.
    """
    batch, threads = (max(1, value // cell.ranks) for value in (cell.batch_size, workers_of(cell)))
    arguments = [
        "train", "--json", "--model", cell.model, "--data", str(train), "--val", str(val), "--out", str(out),
        "--epochs", str(cell.epochs), "--batch-size", str(batch), "--image-size", str(IMAGE_SIZE[cell.transform]),
        "--precision", PRECISION[cell.precision], "--device", device, "--threads", str(threads),
        "--processes", str(cell.ranks), "--seed", "0",
    ]  # fmt: skip
    return arguments + ([] if cell.recipe == "plain" else ["--recipe", cell.recipe]) + shlex.split(cell.arguments)


def epochs_of(metrics: Path, images: int) -> list[dict[str, Any]]:
    """Return `{epoch, end_s, seconds, loss, top1, img_s}` of each epoch of a metrics.jsonl; `images`: of an epoch, all ranks.

    `end_s` is counted from the start of the run, `seconds` from the end of the epoch before; both with the evaluation. The
    first epoch holds the start of threads and of the model. loss: of the epoch's last training step. Raises `HeadraceError`
    when no epoch was evaluated.
    """
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    ends = {line["epoch"]: line for line in lines if "evaluation" in line}
    found: list[dict[str, Any]] = []
    for epoch, line in sorted(ends.items()):
        before = found[-1]["end_s"] if found else 0.0
        seconds = line["seconds"] - before
        facts = {"end_s": line["seconds"], "seconds": seconds, "top1": line["evaluation"]["top1"]}
        found.append({"epoch": epoch + 1, **facts, "loss": line.get("training_loss"), "img_s": images / seconds})
    if not found:
        raise HeadraceError("the training evaluated the model after no epoch")
    return found


def steady_rate(epochs: Sequence[dict[str, Any]], images: int) -> float:
    """Return the images/s of all epochs but the first, evaluation included; of the first if it is the only one."""
    chosen = epochs[1:] or epochs
    return images * len(chosen) / sum(float(epoch["seconds"]) for epoch in chosen)
