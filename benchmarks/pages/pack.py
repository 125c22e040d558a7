"""The page of benchmarks/pack.py."""

from __future__ import annotations

from collections.abc import Mapping

from pages.document import Document, count, facts, name_of, note, page, percent, spread, table


def render(document: Document) -> str:
    """Return the page."""
    found, small = document["settings"], document["settings"]["small_images"]
    busy = "; others were at work, so the rates of wall time mean little" if found["load_average"] > 1 else ""
    verify = document["verify_gb_s"]
    head = ["way", "does", "img/s of CPU time", "img/s of wall time", f"whole command on {small} images, s"]
    return page(
        "# Packing",
        f"{found['images']:,} JPEGs, {found['image_kb']:.1f} kB each; {count(found['workers'], 'worker')}; medians of "
        f"{count(found['rounds'], 'round')} (lowest to highest).\nRates leave out the start of interpreters and workers: they "
        f"are those of the images that the run has more than a run of {small}. Times of whole commands include it.\n"
        f"Load average when it began: {found['load_average']:.1f}{busy}.",
        facts(document),
        table(
            [*head, f"on {found['images']}, s", "bytes of the source"],
            (
                (
                    name_of(row, "way"),
                    row["does"],
                    rate(row["cpu_img_s"]),
                    rate(row["wall_img_s"]),
                    f"{row['small_s']:.2f}",
                    f"{row['large_s']:.2f}",
                    percent(row["size_share"]),
                )
                for row in document["rows"]
            ),
            right=5,
        ),
        verify
        and "`headrace verify` (SHA-256 of every shard, CRC-32C of every image, labels): "
        f"{spread(verify, '.2f')} GB/s of CPU time.",
        f"Not installed, so not here: {', '.join(document['absent'])}." if document["absent"] else "",
        note("pack"),
    )


def rate(found: Mapping[str, float] | None) -> str:
    """Return a rate; None is one that the variation of the start hides."""
    return "lost in the start's variation" if found is None else spread(found)
