"""Make our docstrings Markdown for the API reference: `name (default): text` lines become items of a list.

An extension of Griffe, which reads the docstrings for mkdocstrings. docs/STYLE.md says how docstrings are written.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_FIELD = re.compile(r"(?P<names>\*{0,2}[a-z_]\w*(?:, \*{0,2}[a-z_]\w*)*)(?P<default> \((?:[^()]|\([^()]*\))*\))?: (?=\S)")
"""The head of a line about an argument: `threads (None): `, `rank, world_size (None): `."""


def markdown(docstring: str) -> str:
    """Return the docstring with its lines about arguments as a list, and dashes before a list's text set apart."""
    lines: list[str] = []
    in_list = False
    for line in docstring.splitlines():
        field = _FIELD.match(line)
        if field:
            if lines and lines[-1] and not in_list:
                lines.append("")
            names = ", ".join(f"`{name}`" for name in field["names"].split(", "))
            lines.append(f"- {names}{field['default'] or ''}: {line[field.end() :]}")
            in_list = True
            continue
        if in_list and line and not line.startswith(" "):
            lines.append("")
            in_list = False
        elif line.startswith("- ") and lines and lines[-1] and not lines[-1].startswith(("- ", "  ")):
            lines.append("")
        in_list = in_list and bool(line)
        lines.append(line)
    return "\n".join(lines)


class DocstringLists(griffe.Extension):
    """Rewrite every docstring with `markdown`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
