"""Trained weights and their model, read from the folder, the final weights or a checkpoint of `headrace train`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import StateError
from headrace.system.files.near_paths import near_path_hint
from headrace.system.files.regular_file import check_regular
from headrace.system.text.foreign_errors import first_line
from headrace.training.models import factory
from headrace.training.settings.optimization import OptimizationOptions
from headrace.training.weights import checkpoint
from headrace.training.weights.saved_state import read_facts

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["FINAL", "Weights", "load_model"]

FINAL = "final.safetensors"
_HINT = "give the final.safetensors of a finished run, a checkpoint's folder, or the run's folder"


@dataclass(frozen=True, slots=True)
class Weights:
    """Facts about trained weights. image_size: of the training, in pixels. classes: in the order of the model's scores.

    `test_size` is the image size of the run's own evaluation; `flip_test`: it averaged each image with its mirror image.
    """

    path: Path
    model: str
    image_size: int
    classes: tuple[str, ...]
    steps: int
    test_size: int
    flip_test: bool
    blurpool: bool
    simulated: bool
    trained_side: int | None = None  # median of the shorter sides of the training images, in pixels


def load_model(path: Path, *, model: str | None = None) -> tuple[nn.Module, Weights]:
    """Load a trained model, on the CPU and in evaluation mode, and its facts.

    `path` is a file of final weights, the folder of a checkpoint, or the folder of a run: then its final weights, else its
    newest whole checkpoint. Of a checkpoint, the averaged weights are used if there are any. `model`: the model's name, which
    must be given where it is code (`MODULE:FACTORY`): a file alone never chooses what is imported. Raises StateError naming
    what does not fit, UsageError for another model and for code that is not named here.

        model, weights = load_model(Path("runs/one"))
    """
    tensors, weights = _found(path)
    factory.check_model_of_file(weights.model, given=model, where=str(weights.path))
    _check_classes(tensors, weights)
    if ":" not in weights.model:
        _check_shapes(tensors, weights)
    built = _built(weights)
    try:
        built.load_state_dict(tensors)
    except RuntimeError as error:
        raise StateError(f"{weights.path} does not fit {weights.model}: {first_line(error)}") from error
    return built.eval(), weights


def _check_classes(tensors: Mapping[str, torch.Tensor], weights: Weights) -> None:
    """Raise StateError for more classes than any tensor has rows: to build that model may take all memory."""
    most = max((tensor.shape[0] for tensor in tensors.values() if tensor.ndim), default=0)
    if len(weights.classes) > most:
        words = f"it names {len(weights.classes):,} classes, and has scores for at most {most:,}"
        raise StateError(f"{weights.path} does not fit {weights.model}: {words}")


def _check_shapes(tensors: Mapping[str, torch.Tensor], weights: Weights) -> None:
    """Raise StateError unless the file holds the tensors of its model: then that takes no more memory than the file did."""
    for name, shape in (factory.shapes_of(lambda: _built(weights)) or {}).items():
        found = tensors.get(name)
        if found is not None and found.shape != shape:
            words = f"{name} has the shape {list(found.shape)}, {list(shape)} is needed"
            raise StateError(f"{weights.path} does not fit {weights.model}: {words}")
        if found is None and not name.endswith("num_batches_tracked"):
            raise StateError(f"{weights.path} does not fit {weights.model}: it holds no {name}")


def _built(weights: Weights) -> nn.Module:
    classes = len(weights.classes)
    if weights.simulated:
        return factory.build_stand_in(classes)
    return factory.build_model(weights.model, classes=classes, image_size=weights.image_size, blurpool=weights.blurpool)


def _found(path: Path) -> tuple[dict[str, torch.Tensor], Weights]:
    if path.is_dir():
        if (path / FINAL).is_file():
            return _read_final(path / FINAL)
        if (path / checkpoint.STATE).is_file():
            return _from_checkpoint(checkpoint.load(path))
        found, damaged = checkpoint.newest(path / "checkpoints")
        if found is None:
            why = f": {damaged[0]}" if damaged else ""
            raise StateError(f"cannot read weights {path}: no final weights and no whole checkpoint there{why}", hint=_HINT)
        return _from_checkpoint(found)
    if not path.is_file():
        raise StateError(f"cannot read weights {path}: there is no such file", hint=near_path_hint(path, _HINT))
    return _read_final(path)


def _read_final(path: Path) -> tuple[dict[str, torch.Tensor], Weights]:
    from safetensors import SafetensorError, safe_open

    try:
        check_regular(path)
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})["headrace"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        return tensors, Weights(path=path, **read_facts(facts, str(path)))
    except (OSError, SafetensorError) as error:
        raise StateError(f"cannot read weights {path}: {error}", hint=_HINT) from error
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise StateError(f"{path} does not say what it holds: it was not written by headrace train", hint=_HINT) from error


def _from_checkpoint(found: checkpoint.Checkpoint) -> tuple[dict[str, torch.Tensor], Weights]:
    prefix = "average." if any(name.startswith("average.") for name in found.tensors) else "model."
    tensors = {name.removeprefix(prefix): value for name, value in found.tensors.items() if name.startswith(prefix)}
    try:
        facts = dict(found.state["identity"])
        optimization = OptimizationOptions(**facts["recipe"])
        facts |= {"classes": found.state["classes"], "steps": found.state["step"], "flip_test": optimization.flip_test}
        facts |= {"test_size": optimization.test_size(facts["image_size"]), "blurpool": optimization.blurpool}
        facts["trained_side"] = found.state.get("trained_side")
        return tensors, Weights(path=Path(found.path), **read_facts(facts, str(found.path)))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise StateError(f"{found.path} does not say what it holds: {first_line(error)}", hint=_HINT) from error
