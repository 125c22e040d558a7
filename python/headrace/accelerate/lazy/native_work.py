"""What this process has made natively of the JPEGs that items open: which library opened them, and what was done with them."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["WORK", "native_work", "note_native", "work_words"]

LIBRARIES = ("OpenCV", "torchvision.io")
WORK = ("Pillow", *LIBRARIES, "crop", "resize")
"""What is counted: JPEGs by the library that opened them; and of those that Pillow opened, what Pillow would have done."""

_counts = dict.fromkeys(WORK, 0)


def note_native(name: str) -> None:
    """Count something of `WORK` that is made natively."""
    _counts[name] += 1


def native_work(*names: str) -> tuple[int, ...]:
    """Return how often each of the names (default: all of `WORK`) was noted in this process."""
    return tuple(_counts[name] for name in names or WORK)


def work_words(work: Collection[str]) -> str:
    """Return in words what is native, as the subject of a sentence. An empty text if no JPEG was opened.

    work_words({"Pillow", "resize"})  # "the decode and resize of JPEGs that Pillow opens"
    """
    steps = [step for step in ("crop", "resize") if step in work]
    of_pillow = f"decode, {steps[0]} and {steps[1]}" if len(steps) == 2 else " and ".join(["decode", *steps])
    readers = [library for library in LIBRARIES if library in work]
    parts = [f"the {of_pillow} of JPEGs that Pillow opens"] if "Pillow" in work else []
    if readers:
        parts.append(f"the decode of JPEGs that {' or '.join(readers)} reads")
    return ", and ".join(parts)
