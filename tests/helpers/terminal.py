"""A pseudo-terminal that runs a command and records what a person would see on it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

CONTROL = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b[=>]")


class Screen:
    """The lines on a terminal of `columns`, without colours and without a limit of rows. A full line wraps as on xterm."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines: list[list[str]] = [[]]
        self.row, self.column = 0, 0
        self._rest = ""

    def feed(self, text: str) -> None:
        """Draw what a program wrote."""
        text, at = self._rest + text, 0
        self._rest = ""
        while at < len(text):
            if text[at] == "\x1b":
                found = CONTROL.match(text, at)
                if found is None:
                    if len(text) - at < 12:  # the rest of the sequence comes with the next piece
                        self._rest = text[at:]
                        return
                    at += 1
                    continue
                self._control(found[1] or "", found[2] or "")
                at = found.end()
                continue
            self._put(text[at])
            at += 1

    def text(self) -> list[str]:
        """The lines, without spaces at their ends."""
        return ["".join(line).rstrip() for line in self.lines]

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self._down()
        elif character == "\b":
            self.column = max(0, self.column - 1)
        elif character >= " ":
            if self.column >= self.columns:
                self.column = 0
                self._down()
            line = self.lines[self.row]
            line.extend(" " * (self.column + 1 - len(line)))
            line[self.column] = character
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        while len(self.lines) <= self.row:
            self.lines.append([])

    def _control(self, numbers: str, letter: str) -> None:
        count = int(numbers) if numbers.isdigit() else 0
        line = self.lines[self.row]
        if letter == "A":
            self.row = max(0, self.row - max(1, count))
        elif letter == "B":
            for _ in range(max(1, count)):
                self._down()
        elif letter == "C":
            self.column += max(1, count)
        elif letter == "D":
            self.column = max(0, self.column - max(1, count))
        elif letter == "G":
            self.column = max(1, count) - 1
        elif letter == "K":
            del line[0 if count == 2 else self.column :]
        elif letter == "J":
            del line[self.column :], self.lines[self.row + 1 :]


@dataclass
class Terminal:
    """A command in a pseudo-terminal. `frames`: (seconds since its start, lines) of each finished drawing.

    A drawing is finished when the cursor returns, and when nothing follows. A reader that comes late gets many drawings at
    once, or a part of one: neither is a drawing missed, nor a part of one taken for the whole.
    """

    columns: int
    frames: list[tuple[float, list[str]]] = field(default_factory=list)
    _searched: int = 0  # frames before this one are over for `wait_for`

    def start(self, command: Sequence[str], *, cwd: Path | None = None, environment: dict[str, str] | None = None) -> None:
        """Run the command with the terminal as its own."""
        self.screen, self._start_s = Screen(self.columns), time.monotonic()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._main, worker = pty.openpty()
        fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", 50, self.columns, 0, 0))

        def own_the_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            list(command),
            stdin=worker,
            stdout=worker,
            stderr=worker,
            cwd=cwd,
            env=clean | {"TERM": "xterm-256color"} | (environment or {}),
            preexec_fn=own_the_terminal,
        )
        os.close(worker)

    def type(self, text: str) -> None:
        """Press keys; "\\x03" is Ctrl-C."""
        os.write(self._main, text.encode())

    def wait_for(self, pattern: str, timeout_s: float = 60.0) -> re.Match[str]:
        """Draw until `pattern` was on the screen, since the last pattern that was waited for, and return its match."""
        limit_s = time.monotonic() + timeout_s
        while True:
            while self._searched < len(self.frames):
                if (found := re.search(pattern, "\n".join(self.frames[self._searched][1]))) is not None:
                    return found
                self._searched += 1
            assert time.monotonic() < limit_s and self._draw(), f"no {pattern!r} on:\n" + "\n".join(self.screen.text())

    def finish(self, timeout_s: float = 60.0) -> int:
        """Draw until the command ends; return its exit code."""
        limit_s = time.monotonic() + timeout_s
        while self._draw():
            assert time.monotonic() < limit_s, "\n".join(self.screen.text())
        os.close(self._main)
        return self.process.wait()

    def _draw(self) -> bool:
        """Draw the next piece of output, of 0.2 s at most. False when the command has ended."""
        if not select.select([self._main], [], [], 0.2)[0]:
            self._finish_drawing()
            return True
        try:
            data = os.read(self._main, 65536)
        except OSError:  # the last process that holds the terminal has ended
            data = b""
        for number, piece in enumerate(re.split(r"(?=\r)", self._decoder.decode(data))):
            if number or piece.startswith("\r"):
                self._finish_drawing()
            self.screen.feed(piece)
        if not data:
            self._finish_drawing()
        return bool(data)

    def _finish_drawing(self) -> None:
        """Add what the screen shows to the frames."""
        lines = self.screen.text()
        if not self.frames or self.frames[-1][1] != lines:
            self.frames.append((time.monotonic() - self._start_s, lines))
