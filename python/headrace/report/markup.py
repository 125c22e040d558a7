"""HTML and SVG as values: what is not `Html` is escaped when it becomes a child or an attribute, so nothing can break out."""

from __future__ import annotations

import html
import json
import re
from typing import Any

__all__ = ["VOID", "Html", "embedded_json", "join", "no_break", "tag"]

VOID = frozenset({"br", "hr", "img", "meta", "link", "image", "rect", "line", "path", "circle", "use", "col"})


UNIT = re.compile(r"(?<=\d) (?=(?:%|(?:ms|s|min|h|img/s|[KMGT]iB(?:/s)?|[KMGT]?B(?:/s)?)\b))")
"""The space between a number and its unit."""


class Html(str):
    """Text that is markup already. Only `tag`, `join` and this package's own constants make it."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | float | bool | None) -> Html:
    """One element. Plain text is escaped; None children and None or False attributes are left out.

    A trailing underscore of an attribute's name is cut (`class_`), other underscores become dashes (`aria_label`).
    """
    said = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID and not children:
        return Html(f"<{name}{said}/>")
    return Html(f"<{name}{said}>{join(*children)}</{name}>")


def join(*children: str | None) -> Html:
    """Children one after the other, escaped unless they are `Html`."""
    return Html("".join(child if isinstance(child, Html) else html.escape(child) for child in children if child is not None))


def no_break(sentence: str) -> str:
    """A sentence whose numbers stay on one line with their units (no-break spaces)."""
    return UNIT.sub("\u00a0", sentence)


def embedded_json(value: Any) -> Html:
    """JSON that may stand within a script element: `<`, `>` and `&` are written as escapes. NaN is refused."""
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
