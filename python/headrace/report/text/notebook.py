"""Sentences and a table as HTML for the cell of a notebook, in the colours of the notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from headrace.system.text.printable import printable

__all__ = ["notebook_html"]

_CELL = "padding:0.2em 1em 0.2em 0;text-align:{side};white-space:nowrap"


def notebook_html(sentences: Iterable[str], headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return the sentences, one a paragraph, and below them the table, whose first column holds names.

    All text is escaped, and control characters are shown as escapes. Without rows there is no table.
    """
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{_cells('th', headers)}</tr></thead>"
    table = f'<table style="border:0">{head}<tbody>{body}</tbody></table>' if body else ""
    text = "".join(f'<p style="margin:0.2em 0">{_text(sentence)}</p>' for sentence in sentences)
    return f'<div class="headrace" style="overflow-x:auto">{text}{table}</div>'


def _cells(name: str, texts: Sequence[str]) -> str:
    sides = ("left" if not place else "right" for place in range(len(texts)))
    return "".join(
        f'<{name} style="{_CELL.format(side=side)}">{_text(text)}</{name}>' for side, text in zip(sides, texts, strict=True)
    )


def _text(text: str) -> str:
    return escape(printable(text))
