"""The counts of executions in docs/fuzzing-runs.md."""

from __future__ import annotations

from pages.document import Document, page, table


def render(document: Document) -> str:
    """Return the part of docs/fuzzing-runs.md between its markers."""
    rows = document["rows"]
    counts = [(row["date"], f"`{row['target']}`", f"{row['executions']:,}", row["remark"]) for row in rows]
    total = ("", "together", f"{sum(row['executions'] for row in rows):,}", "")
    return page(
        table(["date", "target", "executions", "remark"], [*counts, total]),
        f"Machine: {document['machine']}.",
    )
