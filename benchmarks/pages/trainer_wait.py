"""The page of benchmarks/trainer_wait.py."""

from __future__ import annotations

from collections.abc import Mapping

from pages.document import Document, count, facts, note, page, percent, table


def render(document: Document) -> str:
    """Return the page."""
    found = document["settings"]
    head = ["ingest / compute", "ingest-only", "compute-only", "end-to-end", "of compute-only", "wait share"]
    return page(
        "# Waiting for input",
        f"Batches of {found['batch_size']}, RandomResizedCrop({found['size']}) and flip, {found['photographs']} photographs "
        f"{found['copies']} times in an image folder in the page cache; {count(found['rounds'], 'round')} of "
        f"{found['seconds']:g} s each. The device is simulated (a rate and a wait).\nMedians, in images per second. "
        "`benchmarks/trainer_wait.py` describes the method.",
        facts(document),
        table(
            [*head, f"< {percent(found['target'])}"],
            (
                (
                    f"{row['ingest_over_compute']:.2f}",
                    f"{row['ingest_img_s']:,.0f}",
                    f"{row['compute_img_s']:,.0f}",
                    f"{row['end_to_end_img_s']:,.0f}",
                    percent(row["of_compute"], 1),
                    share(row["wait_share"]),
                    "yes" if row["below_target"] else "**no**",
                )
                for row in document["rows"]
            ),
        ),
        note("trainer_wait"),
    )


def share(found: Mapping[str, float]) -> str:
    """Return a share of time with its range."""
    median, least, greatest = (percent(found[key], 2) for key in ("median", "least", "greatest"))
    return f"{median} ({least} to {greatest})"
