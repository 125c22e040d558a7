"""The pages of benchmarks/trials.py."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.system.text.sizes import count_text
from headrace.trials.experiment.cells import load
from headrace.trials.results.outputs import gain_text, loss_text
from headrace.trials.results.row import Row
from headrace.trials.results.targets import targets_of

from pages.document import Document, facts, note, page, table

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
    ("next_fix", "next fix", "{}"), ("predicted_img_s", "predicted, img/s", "{:,.0f}"),
)  # fmt: skip
"""Key of a row, title of the column, format or function. A column is shown where it holds anything, or differs between rows."""

ORDER = ("dali", "workers", "slow-source", "preresize", "small-files", "record-formats", "storage", "batch-size", "amp", "ddp")
"""The experiments as in the guide; others follow."""

OLDER = re.compile(r"Projected to |In \d+ cells? the input alone |From the row with one worker: |(headrace|pytorch) \(")
"""Beginnings of sentences in whose place newer documents have sentences of targets."""

DESCRIPTIONS = ("recipe", "model", "load", "mode", "data", "workers", "batch_size", "precision", "ranks")


def render(document: Document) -> str:
    """Return all pages as one text, which a benchmark prints."""
    return "\n".join(pages(document).values())


def pages(document: Document) -> dict[str, str]:
    """Return the page `trials`, which lists the experiments, and one page for each of them, by name."""
    experiments = document["experiments"]
    names = ordered(experiments)
    listed = [f"- [{experiments[name]['title']}](trials-{name}.md): {experiments[name]['date']}" for name in names]
    first = page(
        "# Trials",
        "The published experiments, repeated by `headrace trials` on the machine below. The published numbers stand beside "
        "them; [the guide](../../docs/guides/trials.md) says what each figure is.",
        "\n".join(listed),
        facts(document),
        note("trials"),
    )
    found = {"trials": first}
    for name in names:
        title, settings, *results = experiment(name, experiments[name])
        place = "Machine, versions and remarks: [all trials](trials.md)."
        found[f"trials-{name}"] = page(title.removeprefix("#"), f"{settings} {place}", *results)
    return found


declaration = functools.cache(load)
"""An experiment by its name. A test renders this page thousands of times."""


def ordered(names: Iterable[str]) -> list[str]:
    """Return the names of experiments in the order of the guide."""
    return sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def experiment(name: str, found: Mapping[str, Any]) -> list[str]:
    """Return the parts of one experiment."""
    settings = f"`headrace trials {name}`, {found['date']}, {took(found['elapsed_s'])}"
    rows = found["rows"]
    shown = [row for row in rows if "error" not in row]
    modes = list(dict.fromkeys(row["mode"] for row in shown))
    shown.sort(key=lambda row: (modes.index(row["mode"]), row["load"]))
    failed: dict[str, str] = {}
    for row in rows:
        if "error" in row:
            failed.setdefault(row["loader"], row["error"])
    lines = [f"- {sentence}" for sentence in (*said(name, found, shown), *found["notes"])]
    lines += [f"- {loader}: {error}." for loader, error in failed.items()]
    return [f"## {found['title']}", f"{settings}.", cells(shown), "\n".join(lines)]


def said(name: str, found: Mapping[str, Any], shown: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the sentences of an experiment. Those of targets come from the rows where the document is older and has none."""
    sentences = list(found["sentences"])
    if any(sentence.startswith("Target, ") for sentence in sentences):
        return sentences
    made = targets_of(declaration(name), [Row(**row) for row in shown])
    return [*sentences[:1], *made, *(sentence for sentence in sentences[1:] if not OLDER.match(sentence))]


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
