"""The numbers that the rules use, read from the rules themselves, so that the page cannot say others."""

from __future__ import annotations

from types import ModuleType

from headrace.diagnosis import diagnose
from headrace.diagnosis import fixes as predict
from headrace.diagnosis import measure as measured
from headrace.diagnosis import rules as verdicts
from headrace.report import slow_steps

__all__ = ["thresholds"]

SOURCES: tuple[tuple[str, ModuleType], ...] = (
    ("verdicts", verdicts),
    ("diagnose", diagnose),
    ("measured", measured),
    ("predict", predict),
    ("slow steps", slow_steps),
)


def thresholds() -> list[tuple[str, object]]:
    """(name in words, value) of every numeric constant of the rules; shares of 1."""
    return [
        (f"{where}: {name.replace('_', ' ').lower()}", value)
        for where, module in SOURCES
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, int | float) and not isinstance(value, bool)
    ]
