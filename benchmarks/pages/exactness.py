"""The measured table of docs/reference/exactness.md, made by benchmarks/exactness.py."""

from __future__ import annotations

from pages.document import Document, facts, page, percent, table


def render(document: Document) -> str:
    """Return the part of docs/reference/exactness.md between its markers."""
    found = document["settings"]
    return page(
        f"{found['photographs']} photographs × {found['crops']} random crops to {found['size']}×{found['size']}.",
        facts(document),
        table(
            ["compared", "values that differ", "greatest difference (of 255)", "mean difference"],
            (
                (
                    row["compared"],
                    f"{row['differing']:,} of {row['values']:,} ({percent(row['differing'] / row['values'], 2)})",
                    str(row["greatest"]),
                    f"{row['mean']:.4f}",
                )
                for row in document["rows"]
            ),
        ),
    )
