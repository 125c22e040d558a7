"""Sampled Python stacks, as a session holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.session.typed_json import field_value

__all__ = ["Stack", "StackFrame", "read_stacks"]

MOST_FRAMES = 200
"""Functions of one stack. The recorder keeps 96; the time of a diagnosis grows with the square."""


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One function on a sampled stack. For the script's own code `file` is absolute, and `line` the line that ran."""

    function: str
    file: str
    line: int

    @property
    def is_own(self) -> bool:
        """Whether the function is the script's own."""
        return self.file.startswith(("/", "<ipython", "<stdin>", "<string>"))


@dataclass(frozen=True, slots=True)
class Stack:
    """One Python stack of one process, and how often it was sampled (`count`).

    role: "batch" (making a batch), "collate", "next" (inside `next()`), "step", "holder" (the thread that kept a thread with
        one of the first three from the interpreter), or "step holder" (the one that kept a thread in a step from it).
    waits: whether the thread waited for another thread or process.
    loader: number of the loader whose batch it makes or trains on; None in older sessions.
    frames: outermost function first; empty for the stacks beyond the most that are kept.
    after_optimizer: whether the optimizer had done its part of the training step.
    """

    pid: int
    role: str
    count: int
    waits: bool = False
    frames: tuple[StackFrame, ...] = ()
    loader: int | None = None
    after_optimizer: bool = False


def read_stacks(lines: Sequence[Mapping[str, Any]]) -> tuple[Stack, ...]:
    """Return the stacks of the lines of a session, each once: a process writes its counts several times.

    Raises `ValueError` for a value of another type, or a stack of too many functions.
    """
    counts: dict[tuple[int, str, bool, tuple[StackFrame, ...], int | None, bool], int] = {}
    for line in lines:
        for count, waits, places in line["stacks"]:
            if len(places) > MOST_FRAMES:
                raise ValueError(f"a stack of {len(places):,} functions")
            frames = tuple(StackFrame(str(function), str(file), int(row)) for function, file, row in places)
            pid, role, loader = (field_value(Stack, name, line.get(name)) for name in ("pid", "role", "loader"))
            key = (pid, role, bool(waits), frames, loader, bool(line.get("after_optimizer")))
            counts[key] = counts.get(key, 0) + int(count)
    return tuple(Stack(key[0], key[1], count, *key[2:]) for key, count in counts.items())
