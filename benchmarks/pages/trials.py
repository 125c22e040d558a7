"""The page of benchmarks/trials.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.system.sizes import count_text
from headrace.trials.outputs import gain_text, loss_text

from pages.document import Document, facts, note, page, table
from pages.trial_targets import targets

COLUMNS: tuple[tuple[str, str, str | Callable[[float], str]], ...] = (
    ("loader", "loader", "{}"), ("recipe", "recipe", "{}"), ("model", "model", "{}"), ("load", "load", "{}"),
    ("mode", "mode", "{}"), ("data", "data", "{}"), ("workers", "workers", "{}"), ("batch_size", "batch", "{}"),
    ("precision", "precision", "{}"), ("ranks", "ranks", "{}"), ("epoch", "epoch", "{}"),
    ("seconds_per_epoch", "s/epoch", "{:,.2f}"), ("published_s", "published", "{:,.2f}"),
    ("projected_s", "projected", "{:,.1f}"), ("img_s", "img/s", "{:,.0f}"), ("expected_img_s", "expected", "{:,.0f}"),
    ("ingest_img_s", "input alone", "{:,.0f}"), ("compute_img_s", "computing alone", "{:,.0f}"),
    ("cpu_ms", "CPU ms/image", "{:.2f}"), ("val_cpu_ms", "validation", "{:.2f}"),
    ("own_cpu_ms", "of it in the training process", "{:.2f}"), ("handover_ms", "taking over a batch, ms", "{:.2f}"),
    ("elapsed_s", "seconds since start", "{:.0f}"), ("loss", "loss", loss_text),
    ("top1", "top-1", "{:.1%}"), ("gain_percent", "gain", gain_text), ("cpu_p95", "CPU p95", "{:.0f}"),
    ("gpu_p95", "GPU p95", "{:.0f}"), ("verdict", "verdict", "{}"),
)  # fmt: skip
"""Key of a row, title of the column, format or function. A column is shown where it holds anything, or differs between rows."""

DESCRIPTIONS = ("recipe", "model", "load", "mode", "data", "workers", "batch_size", "precision", "ranks")


def render(document: Document) -> str:
    """Return the page."""
    return page(
        "# Trials",
        "The published experiments, repeated by `headrace trials` on the machine below. The published numbers stand beside "
        "them; [the guide](../../docs/guides/trials.md) says what each figure is.",
        facts(document),
        *(part for name, found in document["experiments"].items() for part in experiment(name, found)),
        note("trials"),
    )


def experiment(name: str, found: Mapping[str, Any]) -> list[str]:
    """Return the parts of one experiment."""
    settings = f"`headrace trials {name}`, {found['date']}, {took(found['elapsed_s'])}"
    rows = found["rows"]
    shown = [row for row in rows if "error" not in row]
    failed: dict[str, str] = {}
    for row in rows:
        if "error" in row:
            failed.setdefault(row["loader"], row["error"])
    lines = [f"- {sentence}" for sentence in (*targets(name, shown), *found["sentences"], *found["notes"])]
    lines += [f"- {loader}: {error}." for loader, error in failed.items()]
    return [f"## {found['title']}", f"{settings}.", cells(shown), "\n".join(lines)]


def took(seconds: float) -> str:
    """Return a duration in words."""
    return f"{seconds:.0f} seconds" if seconds < 100 else count_text(round(seconds / 60), "minute")


def _text(form: str | Callable[[float], str], value: Any) -> str:
    return form.format(value) if isinstance(form, str) else form(value)


def cells(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows with the columns that hold anything."""
    chosen = [
        column
        for column in COLUMNS
        if any(column[0] in row for row in rows)
        and (column[0] not in DESCRIPTIONS or len({row.get(column[0]) for row in rows}) > 1)
    ]
    texts = [[_text(form, row[key]) if key in row else "" for key, _, form in chosen] for row in rows]
    return table([title for _, title, _ in chosen], texts)
