"""HTML and SVG as values. Plain strings are escaped where they become children or attributes."""

from __future__ import annotations

import html
import json
import re
from typing import Any

__all__ = ["VOID", "Html", "embedded_json", "join", "no_break", "tag"]

VOID = frozenset({"br", "hr", "img", "meta", "link", "image", "rect", "line", "path", "circle", "use", "col"})


UNIT = re.compile(r"(?<=\d) (?=(?:%|(?:ms|s|min|h|img/s|[KMGT]iB(?:/s)?|[KMGT]?B(?:/s)?)\b))")
"""Matches the space between a number and its unit."""


class Html(str):
    """Text that is markup. Only `tag`, `join` and constants of this package make it."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | float | bool | None) -> Html:
    """Return one element. Plain text is escaped; None children and None or False attributes are left out.

    In attribute names, a trailing underscore is dropped (`class_`) and other underscores become dashes (`aria_label`).

        tag("p", "a < b", class_="note")  # <p class="note">a &lt; b</p>
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID and not children:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: str | None) -> Html:
    """Return the children one after the other. Those that are not `Html` are escaped; None is left out."""
    return Html("".join(child if isinstance(child, Html) else html.escape(child) for child in children if child is not None))


def no_break(sentence: str) -> str:
    """Return a sentence whose numbers stay on one line with their units, by no-break spaces."""
    return UNIT.sub("\u00a0", sentence)


def embedded_json(value: Any) -> Html:
    """Return JSON for a script element: `<`, `>` and `&` become escapes. Raises `ValueError` for NaN."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
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
    return f' {name}="{html.escape(text)}"'
