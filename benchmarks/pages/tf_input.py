"""The page of benchmarks/tf_input.py."""

from __future__ import annotations

from pages.document import Document, count, facts, name_of, note, page, spread, table


def render(document: Document) -> str:
    """Return the page."""
    found = document["settings"]
    return page(
        "# Input of TensorFlow scripts",
        f"Batches of {found['batch_size']}, uint8, a random crop resized to {found['size']} and a random flip, "
        f"{found['files']:,} JPEG photographs in a folder in the page cache; {found['passes']} passes a process, "
        f"{count(found['rounds'], 'round')}, input alone.\nMedians, with the least and the greatest of the rounds. "
        "`benchmarks/tf_input.py` describes the method.",
        facts(document),
        table(
            [
                "input",
                "first pass, img/s",
                "later passes, img/s",
                "first pass, CPU-ms an image",
                "later passes, CPU-ms an image",
            ],
            (
                (
                    name_of(row, "input"),
                    spread(row["first_img_s"]),
                    spread(row["later_img_s"]),
                    spread(row["first_cpu_ms"], ".2f"),
                    spread(row["later_cpu_ms"], ".2f"),
                )
                for row in document["rows"]
            ),
            right=4,
        ),
        note("tf_input"),
    )
