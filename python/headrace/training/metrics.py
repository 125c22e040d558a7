"""metrics.jsonl: what a training run says of itself, one JSON object a line, for people and for programs."""

from __future__ import annotations

import json
import time
from pathlib import Path

from headrace.errors import UsageError
from headrace.training.loggers import Loggers

__all__ = ["Metrics"]


class Metrics:
    """Appends to `path`; every line says how many seconds after the start it was written. Raises UsageError.

    `loggers` get the figures too.
    """

    def __init__(self, path: Path, loggers: Loggers | None = None) -> None:
        self._path, self._started_s, self._loggers = path, time.monotonic(), loggers
        try:
            path.touch()
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}", hint="choose another --out") from error

    def write(self, **facts: object) -> None:
        """Writes one line."""
        line = {"seconds": round(time.monotonic() - self._started_s, 3), **facts}
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        if self._loggers is not None:
            self._loggers.write(facts)

    def close(self) -> None:
        """Ends the loggers."""
        if self._loggers is not None:
            self._loggers.close()
