"""metrics.jsonl: the metrics of a training run, one JSON object a line."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

from headrace.errors import UsageError
from headrace.system.files.private_files import output_opener
from headrace.system.text.sizes import size_text
from headrace.system.text.utf8 import utf8_text
from headrace.training.logs.loggers import Loggers

__all__ = ["Metrics"]

LONGEST_LINE = 16 << 20
"""Bytes. A folder of somebody else may hold a file of any size."""


class Metrics:
    """Appends JSON lines to `path`, each with the seconds since the start, and passes the numbers on to `loggers`.

    Lines are whole: the rest of a killed process's last line is removed first. A full disk loses the line, which `problem`
    says, but does not end the training. Raises UsageError if the file cannot be written at the start.
    """

    def __init__(self, path: Path, loggers: Loggers | None = None) -> None:
        self._path, self._started_s, self._loggers = path, time.monotonic(), loggers
        self.problem: str | None = None
        try:
            self._remove_partial_line()
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}", hint="choose another --out") from error

    def _remove_partial_line(self) -> None:
        with open(self._path, "ab+", opener=output_opener) as file:
            begin = max(0, file.seek(0, os.SEEK_END) - LONGEST_LINE)
            file.seek(begin)
            data = file.read()
            end = data.rfind(b"\n") + 1
            if begin and not end:
                raise OSError(errno.EFBIG, f"its last line is longer than {size_text(LONGEST_LINE)}", str(self._path))
            if end < len(data):
                file.truncate(begin + end)

    def write(self, **facts: object) -> None:
        """Append a line of JSON with these facts and the seconds since the start."""
        line = {"seconds": round(time.monotonic() - self._started_s, 3), **facts}
        text = (utf8_text(json.dumps(line, allow_nan=False, ensure_ascii=False)) + "\n").encode()
        try:
            with open(self._path, "ab", buffering=0, opener=output_opener) as file:
                before = file.tell()
                if file.write(text) != len(text):
                    file.truncate(before)
                    raise OSError(errno.ENOSPC, "no space is left for the whole line")
            self.problem = None
        except OSError as error:
            self.problem = f"a line of {self._path} is missing: {error.strerror}"
        if self._loggers is not None:
            self._loggers.write(facts)

    def close(self) -> None:
        """Close the loggers."""
        if self._loggers is not None:
            self._loggers.close()
