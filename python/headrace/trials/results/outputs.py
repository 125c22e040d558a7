"""The files of a run besides its page: rows.csv, trials.json, and the table as Markdown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.report.text import numbers
from headrace.system.files.atomic_write import atomic_write
from headrace.system.text.sizes import count_text
from headrace.system.text.spreadsheet import cell_text
from headrace.trials.results.row import Row
from headrace.trials.results.rows import as_documents

__all__ = ["COLUMNS", "NOTHING", "cells_of", "gain_text", "loss_text", "markdown", "write_files"]

NOTHING = "–"
"""Text of a cell without a value."""

SLOWER_PERCENT = -50.0
"""Print gains below this many per cent as a factor: "-3369 %" less time says nothing."""

COLUMNS = ("loader", "model", "load", "batch", "mode", "data", "epoch", "s/epoch", "published", "projected", "img/s",
           "input alone",
           "computing alone", "CPU ms/image", "loss", "top-1", "gain", "CPU p95", "GPU p95",
           "verdict", "next fix, predicted")  # fmt: skip
"""Titles of the columns of the table for people. `cells_of` returns the texts of a row in this order."""


def cells_of(row: Row) -> tuple[str, ...]:
    """Return the texts of a row, in the order of `COLUMNS`; a row without result has its error as verdict."""
    fix = f"{row.next_fix} → {numbers.image_rate(row.predicted_img_s)}" if row.next_fix and row.predicted_img_s else NOTHING
    return (
        row.loader,
        row.model,
        str(row.load),
        str(row.batch_size),
        row.mode,
        _details(row),
        NOTHING if row.epoch is None else str(row.epoch),
        _number(row.seconds_per_epoch),
        _number(row.published_s),
        _number(row.projected_s),
        _rate(row.img_s),
        _rate(row.ingest_img_s),
        _rate(row.compute_img_s),
        _number(row.cpu_ms),
        NOTHING if row.loss is None else loss_text(row.loss),
        NOTHING if row.top1 is None else f"{100 * row.top1:.1f} %",
        NOTHING if row.gain_percent is None else gain_text(row.gain_percent),
        _percent(row.cpu_p95),
        _percent(row.gpu_p95),
        row.error or row.verdict or NOTHING,
        fix,
    )


def _details(row: Row) -> str:
    """Return the data, and what else distinguishes rows of one loader and model."""
    words = [row.data]
    words += [count_text(row.workers, "worker")] if row.workers is not None else []
    words += [row.recipe] if row.recipe != "plain" else []
    words += [row.precision] if row.precision != "fp32" else []
    words += [count_text(row.ranks, "rank")] if row.ranks > 1 else []
    return ", ".join(words)


def loss_text(loss: float) -> str:
    """Return a loss with three decimals, or in scientific notation if it is very large because training diverged."""
    return f"{loss:.3f}" if loss < 1000 else f"{loss:.1e}"


def gain_text(percent: float) -> str:
    """Return the time saved over the reference as text in per cent; from 50 % more time on as a factor: "2.1 × as long"."""
    if percent <= SLOWER_PERCENT:
        return f"{1 - percent / 100:.3g} × as long"
    return f"{percent:.1f} %"


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.2f}"


def _rate(value: float | None) -> str:
    return NOTHING if value is None else numbers.image_rate(value)


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f} %"


def markdown(rows: Sequence[Row], columns: Sequence[str] = COLUMNS) -> str:
    """Return the rows as a Markdown table with the given columns."""
    chosen = [COLUMNS.index(name) for name in columns]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        texts = cells_of(row)
        lines.append("| " + " | ".join(texts[index].replace("|", "\\|") for index in chosen) + " |")
    return "\n".join(lines) + "\n"


def write_files(folder: Path, rows: Sequence[Row], document: dict[str, Any], text: str) -> None:
    """Write `rows.csv`, `trials.json` and `trials.md` to `folder`. Raises `UsageError` when they cannot be written."""
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, [entry.name for entry in fields(Row)])
    writer.writeheader()
    for row in as_documents(list(rows)):  # results that were there may come from anybody
        writer.writerow({name: cell_text(value) if isinstance(value, str) else value for name, value in row.items()})
    try:
        atomic_write(folder / "rows.csv", table.getvalue().encode())
        atomic_write(folder / "trials.json", json.dumps(document, indent=1, ensure_ascii=False).encode())
        atomic_write(folder / "trials.md", text.encode())
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror or error}", hint="--out FOLDER chooses another place"
        ) from None
