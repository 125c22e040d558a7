"""The page of benchmarks/demo.py."""

from __future__ import annotations

from pages.document import Document, count, facts, note, page, percent, table


def render(document: Document) -> str:
    """Return the page."""
    settings, device = document["settings"], document["settings"]["device"]
    compute = ""
    if settings["gpu_img_s"] is not None:
        compute = f" Compute is a timed wait at {settings['gpu_img_s']:,.0f} img/s: {settings['gpu_source']}."
    return page(
        "# The demo",
        f"The table that `make demo` prints at its end, on {device}. {count(settings['rounds'], 'round')} in turns of "
        f"{settings['images_per_round']:,} images each, medians; every batch {settings['batch']} on both sides. "
        f"{settings['seconds']:.0f} s in all.{compute}",
        facts(document),
        table(
            [f"input, on {device}", "img/s", "GPU waits", "times as fast"],
            (
                (row["input"], f"{row['img_s']:,.0f}", percent(row["wait_share"]), f"{row['times']:.1f}")
                for row in document["rows"]
            ),
            right=3,
        ),
        f"Verdict of the diagnosis of the plain script: {document['verdict']}.",
        note("demo"),
    )
