"""`headrace export`: trained weights in other formats."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.cli.shared import output
from headrace.cli.train.training_options import add_model_of_weights
from headrace.errors import SourceError, UsageError
from headrace.system.text.sizes import size_text
from headrace.training.weights.export import FORMATS, Exported, export
from headrace.training.weights.trained_weights import load_model

SUMMARY = "export trained weights as ONNX, TorchScript, torch.export program or safetensors, and compare their scores"
EXAMPLE = "headrace export runs/one --format onnx --out resnet50.onnx"

SUFFIXES = {"safetensors": ".safetensors", "onnx": ".onnx", "torchscript": ".torchscript.pt", "exported": ".pt2"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headrace export`."""
    add = parser.add_argument
    add("weights", type=Path, metavar="WEIGHTS", help="final.safetensors of `headrace train`, a checkpoint, or a run's folder")
    add_model_of_weights(parser)
    add(
        "--format",
        choices=tuple(FORMATS),
        required=True,
        help="file format; exported is a torch.export program, onnx needs the extra export",
    )
    add(
        "--out",
        type=Path,
        metavar="FILE",
        help="file to write (default: MODEL with the usual suffix of the format, in this folder)",
    )
    add(
        "--image-size",
        type=int,
        metavar="PIXELS",
        help="image size of the input in pixels (default: that of the run's own evaluation)",
    )


def run(args: argparse.Namespace) -> int:
    """Export the weights, compare the exported model's outputs with the original's, print the result. Return the exit code."""
    if args.image_size is not None and args.image_size < 1:
        raise UsageError(f"--image-size must be at least 1, not {args.image_size}")
    model, weights = load_model(args.weights, model=args.model)
    if weights.simulated:
        raise SourceError(f"{weights.path} was trained on a simulated device: it holds a stand-in's weights")
    name = weights.model.replace(":", "-").replace("/", "-")
    path = args.out if args.out is not None else Path(name + SUFFIXES[args.format])
    if path.is_dir():
        raise UsageError(f"--out {path} is a folder", hint=f"--out {path / (name + SUFFIXES[args.format])}")
    if path.exists() and path.samefile(weights.path):
        raise UsageError(f"--out {path} is the file of weights that is read", hint="--out FILE, another one")
    found = export(model, weights, path, args.format, image_size=args.image_size)
    output.emit(args, _document(found), lambda: _render(found))
    return 0


def _document(found: Exported) -> dict[str, object]:
    return {"out": found.path, "format": found.format, "size_bytes": found.size_bytes, "difference": found.difference}


def _render(found: Exported) -> None:
    output.say(
        f"{found.path}: {found.format}, {size_text(found.size_bytes)}, answers within {found.difference:.1e} of the model's"
    )
