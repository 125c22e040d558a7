"""`headrace predict`: the most probable classes of images."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Column, Table

from headrace.cli.shared import output
from headrace.cli.train.training_options import add_model_of_weights
from headrace.errors import SourceError, UsageError
from headrace.system.files.atomic_write import write_output
from headrace.system.text.sizes import count_text, percent_text
from headrace.system.text.spreadsheet import cell_text
from headrace.system.text.utf8 import utf8_text
from headrace.training.distributed.devices import open_device
from headrace.training.inputs.enlarging import unlike_training_note
from headrace.training.inputs.inference import LeftOut, Prediction, open_images, predict
from headrace.training.weights.trained_weights import load_model

SUMMARY = "predict the most probable classes of images with trained weights"
EXAMPLE = "headrace predict runs/one photos/ --top 3 --write answers.csv"

TABLE_ROWS = 40  # show at most this many images in the table
LISTED = 5  # name at most this many of the paths that were left out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headrace predict`."""
    add = parser.add_argument
    add("weights", type=Path, metavar="WEIGHTS", help="final.safetensors of `headrace train`, a checkpoint, or a run's folder")
    add_model_of_weights(parser)
    add("images", type=Path, nargs="+", metavar="IMAGES", help="image files, folders of images, or a packed dataset")
    add("--top", type=int, default=5, metavar="K", help="print the K most probable classes of each image (default: 5)")
    add("--write", type=Path, metavar="FILE", help="write all predictions to a .jsonl or .csv file")
    add("--batch-size", type=int, default=64, metavar="N", help="images per batch (default: 64)")
    add("--image-size", type=int, metavar="PIXELS", help="image size in pixels (default: that of the run's own evaluation)")
    add(
        "--flip",
        action=argparse.BooleanOptionalAction,
        help="average each image with its mirror image (default: as the run did)",
    )
    add("--device", metavar="DEVICE", help="cpu or cuda (default: cuda if there is a GPU)")
    add("--threads", type=int, metavar="N", help="threads that read and decode (default: one per usable core)")


def run(args: argparse.Namespace) -> int:
    """Predict the images' classes and print them. Return exit code 1 if an image cannot be decoded."""
    for name in ("top", "batch_size", "image_size", "threads"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}")
    if args.write is not None and args.write.suffix not in (".jsonl", ".csv"):
        raise UsageError(f"--write {args.write}: a file that ends in .jsonl or .csv is expected")
    device = open_device(args.device)
    if device.simulated:
        raise UsageError("a simulated device computes no predictions", hint="--device cpu or cuda")
    model, weights = load_model(args.weights, model=args.model)
    if weights.simulated:
        raise SourceError(f"{weights.path} was trained on a simulated device: it holds a stand-in's weights")
    found = open_images(args.images)
    data = found.dataset
    unlike = unlike_training_note(data, weights.trained_side, weights.image_size)
    warnings = [] if unlike is None else [unlike]
    if found.left_out:
        warnings.append(_left_out_note(found.left_out))
    for warning in warnings:
        output.log(f"warning: {warning}")
    began_s = time.monotonic()
    predictions: list[Prediction] = []
    with output.progress(f"{weights.model}", len(data)) as bar:
        for one in predict(
            model,
            weights,
            data,
            device=device,
            top=args.top,
            batch_size=args.batch_size,
            image_size=args.image_size,
            flip=args.flip,
            threads=args.threads,
        ):
            predictions.append(one)
            bar.advance()
    if args.write is not None:
        _write(args.write, predictions)
    failed = sum(one.error is not None for one in predictions)
    document = {
        "model": weights.model,
        "weights": weights.path,
        "device": device.name,
        "images": len(predictions),
        "failed": failed,
        "img_s": len(predictions) / (time.monotonic() - began_s),
        "answers": [_row(one) for one in predictions],
        "written": args.write,
        "left_out": [{"image": utf8_text(one.path), "reason": one.reason} for one in found.left_out],
        "warnings": warnings,
    }
    output.emit(args, document, lambda: _render(predictions, args.write))
    return 1 if failed else 0


def _left_out_note(left_out: Sequence[LeftOut]) -> str:
    """Say how many paths were left out and which; a screen takes the first ones, the JSON document all."""
    listed = "; ".join(f"{utf8_text(one.path)} ({one.reason})" for one in left_out[:LISTED])
    more = f"; {len(left_out) - LISTED:,} more" if len(left_out) > LISTED else ""
    return f"{count_text(len(left_out), 'path')} left out: {listed}{more}"


def _row(one: Prediction) -> dict[str, object]:
    likely = [{"class": utf8_text(name), "probability": share} for name, share in one.likely]
    return {"image": utf8_text(one.image), "top": likely, "error": _error(one) or None}


def _error(one: Prediction) -> str:
    return utf8_text(one.error or "")


def _write(path: Path, predictions: Sequence[Prediction]) -> None:
    text = io.StringIO(newline="")
    if path.suffix == ".jsonl":
        text.writelines(json.dumps(_row(one), ensure_ascii=False) + "\n" for one in predictions)
    else:
        writer = csv.writer(text)
        writer.writerow(["image", "rank", "class", "probability", "error"])
        for one in predictions:
            image = cell_text(utf8_text(one.image))
            rows = [
                (image, rank, cell_text(utf8_text(name)), f"{share:.6f}", "")
                for rank, (name, share) in enumerate(one.likely, 1)
            ]
            writer.writerows(rows or [(image, "", "", "", cell_text(_error(one)))])
    write_output(path, text.getvalue())


def _render(predictions: Sequence[Prediction], written: Path | None) -> None:
    listed = predictions[:TABLE_ROWS]
    # The folder that all names share is printed once: a narrow table would cut the rest of the names.
    common = os.path.commonprefix([one.image for one in listed]).rpartition("/")  # noqa: RUF071 - of URLs and keys too
    folder = "".join(common[:2])
    if folder:
        output.say(f"images in {folder}")
    # The unit stands in the header: a cell that is wrapped must not separate a number from its unit.
    columns = (
        Column("image", overflow="fold"),
        Column("most probable", overflow="fold"),
        Column("%", justify="right", no_wrap=True),
    )
    table = Table(*columns, Column("then (%)", overflow="fold"), box=box.SIMPLE_HEAD)
    for one in listed:
        classes = [(name, percent_text(share, digits=1).removesuffix(" %")) for name, share in one.likely]
        first = classes[0] if classes else (f"error: {one.error}", "")
        table.add_row(one.image.removeprefix(folder), *first, ", ".join(f"{name} {share}" for name, share in classes[1:]))
    output.stdout_console.print(table, markup=False)
    if len(predictions) > TABLE_ROWS:
        output.say(f"{len(predictions) - TABLE_ROWS:,} more; --write FILE.csv or FILE.jsonl writes all")
    if written is not None:
        output.say(f"written: {written}")
