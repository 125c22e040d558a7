"""The page of benchmarks/gpu/feed.py."""

from __future__ import annotations

from pages.document import Document, facts, note, page, percent, table


def render(document: Document) -> str:
    """Return the page."""
    settings = document["settings"]
    rows = []
    for row in document["rows"]:
        if row["model"] is None:
            rows.append(("none (ingest only)", row["source"], f"{row['img_s']:,.0f}", "", ""))
        else:
            busy = "not measured" if row["gpu_utilisation"] is None else percent(row["gpu_utilisation"])
            rows.append((row["model"], row["source"], f"{row['img_s']:,.0f}", percent(row["of_compute_only"]), busy))
    return page(
        "# One GPU: model, loaders, and both together",
        f"Batches of {settings['batch_size']}, {settings['size']}×{settings['size']}, bf16 autocast, channels-last, eager; "
        f"{settings['photographs']} photographs in the page cache; {settings['workers']} workers or threads.\n"
        "`benchmarks/gpu/feed.py` describes the method.",
        facts(document),
        table(["model", "source", "img/s", "of compute only", "GPU utilisation, median"], rows),
        note("gpu"),
    )
