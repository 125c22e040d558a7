"""`headrace export`: trained weights in the formats of others."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.cli import output
from headrace.errors import SourceError, UsageError
from headrace.system.sizes import size_text
from headrace.training.export import FORMATS, Exported, export
from headrace.training.models.trained_weights import load_model

SUMMARY = "trained weights as ONNX, TorchScript, a torch.export program or safetensors, compared with the model's answers"
EXAMPLE = "headrace export runs/one --format onnx --out resnet50.onnx"

ENDINGS = {"safetensors": ".safetensors", "onnx": ".onnx", "torchscript": ".torchscript.pt", "exported": ".pt2"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `headrace export`."""
    add = parser.add_argument
    add("weights", type=Path, metavar="WEIGHTS", help="final.safetensors of `headrace train`, a checkpoint, or a run's folder")
    add(
        "--format",
        choices=tuple(FORMATS),
        required=True,
        help="exported: a program of torch.export; onnx needs headrace[export]",
    )
    add("--out", type=Path, metavar="FILE", help="default: MODEL with the format's usual ending, here")
    add("--image-size", type=int, metavar="PIXELS", help="of the input (default: that of the run's own evaluation)")


def run(args: argparse.Namespace) -> int:
    """Exports, compares and prints."""
    if args.image_size is not None and args.image_size < 1:
        raise UsageError(f"--image-size must be at least 1, not {args.image_size}")
    model, weights = load_model(args.weights)
    if weights.simulated:
        raise SourceError(f"{weights.path} was trained on a simulated device: it holds a stand-in's weights")
    name = weights.model.replace(":", "-").replace("/", "-")
    path = args.out if args.out is not None else Path(name + ENDINGS[args.format])
    if path.is_dir():
        raise UsageError(f"--out {path} is a folder", hint=f"--out {path / (name + ENDINGS[args.format])}")
    if path.exists() and path.samefile(weights.path):
        raise UsageError(f"--out {path} is the file that is read", hint="--out FILE, another one")
    found = export(model, weights, path, args.format, image_size=args.image_size)
    output.emit(args, _document(found), lambda: _render(found))
    return 0


def _document(found: Exported) -> dict[str, object]:
    return {"out": found.path, "format": found.format, "size_bytes": found.size_bytes, "difference": found.difference}


def _render(found: Exported) -> None:
    print(f"{found.path}: {found.format}, {size_text(found.size_bytes)}, answers within {found.difference:.1e} of the model's")
