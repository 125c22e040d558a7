"""The page of figures that were measured once and have no benchmark program."""

from __future__ import annotations

from pages.document import Document, note, page, table


def render(document: Document) -> str:
    """Return the page."""
    rows = ((row["what"], row["figure"], row["on"], row["date"], row["commit"]) for row in document["rows"])
    return page(
        "# Measured once",
        note("measured_once"),
        table(["what", "figure", "measured on", "date of the commit", "commit"], rows),
    )
