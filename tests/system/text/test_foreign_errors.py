"""The first line of another library's error: never an IndexError for an error without text."""

from __future__ import annotations

import re
from pathlib import Path

import headrace
import pytest
from headrace.system.text.foreign_errors import MOST_CHARACTERS, first_line, message_lines


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"), "CUDA error: out of memory"),
        (RuntimeError("\n\n  the second line says it  \n"), "the second line says it"),
        (RuntimeError(), "RuntimeError"),
        (OSError(""), "OSError"),
        (ValueError(" \n\t\n"), "ValueError"),
        (KeyError("x"), "'x'"),
    ],
)
def test_an_error_has_one_line_of_words(error: Exception, line: str) -> None:
    assert first_line(error) == line


def test_a_line_is_cut_and_blank_lines_are_left_out() -> None:
    lines = message_lines(RuntimeError("first\n\n" + "x" * 10_000 + "\nlast"))
    assert lines[0] == "first" and lines[-1] == "last" and len(lines) == 3
    assert len(lines[1]) == MOST_CHARACTERS


def test_no_module_takes_the_first_line_of_an_error_by_itself() -> None:
    """`str(error).splitlines()[0]` raises IndexError for an error without text."""
    taken = re.compile(
        r"(?:str\((?:error|exc|e|reason)\)(?:\.strip\(\))?|\{error\}\")\.(?:splitlines\(\)|split\([^)]*\))\[-?\d"
    )
    package = Path(headrace.__file__).parent
    found = [str(path.relative_to(package)) for path in package.rglob("*.py") if taken.search(path.read_text())]
    assert found == []
