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

__all__ = ["Weights", "load_model"]


@dataclass(frozen=True, slots=True)
class Weights:
    """The header's facts: the model's name, the size of images it was trained on, its classes in order, the steps taken."""

    model: str
    image_size: int
    classes: tuple[str, ...]
    steps: int


def load_model(path: Path) -> tuple[nn.Module, Weights]:
    """The trained model, on the CPU and in evaluation mode, and its facts. Raises StateError naming what does not fit."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})["headrace"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    except (OSError, SafetensorError) as error:
        raise StateError(f"cannot read weights {path}: {error}", hint="give the final.safetensors of a finished run") from error
    except (KeyError, ValueError) as error:
        what = f"{path} does not say what it holds: it was not written by headrace train"
        raise StateError(what, hint="give the final.safetensors of a finished run") from error
    weights = Weights(facts["model"], facts["image_size"], tuple(facts["classes"]), facts["steps"])
    if facts.get("simulated"):
        model = models.stand_in(len(weights.classes))
    else:
        model = models.build(weights.model, classes=len(weights.classes), image_size=weights.image_size)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise StateError(f"{path} does not fit {weights.model}: {str(error).splitlines()[0]}") from error
    return model.eval(), weights
