"""The page of benchmarks/train_parity.py."""

from __future__ import annotations

from pages.document import Document, count, facts, note, page, percent, table


def render(document: Document) -> str:
    """Return the page."""
    found = document["settings"]
    verdict = "within noise" if document["within_noise"] else "more than noise"
    return page(
        "# The trainer beside a plain PyTorch loop",
        f"{found['model']}, {count(found['epochs'], 'epoch')}, {found['precision']}, batches of {found['batch_size']}, "
        f"{count(found['seeds'], 'seed')} each, in turn, on the CPU.\n`benchmarks/train_parity.py` describes the method.",
        facts(document),
        table(
            ["way", "top-1, mean", "each seed", "seconds a run", "CPU seconds a run"],
            (
                (
                    row["way"],
                    percent(row["top1_mean"], 2),
                    ", ".join(percent(one, 2) for one in row["top1"]),
                    f"{row['run_s']:,.0f}",
                    f"{row['run_cpu_s']:,.0f}",
                )
                for row in document["rows"]
            ),
        ),
        f"The means differ by {document['difference_points']:+.2f} points; the standard error of the difference is "
        f"{document['standard_error_points']:.2f} points: {verdict}.",
        note("train_parity"),
    )
