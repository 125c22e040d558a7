"""The page of benchmarks/parity.py."""

from __future__ import annotations

from pages.document import Document, count, facts, note, page, table


def render(document: Document) -> str:
    """Return the page."""
    found, rows = document["settings"], document["rows"]
    size, scale = found["size"], tuple(found["crop_scale"])
    verdict = "within" if document["within"] else "**outside**"
    seeds = [f"seed {seed}" for seed in range(len(rows[0]["accuracy"]))]
    return page(
        "# Learning parity",
        f"torchvision's ResNet-18, {size}-pixel photographs, {count(found['epochs'], 'epoch')}, batch "
        f"{found['batch_size']}, SGD "
        f"with Nesterov momentum, one cycle up to rate {found['rate']:g}, weight decay {found['weight_decay']:g}, "
        "label smoothing "
        f"{found['label_smoothing']:g}, bf16 autocast, RandomResizedCrop({size}, scale={scale}) and mirror images.\n"
        "Accuracy on the test images in per cent, scored by the same torchvision evaluation.",
        facts(document),
        table(
            ["input", *seeds, "mean", "standard deviation"],
            (
                [
                    row["input"],
                    *(f"{one:.2f}" for one in row["accuracy"]),
                    f"{row['mean']:.2f}",
                    f"{row['deviation']:.2f}",
                ]
                for row in rows
            ),
        ),
        f"headrace − torchvision: {document['difference']:+.2f} points; standard error of the difference "
        f"{document['standard_error']:.2f}. That is {verdict} one standard error plus 0.5 points.",
        note("parity"),
    )
