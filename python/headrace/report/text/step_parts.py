"""The parts of a step in the report: their short names, their groups in the bar, and their look on a terminal.

`headrace.diagnosis.result.model.SHARES` has their long names; `page.css` has their colours on a page, by the same keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["STEP_PARTS", "PartStyle", "part_style"]


@dataclass(frozen=True, slots=True)
class PartStyle:
    """The look of one part of a step. short: label. fill: character in the terminal's bar. colour: in rich's notation."""

    short: str
    group: str
    fill: str
    colour: str


WAITING, OTHER = "waiting for input", "other"

# Part → look, in the order of the bar; parts of one group are neighbours. Orange: waiting; blue: computing; grey: the rest.
STEP_PARTS: Mapping[str, PartStyle] = {
    "input_storage": PartStyle("storage", WAITING, "▒", "color(130)"),
    "input_cpu": PartStyle("decode + augment", WAITING, "▓", "color(208)"),
    "input_queue": PartStyle("CPU queue", WAITING, "░", "color(215)"),
    "input_quota": PartStyle("CPU quota", WAITING, "▧", "color(173)"),
    "input_collate": PartStyle("collate + transport", WAITING, "▚", "color(223)"),
    "input_next": PartStyle("in next() itself", WAITING, "▤", "color(178)"),
    "h2d": PartStyle("copy to GPU", "copying", "▞", "color(110)"),
    "compute": PartStyle("compute", "computing", "█", "color(31)"),
    "script": PartStyle("script", "the script", "▥", "color(136)"),
    "core_wait": PartStyle("wait for a core", "waiting for a core", "▦", "color(102)"),
    "quota": PartStyle("CPU quota", "stopped by the CPU quota", "▩", "color(95)"),
    "communication": PartStyle("gradients", OTHER, "╱", "color(97)"),
    "sync": PartStyle("device waits", OTHER, "═", "color(140)"),
    "periodic": PartStyle("pauses", OTHER, "╳", "color(245)"),
    "standstill": PartStyle("stands still", OTHER, "!", "color(160)"),
    "other": PartStyle("other", OTHER, "·", "color(250)"),
}


def part_style(key: str) -> PartStyle:
    """Return the style of a part. A part that is not in `STEP_PARTS` looks like `other` under its own name."""
    return STEP_PARTS.get(key) or PartStyle(key.replace("_", " "), OTHER, "·", "color(250)")
