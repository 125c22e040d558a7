"""The state of a checkpoint, read field by field: a file may come from anybody, and its JSON may hold anything.

`checkpoint.parse` checks that the bytes are whole. Here each value gets its type and range, or the error names the field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import StateError
from headrace.system.text.printable import value_text
from headrace.training.weights.checkpoint import Checkpoint
from headrace.training.weights.evaluation import Scores

__all__ = ["SavedState", "finished_epochs", "read_facts", "read_saved_state", "saved_step"]

MOST = 1 << 53
"""Refuse larger integers in a saved state: real steps, batches and sizes are far below, and up to here floats are exact."""
LARGEST_IMAGE = 1 << 16


@dataclass(frozen=True, slots=True)
class SavedState:
    """What a run continues with. `groups`: numbers of the optimizer's parameter groups; the rest as `state.save` writes it."""

    step: int
    batch_size: int
    loader: dict[str, Any]
    scaler: dict[str, Any]
    groups: list[dict[str, Any]]
    evaluated_step: int
    scores: Scores | None


def read_saved_state(found: Checkpoint) -> SavedState:
    """Return the checked state of a checkpoint. Raises StateError naming the field that is missing or wrong."""
    read = _Reader(found.state, str(found.path))
    scores = read.get("scores", lambda value: value is None or _is_table(value))
    return SavedState(
        step=saved_step(found),
        batch_size=read.get("batch_size", _is_count(1)),
        loader=read.get("loader", _is_table),
        scaler=read.get("scaler", lambda value: _is_table(value) and all(map(_is_number, value.values()))),
        groups=read.get("groups", lambda value: isinstance(value, list) and all(map(_is_group, value))),
        evaluated_step=read.get("evaluated_step", _is_step),
        scores=None if scores is None else _scores(scores, read.where),
    )


def saved_step(found: Checkpoint) -> int:
    """Return the number of steps that the checkpoint's run had done. Raises StateError if its state has no valid number."""
    step: int = _Reader(found.state, str(found.path)).get("step", _is_step)
    return step


def finished_epochs(found: Checkpoint) -> int | None:
    """Return the epochs of a run whose last checkpoint this is; None if it was stopped before, or ended by --steps."""
    epochs: int | None = _Reader(found.state, str(found.path)).get(
        "finished_epochs", lambda value: value is None or _is_count(1)(value), None
    )
    return epochs


def read_facts(facts: object, where: str) -> dict[str, Any]:
    """Return the checked facts of trained weights: model, sizes in pixels, classes, steps, switches.

    where: the file, for messages. Raises StateError naming a fact that is missing or has another type.
    """
    read = _Reader(facts, where)
    size = read.get("image_size", _is_size)
    return {
        "model": read.get("model", lambda value: isinstance(value, str)),
        "image_size": size,
        "classes": tuple(read.get("classes", lambda value: isinstance(value, list) and _are_names(value))),
        "steps": read.get("steps", _is_step),
        "test_size": read.get("test_size", _is_size, size),
        "flip_test": read.get("flip_test", _is_switch, False),
        "blurpool": read.get("blurpool", _is_switch, False),
        "simulated": read.get("simulated", _is_switch, False),
        "trained_side": read.get("trained_side", lambda value: value is None or _is_size(value), None),
    }


_REQUIRED = object()


class _Reader:
    """Reads the fields of one table of the file `where`."""

    def __init__(self, table: object, where: str) -> None:
        if not _is_table(table):
            raise StateError(f"{where} does not say what it holds", hint="it was not written by headrace train")
        self._table: Mapping[str, Any] = table  # type: ignore[assignment]
        self.where = where

    def get(self, name: str, fits: Callable[[Any], bool], default: Any = _REQUIRED) -> Any:
        value = self._table.get(name, default)
        if value is _REQUIRED:
            raise StateError(f"{self.where} does not say its {name}", hint="it was not written by headrace train")
        if not fits(value):
            hint = "it was not written by headrace train, or changed since"
            raise StateError(f"{self.where}: its {name} cannot be {value_text(value)}", hint=hint)
        return value


def _scores(table: Mapping[str, Any], where: str) -> Scores:
    read = _Reader(table, f"{where}, scores")
    top5 = read.get("top5", lambda value: value is None or _is_number(value))
    return Scores(read.get("top1", _is_number), top5, read.get("loss", _is_number), read.get("images", _is_count(0)))


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _is_switch(value: object) -> bool:
    return isinstance(value, bool)


def _is_number(value: object) -> bool:
    """Return whether a value is a number of at most 1e300 in size; NaN is one, as a loss may be."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) > 1e300


def _is_group(value: object) -> bool:
    def number(item: object) -> bool:
        return isinstance(item, bool) or (_is_number(item) and math.isfinite(item))  # type: ignore[arg-type]

    return isinstance(value, dict) and all(
        number(item) or (isinstance(item, list) and len(item) == 1 and number(item[0])) for item in value.values()
    )


def _is_count(least: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST


_is_step = _is_count(0)


def _is_size(value: object) -> bool:
    return _is_count(1)(value) and value <= LARGEST_IMAGE  # type: ignore[operator]


def _are_names(values: list[object]) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)
