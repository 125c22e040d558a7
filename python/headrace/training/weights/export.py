"""Export of trained weights to other formats. Each file is loaded again and its scores are compared with the model's.

The exported model takes float32 images [N, 3, H, W] for any N, normalised by ImageNet's mean and standard deviation. It returns
the scores of the classes before softmax, [N, classes]. Classes, image size, mean and deviation are inside the file, as JSON
under "headrace".
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, MissingDependencyError, UsageError
from headrace.system.files.atomic_write import replacing
from headrace.system.files.private_files import make_output_folder
from headrace.system.text.install_hints import extra_hint
from headrace.system.text.sizes import percent_text
from headrace.training.weights.checkpoint import save_weights
from headrace.training.weights.evaluation import model_scores
from headrace.training.weights.trained_weights import Weights, load_model
from headrace.transforms.composition import IMAGENET_MEAN, IMAGENET_STD

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["FORMATS", "Exported", "export"]

LARGEST_DIFFERENCE = 1e-3  # accepted difference of scores as a share of the largest; sums in another order differ by less
OPSET = 18  # version of ONNX's operators
BATCHES = (2, 3)  # sizes of the two compared batches: the exported model must accept any


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported file. difference: largest difference from the original model's scores, as a share of the largest score."""

    path: Path
    format: str
    size_bytes: int
    difference: float


def export(model: nn.Module, weights: Weights, path: Path, format: str, *, image_size: int | None = None) -> Exported:
    """Write `model` to `path` in one of FORMATS. Raises HeadraceError if the exported model's scores differ."""
    import torch

    if format not in FORMATS:
        raise UsageError(f"there is no format {format!r}", hint=f"there are {', '.join(FORMATS)}")
    size = image_size or weights.test_size
    model = model.cpu().eval()
    facts = {"model": weights.model, "classes": list(weights.classes), "image_size": size, "steps": weights.steps}
    facts |= {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "trained_size": weights.image_size, "blurpool": weights.blurpool}
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(count, 3, size, size, generator=generator) for count in BATCHES]
    with torch.no_grad():
        model_scores(model, batches[0], flip=False)  # raises in words what the exporters would raise
    try:
        make_output_folder(path.parent)
        with replacing(path) as unfinished:
            with warnings.catch_warnings(), redirect_stdout(io.StringIO()), torch.no_grad():
                warnings.simplefilter("ignore")  # those of the exporters concern their own code
                run = FORMATS[format](model, weights, unfinished, batches[0], facts)
                difference = max(_difference(run(images), model(images)) for images in batches)
            if not difference <= LARGEST_DIFFERENCE:
                by = percent_text(difference, digits=2)
                raise HeadraceError(f"the scores of the exported {format} differ from the model's by {by}: not written")
    except OSError as error:
        raise HeadraceError(f"cannot write {path}: {error.strerror or error}") from error
    return Exported(path, format, path.stat().st_size, difference)


def _difference(found: Any, expected: torch.Tensor) -> float:
    import torch

    found = torch.as_tensor(found)
    if found.shape != expected.shape:
        return float("inf")
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-12))


Runner = Callable[["torch.Tensor"], Any]


def _safetensors(model: nn.Module, weights: Weights, path: Path, images: torch.Tensor, facts: dict[str, Any]) -> Runner:
    """Write weights as `headrace train` does, for `predict`, `evaluate`, and programs that build the same model."""
    header = {"model": weights.model, "simulated": False, "image_size": weights.image_size, "test_size": weights.test_size}
    header |= {"flip_test": weights.flip_test, "blurpool": weights.blurpool, "classes": list(weights.classes)}
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_weights(path, tensors, {**header, "steps": weights.steps})
    again: Runner = load_model(path, model=weights.model)[0]
    return again


def _torchscript(model: nn.Module, weights: Weights, path: Path, images: torch.Tensor, facts: dict[str, Any]) -> Runner:
    import torch

    traced = torch.jit.trace(model, images)
    torch.jit.save(traced, str(path), _extra_files={"headrace": json.dumps(facts)})
    loaded: Runner = torch.jit.load(str(path))
    return loaded


def _exported(model: nn.Module, weights: Weights, path: Path, images: torch.Tensor, facts: dict[str, Any]) -> Runner:
    import torch

    program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("images")},))
    with open(path, "wb") as file:
        torch.export.save(program, file, extra_files={"headrace": json.dumps(facts)})
    with open(path, "rb") as file:
        loaded: Runner = torch.export.load(file).module()
    return loaded


def _onnx(model: nn.Module, weights: Weights, path: Path, images: torch.Tensor, facts: dict[str, Any]) -> Runner:
    try:
        import onnx
        import onnxscript  # noqa: F401 - torch's exporter needs it, and says so less clearly
        from onnx.reference import ReferenceEvaluator
    except ImportError as error:
        hint = extra_hint("export")
        raise MissingDependencyError(f"--format onnx needs onnx and onnxscript: {error}", hint=hint) from error
    import torch

    program = torch.onnx.export(
        model,
        (images,),
        dynamo=True,
        opset_version=OPSET,
        input_names=["images"],
        output_names=["scores"],
        dynamic_shapes=({0: torch.export.Dim("images")},),
        verbose=False,
    )
    assert program is not None  # with dynamo=True
    proto = program.model_proto
    entry = proto.metadata_props.add()
    entry.key, entry.value = "headrace", json.dumps(facts)
    onnx.save_model(proto, str(path))
    onnx.checker.check_model(str(path), full_check=True)
    session = ReferenceEvaluator(onnx.load(str(path)))
    return lambda batch: session.run(None, {"images": batch.numpy()})[0]


FORMATS: dict[str, Callable[[Any, Weights, Path, Any, dict[str, Any]], Runner]] = {
    "safetensors": _safetensors,
    "onnx": _onnx,
    "torchscript": _torchscript,
    "exported": _exported,
}
