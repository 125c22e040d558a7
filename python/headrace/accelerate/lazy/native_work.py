"""Count the JPEGs that this process opened natively, by library, and the crops and resizes that were native."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["WORK", "native_work", "note_native", "work_words"]

LIBRARIES = ("OpenCV", "torchvision.io")
WORK = ("Pillow", *LIBRARIES, "crop", "resize")
"""The counters: JPEGs by the library that opened them, and native crops and resizes of those that Pillow opened."""

_counts = dict.fromkeys(WORK, 0)


def note_native(name: str) -> None:
    """Add 1 to this process's counter `name`, one of `WORK`."""
    _counts[name] += 1


def native_work(*names: str) -> tuple[int, ...]:
    """Return the counters of this process with these names (default: all of `WORK`)."""
    return tuple(_counts[name] for name in names or WORK)


def work_words(work: Collection[str]) -> str:
    """Return the native steps as the subject of a sentence; an empty text if no JPEG was opened.

    work_words({"Pillow", "resize"})  # "the decode and resize of JPEGs that Pillow opens"
    """
    steps = [step for step in ("crop", "resize") if step in work]
    of_pillow = f"decode, {steps[0]} and {steps[1]}" if len(steps) == 2 else " and ".join(["decode", *steps])
    readers = [library for library in LIBRARIES if library in work]
    parts = [f"the {of_pillow} of JPEGs that Pillow opens"] if "Pillow" in work else []
    if readers:
        parts.append(f"the decode of JPEGs that {' or '.join(readers)} reads")
    return ", and ".join(parts)
