"""The thresholds of the rules with what each decides, read from the modules of the rules, so that the page cannot differ."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

from headrace.diagnosis import diagnose
from headrace.diagnosis.findings import confidence, gpu_settings
from headrace.diagnosis.fixes import batches, images, training_process, workers
from headrace.diagnosis.measure import batch_cost, enough_steps, pauses, prediction, rank
from headrace.diagnosis.measure import machine as measured_machine
from headrace.diagnosis.rules import gpu, machine, order, ranks
from headrace.diagnosis.rules import input as input_rules
from headrace.diagnosis.rules import pauses as pause_rules
from headrace.report.text import slow_steps

__all__ = ["Threshold", "thresholds"]

SOURCES: tuple[tuple[str, ModuleType], ...] = (
    ("input", input_rules),
    ("machine", machine),
    ("ranks", ranks),
    ("pauses", pause_rules),
    ("GPU", gpu),
    ("order of causes", order),
    ("diagnosis", diagnose),
    ("confidence", confidence),
    ("enough steps", enough_steps),
    ("measured ranks", rank),
    ("measured batches", batch_cost),
    ("measured pauses", pauses),
    ("measured machine", measured_machine),
    ("prediction", prediction),
    ("worker fixes", workers),
    ("image fixes", images),
    ("batch fixes", batches),
    ("process fixes", training_process),
    ("GPU settings", gpu_settings),
    ("slow steps", slow_steps),
)


@dataclass(frozen=True, slots=True)
class Threshold:
    """A numeric constant of the diagnosis. note: what the constant decides, from the first paragraph of its docstring."""

    name: str
    value: float
    note: str


def thresholds() -> list[Threshold]:
    """Return name, value and note of each numeric constant of the diagnosis. Shares are 0 to 1; a name ends with its unit.

    Notes are empty where headrace is installed without its source files.
    """
    return [
        Threshold(f"{where}: {name.replace('_', ' ').lower()}", value, note)
        for where, module in SOURCES
        for name, note in _constants(module)
        if isinstance(value := getattr(module, name), int | float) and not isinstance(value, bool)
    ]


def _constants(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield the name and the note of each constant that a module assigns."""
    try:
        body = ast.parse(inspect.getsource(module)).body
    except (OSError, TypeError):  # installed without source files
        yield from ((name, "") for name in vars(module) if name.isupper())
        return
    for statement, following in zip(body, [*body[1:], None], strict=True):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        if isinstance(target, ast.Name) and target.id.isupper():
            yield target.id, _note(following)


def _note(statement: ast.stmt | None) -> str:
    """Return the first paragraph of a statement that is only a text, without its backquotes; "" for any other statement."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
        return ""
    return " ".join(str(statement.value.value).split("\n\n")[0].split()).replace("`", "")
