"""Trained weights and what they are weights of: reads the final.safetensors that `headrace train` leaves behind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace import models
from headrace.errors import StateError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["FINAL", "Weights", "load_model"]

FINAL = "final.safetensors"
_HINT = "give the final.safetensors of a finished run, or the run's folder"


@dataclass(frozen=True, slots=True)
class Weights:
    """The header's facts: the model's name, the size of images it was trained on, its classes in order, the steps taken.

    `test_size`: the size at which the run judged it; `flip_test`: whether together with mirror images.
    """

    path: Path
    model: str
    image_size: int
    classes: tuple[str, ...]
    steps: int
    test_size: int
    flip_test: bool


def load_model(path: Path) -> tuple[nn.Module, Weights]:
    """The trained model, on the CPU and in evaluation mode, and its facts. `path`: the file, or the run's folder.

    Raises StateError naming what does not fit.
    """
    from safetensors import SafetensorError, safe_open

    path = path / FINAL if path.is_dir() else path
    if not path.is_file():
        raise StateError(f"cannot read weights {path}: there is no such file", hint=_HINT)
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})["headrace"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        size = facts["image_size"]
        weights = Weights(
            path=path,
            model=facts["model"],
            image_size=size,
            classes=tuple(facts["classes"]),
            steps=facts["steps"],
            test_size=facts.get("test_size", size),
            flip_test=facts.get("flip_test", False),
        )
    except (OSError, SafetensorError) as error:
        raise StateError(f"cannot read weights {path}: {error}", hint=_HINT) from error
    except (KeyError, ValueError, TypeError) as error:
        raise StateError(f"{path} does not say what it holds: it was not written by headrace train", hint=_HINT) from error
    if facts.get("simulated"):
        model = models.stand_in(len(weights.classes))
    else:
        filtered = facts.get("blurpool", False)
        model = models.build(weights.model, classes=len(weights.classes), image_size=size, blurpool=filtered)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise StateError(f"{path} does not fit {weights.model}: {str(error).splitlines()[0]}") from error
    return model.eval(), weights
