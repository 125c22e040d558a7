"""The thresholds of the rules, read from the modules of the rules, so that the page cannot show other numbers."""

from __future__ import annotations

from types import ModuleType

from headrace.diagnosis import confidence, diagnose, gpu_settings, prediction
from headrace.diagnosis.fixes import batches, images, training_process, workers
from headrace.diagnosis.measure import batch_cost, pauses, rank
from headrace.diagnosis.measure import machine as measured_machine
from headrace.diagnosis.rules import gpu, machine, order, ranks
from headrace.diagnosis.rules import input as input_rules
from headrace.diagnosis.rules import pauses as pause_rules
from headrace.report import slow_steps

__all__ = ["thresholds"]

SOURCES: tuple[tuple[str, ModuleType], ...] = (
    ("input", input_rules),
    ("machine", machine),
    ("ranks", ranks),
    ("pauses", pause_rules),
    ("GPU", gpu),
    ("order of causes", order),
    ("diagnosis", diagnose),
    ("confidence", confidence),
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


def thresholds() -> list[tuple[str, object]]:
    """Return (name in words, value) of every numeric constant of the rules, each once; shares are 0 to 1."""
    found: dict[str, tuple[str, object]] = {}
    for where, module in SOURCES:
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, int | float) and not isinstance(value, bool):
                found.setdefault(name, (f"{where}: {name.replace('_', ' ').lower()}", value))
    return list(found.values())
