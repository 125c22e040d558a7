"""HTML and SVG as values. Plain strings are escaped where they become children or attributes."""

from __future__ import annotations

import html
import json
import re
from typing import Any

from headrace.system.text.printable import printable_lines

__all__ = ["VOID", "Html", "embedded_json", "join", "no_break", "tag"]

VOID = frozenset({"br", "hr", "img", "meta", "link", "image", "rect", "line", "path", "circle", "use", "col"})


UNIT = re.compile(r"(?<=\d) (?=(?:%|(?:ms|s|min|h|img/s|[KMGT]iB(?:/s)?|[KMGT]?B(?:/s)?)\b))")
"""Matches the space between a number and its unit."""


_ESCAPE = re.compile(
    r"\\(?:(u(?:00[01][0-9a-f]|007f|00[89][0-9a-f]|061c|200[ef]|202[89a-e]|206[6-9]|d[89a-f][0-9a-f]{2})|[bfr])|.)"
)
"""Matches each escape of a JSON text; group 1: one of a character that `printable_lines` escapes."""


class Html(str):
    """A string that is finished HTML and is not escaped again. Only `tag`, `join` and constants of this package make one."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | float | bool | None) -> Html:
    """Return one HTML or SVG element. Plain text is escaped; None children and None or False attributes are left out.

    In attribute names, a trailing underscore is dropped (`class_`) and other underscores become dashes (`aria_label`).

        tag("p", "a < b", class_="note")  # <p class="note">a &lt; b</p>
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID and not children:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: str | None) -> Html:
    """Return the children joined into one `Html`; None is left out. Plain text is escaped, control characters too."""
    return Html(
        "".join(
            child if isinstance(child, Html) else html.escape(printable_lines(child)) for child in children if child is not None
        )
    )


def no_break(sentence: str) -> str:
    """Return a sentence whose numbers stay on one line with their units, by no-break spaces."""
    return UNIT.sub("\u00a0", sentence)


def embedded_json(value: Any) -> Html:
    """Return JSON for a `<script>` element: `<`, `>`, `&` and control characters are escaped. Raises `ValueError` for NaN."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    text = _ESCAPE.sub(lambda found: f"\\\\{found[0][1:]}" if found[1] else found[0], text)
    return Html(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if name == "viewbox":
        name = "viewBox"
    elif name == "preserveaspectratio":
        name = "preserveAspectRatio"
    text = "" if value is True else f"{value:g}" if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(printable_lines(text))}"'
