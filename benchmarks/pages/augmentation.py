"""The page of benchmarks/augmentation.py."""

from __future__ import annotations

from pages.document import Document, count, facts, note, page, spread, table

HEAD = ["interpolation", "load", "torchvision on Pillow", '`fuse="off"` (same pixels)', "×", "fused", "×", "of load 1"]


def render(document: Document) -> str:
    """Return the page."""
    settings = document["settings"]
    return page(
        "# Augmentation load, one core",
        "JPEG file → n × (RandomHorizontalFlip, RandomVerticalFlip, RandomRotation(5)) → "
        f"RandomResizedCrop({settings['size']}) → "
        f"uint8.\n{settings['images']} photographs, {count(settings['threads'], 'thread')}; CPU milliseconds per image, median "
        f"(range) of {count(settings['rounds'], 'interleaved round')}.\n`benchmarks/augmentation.py` describes the method.",
        facts(document),
        table(
            HEAD,
            (
                (
                    row["interpolation"],
                    str(row["load"]),
                    spread(row["torchvision_ms"], ".2f"),
                    spread(row["off_ms"], ".2f"),
                    f"{row['off_times']:.1f}",
                    spread(row["fused_ms"], ".2f"),
                    f"{row['fused_times']:.1f}",
                    f"{row['fused_of_load_1']:.2f}",
                )
                for row in document["rows"]
            ),
        ),
        note("augmentation"),
    )
