"""`headrace evaluate`: how good trained weights are on a data set."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import headrace
from headrace.cli import output
from headrace.devices import open_device
from headrace.errors import SourceError, UsageError
from headrace.evaluation import Scores, evaluate
from headrace.training.prepare import evaluation_loader
from headrace.weights import load_model

SUMMARY = "top-1 and top-5 accuracy of trained weights on a data set, every image counted once"
EXAMPLE = "headrace evaluate runs/one/final.safetensors --data /data/imagenet/val"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `headrace evaluate`."""
    add = parser.add_argument
    add("weights", type=Path, metavar="WEIGHTS", help="final.safetensors of `headrace train`")
    add("--data", required=True, metavar="PATH", help="images: a folder of class folders, or a packed dataset")
    add("--batch-size", type=int, default=256, metavar="N")
    add("--image-size", type=int, metavar="PIXELS", help="default: that of the training")
    add("--device", metavar="DEVICE", help="cpu or cuda (default: cuda if there is any)")
    add("--threads", type=int, metavar="N", help="threads that read and decode (default: the usable cores)")


def run(args: argparse.Namespace) -> int:
    """Evaluates and prints."""
    device = open_device(args.device)
    if device.simulated:
        raise UsageError("weights cannot be evaluated on a simulated device", hint="--device cpu or cuda")
    model, weights = load_model(args.weights)
    data = headrace.open(args.data)
    if data.classes != weights.classes:
        what = f"{args.data} has {len(data.classes)} classes that are not the {len(weights.classes)} of {args.weights}"
        raise SourceError(what, hint="give data with the class folders that the training had")
    size = args.image_size or weights.image_size
    began_s = time.monotonic()
    with evaluation_loader(data, size, batch_size=args.batch_size, device=device, threads=args.threads) as loader:
        scores = evaluate(model.to(device.torch_name), loader, device=device.torch_name)
    assert scores is not None  # nothing stops it on the way
    img_s = scores.images / (time.monotonic() - began_s)
    document = {
        "model": weights.model,
        "weights": args.weights,
        "device": device.name,
        "top1": scores.top1,
        "top5": scores.top5,
        "loss": scores.loss,
        "images": scores.images,
        "img_s": img_s,
    }
    output.emit(args, document, lambda: _render(weights.model, scores, img_s))
    return 0


def _render(model: str, scores: Scores, img_s: float) -> None:
    top5 = "" if scores.top5 is None else f", top-5 {scores.top5:.2%}"
    print(f"{model}: top-1 {scores.top1:.2%}{top5}, loss {scores.loss:.4f} on {scores.images:,} images ({img_s:,.0f} img/s)")
