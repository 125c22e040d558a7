"""Join the lines of loaders and processes in a session with what later lines say of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["loader_lines", "process_lines"]

Lines = Mapping[str, Sequence[dict[str, Any]]]
"""The lines of a session by their kind."""


def loader_lines(by_kind: Lines) -> Iterator[dict[str, Any]]:
    """Yield the lines of loaders, each with what later lines say: format of batches, opened images, take-over by `run`."""
    later: dict[tuple[int, int], dict[str, Any]] = {}
    for line in by_kind.get("batch_format", ()):
        later.setdefault((line["pid"], line["loader"]), {})["batch_format"] = line["format"]
    for line in by_kind.get("opened_images", ()):
        later.setdefault((line["pid"], line["loader"]), {})["sample_paths"] = line["sample_paths"]
    for line in by_kind.get("take_over", ()):
        answer = {name: line.get(name) for name in ("take_over", "take_over_reason", "native_part")}
        later.setdefault((line["pid"], line["loader"]), {}).update(answer)
    yield from (line | later.get((line["pid"], line["loader"]), {}) for line in by_kind.get("loader", ()))


def process_lines(by_kind: Lines) -> Iterator[dict[str, Any]]:
    """Yield the lines of processes, each with the threads that it had last: scripts set them when they have begun."""
    later = {
        line["pid"]: {name: line.get(name) for name in ("thread_settings", "torch_threads")}
        for line in by_kind.get("threads", ())
    }
    yield from (line | later.get(line["pid"], {}) for line in by_kind.get("process", ()))
