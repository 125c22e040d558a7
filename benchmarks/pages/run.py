"""The page of benchmarks/run.py."""

from __future__ import annotations

from pages.document import Document, count, facts, note, page, table

HEAD = ["transforms", "epoch", "CPU ms/image plain", "run", "times less", "img/s plain", "run", "times faster"]


def render(document: Document) -> str:
    """Return the page."""
    found = document["settings"]
    return page(
        "# headrace run",
        f"A script's input path alone, {found['photographs']} photographs {found['copies']} times over, batches of "
        f"{found['batch_size']}, {found['workers']} workers or threads; medians of "
        f"{count(found['repeats'], 'repeat')}, plain and "
        "taken over alternating.\n`benchmarks/run.py` describes the method.",
        facts(document),
        table(
            HEAD,
            (
                (
                    row["transforms"],
                    row["epoch"],
                    f"{row['plain_cpu_ms']:.2f}",
                    f"{row['run_cpu_ms']:.2f}",
                    f"{row['times_less_cpu']:.1f}",
                    f"{row['plain_img_s']:,.0f}",
                    f"{row['run_img_s']:,.0f}",
                    f"{row['times_faster']:.1f}",
                )
                for row in document["rows"]
            ),
        ),
        note("run"),
    )
