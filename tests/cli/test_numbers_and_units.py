"""A space stands between a number and its unit, the per cent sign included (docs/STYLE.md), wherever the package prints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import headrace
import pytest

PACKAGE = Path(headrace.__file__).parent
STYLE_PROPERTY = re.compile(r"(left|bottom|width|top|[xy][12]?)[:=]?$")


def percent_formats(source: str) -> Iterator[str]:
    """The places of a module that print `28%`: a format specification of per cent, and a number before a per cent sign."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[<>+,]*\.\d%", node.value):
            yield f"line {node.lineno}: the format {node.value}"
        if not isinstance(node, ast.JoinedStr):
            continue
        for place, part in enumerate(node.values):
            if isinstance(part, ast.Constant) and str(part.value).startswith("%") and place:
                before = node.values[place - 2] if place > 1 else None
                words = str(before.value) if isinstance(before, ast.Constant) else ""
                if not STYLE_PROPERTY.search(words) and len(node.values) > 2:
                    yield f"line {node.lineno}: {words}{{…}}{part.value}"


def test_what_is_looked_for_is_found() -> None:
    assert list(percent_formats('f"{share:.0%} of"')) and list(percent_formats('f"at {share}% of"'))
    assert not list(percent_formats('f"{share} % of"')) and not list(percent_formats('f"left:{at:.2f}%"'))


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_prints_a_number_without_a_space_before_its_unit(path: Path) -> None:
    assert not list(percent_formats(path.read_text(encoding="utf-8")))
