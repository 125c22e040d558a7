"""`headrace evaluate`: accuracy of trained weights on a dataset."""

from __future__ import annotations

import argparse
import csv
import io
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Column, Table

from headrace.cli.shared import output
from headrace.cli.train.training_options import add_model_of_weights
from headrace.datasets.open import open_stored
from headrace.datasets.records.labels import labelled_by
from headrace.errors import UsageError
from headrace.system.files.atomic_write import write_output
from headrace.system.text.sizes import count_text, percent_text
from headrace.system.text.spreadsheet import cell_text
from headrace.training.distributed.devices import open_device
from headrace.training.inputs.input import evaluation_loader
from headrace.training.models.factory import SMALL_IMAGE
from headrace.training.weights.evaluation import Scores, evaluate
from headrace.training.weights.trained_weights import load_model

if TYPE_CHECKING:
    import torch

SUMMARY = "measure top-1 and top-5 accuracy of trained weights on a dataset, every image counted once"
EXAMPLE = "headrace evaluate runs/one/final.safetensors --data /data/imagenet/val"

MOST_CLASSES = 30_000
"""Write a confusion matrix of at most so many classes: ImageNet-21k's has a gigabyte."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headrace evaluate`."""
    add = parser.add_argument
    add("weights", type=Path, metavar="WEIGHTS", help="final.safetensors of `headrace train`, or the folder of the run")
    add_model_of_weights(parser)
    add("--data", required=True, metavar="PATH", help="images: a folder of class folders, or a packed dataset")
    add("--batch-size", type=int, default=256, metavar="N", help="images per batch (default: 256)")
    add("--image-size", type=int, metavar="PIXELS", help="image size in pixels (default: that of the run's own evaluation)")
    add(
        "--flip",
        action=argparse.BooleanOptionalAction,
        help="average each image with its mirror image (default: as the run did)",
    )
    add("--per-class", action="store_true", help="print the accuracy of each class too, worst first")
    add(
        "--confusion",
        type=Path,
        metavar="FILE",
        help="write the confusion matrix as CSV: a row for each class, a column for each predicted class",
    )
    add("--device", metavar="DEVICE", help="cpu or cuda (default: cuda if there is a GPU)")
    add("--threads", type=int, metavar="N", help="threads that read and decode (default: one per usable core)")


def run(args: argparse.Namespace) -> int:
    """Evaluate the weights on the dataset, and print top-1, top-5 and loss. Return the exit code."""
    for name in ("batch_size", "image_size", "threads"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}")
    device = open_device(args.device)
    if device.simulated:
        raise UsageError("weights cannot be evaluated on a simulated device", hint="--device cpu or cuda")
    model, weights = load_model(args.weights, model=args.model)
    data = open_stored(args.data, empty_classes=True)
    if data.classes != weights.classes:
        data = labelled_by(data, weights.classes)
        output.log(f"note: {args.data} has images of some classes only; its labels are those of {weights.path}")
    if args.confusion is not None and len(data.classes) > MOST_CLASSES:
        raise UsageError(f"--confusion: a matrix of {len(data.classes):,} classes has no reader", hint="--json has each class")
    import torch

    size = args.image_size or weights.test_size
    pairs: list[torch.Tensor] = []
    began_s = time.monotonic()
    small = weights.image_size <= SMALL_IMAGE
    with evaluation_loader(data, size, small=small, batch_size=args.batch_size, device=device, threads=args.threads) as loader:
        scores = evaluate(
            model.to(device.torch_name),
            loader,
            device=device.torch_name,
            flip=weights.flip_test if args.flip is None else args.flip,
            pairs=pairs,
        )
    assert scores is not None  # it is not stopped on the way
    img_s = scores.images / (time.monotonic() - began_s)
    counts = _counted(torch.cat(pairs))
    if args.confusion is not None:
        _write_confusion(args.confusion, data.classes, counts)
    document = {
        "model": weights.model,
        "weights": weights.path,
        "device": device.name,
        "top1": scores.top1,
        "top5": scores.top5,
        "loss": scores.loss,
        "images": scores.images,
        "img_s": img_s,
        "per_class": _per_class(data.classes, counts),
    }
    output.emit(args, document, lambda: _render(weights.model, scores, img_s, document["per_class"] if args.per_class else []))
    return 0


Counts = dict[int, dict[int, int]]
"""Images by label and predicted class. A matrix of all classes would take gigabytes for the weights of strangers."""


def _counted(pairs: torch.Tensor) -> Counts:
    """Count the images of each pair of label and predicted class, [images, 2]."""
    found: Counts = {}
    different, counts = pairs.unique(dim=0, return_counts=True)
    for (label, predicted), count in zip(different.tolist(), counts.tolist(), strict=True):
        found.setdefault(label, {})[predicted] = count
    return found


def _per_class(classes: tuple[str, ...], counts: Counts) -> list[dict[str, object]]:
    """Return for each class its images, its accuracy, and the class it is most often mistaken for."""
    found: list[dict[str, object]] = []
    for label, name in enumerate(classes):
        row = counts.get(label, {})
        images = sum(row.values())
        wrong = [(count, -other) for other, count in row.items() if other != label]
        mistaken = classes[-max(wrong)[1]] if wrong else None
        top1 = row.get(label, 0) / images if images else None
        found.append({"class": name, "images": images, "top1": top1, "mistaken_for": mistaken})
    return found


def _write_confusion(path: Path, classes: tuple[str, ...], counts: Counts) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    names = [cell_text(name) for name in classes]
    writer.writerow(["class", *names])
    for label, name in enumerate(names):
        row = counts.get(label, {})
        writer.writerow([name, *(row.get(predicted, 0) for predicted in range(len(names)))])
    write_output(path, text.getvalue())


def _render(model: str, scores: Scores, img_s: float, per_class: object) -> None:
    top1 = percent_text(scores.top1, digits=2)
    top5 = "" if scores.top5 is None else f", top-5 {percent_text(scores.top5, digits=2)}"
    output.say(
        f"{model}: top-1 {top1}{top5}, loss {scores.loss:.4f} on {count_text(scores.images, 'image')} ({img_s:,.0f} img/s)"
    )
    if not isinstance(per_class, list) or not per_class:
        return
    numbers = (Column(name, justify="right", no_wrap=True) for name in ("images", "top-1"))
    table = Table(Column("class", overflow="fold"), *numbers, Column("mistaken for", overflow="fold"), box=box.SIMPLE_HEAD)
    for row in sorted(per_class, key=lambda row: (row["top1"] is None, row["top1"])):
        top1 = "no images" if row["top1"] is None else percent_text(row["top1"], digits=1)
        table.add_row(row["class"], f"{row['images']:,}", top1, row["mistaken_for"] or "")
    output.stdout_console.print(table, markup=False)
