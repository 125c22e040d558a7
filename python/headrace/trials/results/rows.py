"""Make the rows of the result table: one per cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from headrace.system.hardware import machine
from headrace.trials.experiment.cells import Cell
from headrace.trials.experiment.source import workers_of
from headrace.trials.experiment.verdicts import QUANTILES, Verdict, percentile
from headrace.trials.measuring.runner import Group, Run
from headrace.trials.results.projection import Projection
from headrace.trials.results.row import Row
from headrace.trials.results.worker_model import with_expected_rates

__all__ = ["as_documents", "rows_of", "with_gains"]


def rows_of(run: Run, counts: tuple[int, int], projection: Projection | None, usd_per_hour: float | None) -> list[Row]:
    """Return the rows of a run, one a cell: mode after mode, load after load, else in the declared order.

    counts: images of a whole training and validation pass. usd_per_hour: price of the machine that measured.
    """
    rows = [
        row
        for group in run.groups
        for cell in group.cells
        for row in (
            _training_rows(run, group, cell)
            if run.experiment.kind == "training"
            else [_row(run, group, cell, counts, projection)]
        )
    ]
    modes = list(dict.fromkeys(row.mode for row in rows))
    rows.sort(key=lambda row: (modes.index(row.mode), row.load))
    if usd_per_hour is not None:
        rows = [_priced(row, usd_per_hour) for row in rows]
    reference = run.experiment.reference
    rows = with_expected_rates(rows, machine.cores().usable)
    return with_gains(rows, reference) if reference else rows


def _training_rows(run: Run, group: Group, cell: Cell) -> list[Row]:
    """Return a row for each epoch of a training; `elapsed_s` is the time since its start."""
    row = _empty(run, group, cell)
    if group.result is None:
        return [row]
    verdict = _verdict((group.verdicts or {}).get(cell.model, Verdict()))
    if "ranks" in group.result:
        ranks = group.result["ranks"]
        same = f"ranks read the same data: {ranks['shared']} of {ranks['batches']} batches"
        found = same if ranks["shared"] else f"ranks read different data ({ranks['batches']} batches compared)"
        return [replace(row, img_s=ranks["img_s"], verdict=found, simulated=False)]
    images = group.result["images"]
    epochs = group.result["epochs"][: cell.epochs]  # a result that was there may name more
    return [
        replace(
            row,
            simulated=False,
            epoch=epoch["epoch"],
            seconds_per_epoch=epoch["seconds"],
            images_per_epoch=images,
            elapsed_s=epoch["end_s"],
            img_s=epoch["img_s"],
            loss=epoch["loss"],
            top1=epoch["top1"],
            wait_share=group.result["train"].get("wait_share"),
            **verdict,
        )
        for epoch in epochs
    ]


def _row(run: Run, group: Group, cell: Cell, counts: tuple[int, int], projection: Projection | None) -> Row:
    row = _empty(run, group, cell)
    if group.result is None:
        return row
    return _measured_row(row, run, group, cell, counts, projection)


def _empty(run: Run, group: Group, cell: Cell) -> Row:
    """Return the row of a cell without a result: its settings, and why it was not measured."""
    published = run.experiment.published_of(cell)
    return Row(
        loader=cell.loader,
        model=cell.model,
        load=cell.load,
        batch_size=cell.batch_size,
        mode=cell.mode,
        precision=cell.precision,
        workers=workers_of(cell),
        transform=cell.transform,
        data=cell.data,
        ranks=cell.ranks,
        recipe=cell.recipe,
        published_s=published.seconds_per_epoch if published else None,
        published_img_s=published.img_s if published else None,
        error=group.error,
    )


def _measured_row(row: Row, run: Run, group: Group, cell: Cell, counts: tuple[int, int], projection: Projection | None) -> Row:
    assert group.result is not None
    found, ingest, validation = group.result["models"][cell.model], group.result["ingest"], group.result.get("ingest_val")
    train, val = found["train"], found["val"]
    seconds = _pass_s(train, counts[0]) + (_pass_s(val, counts[1]) if val else 0.0)
    verdict = (group.verdicts or {}).get(cell.model, Verdict())
    row = replace(
        row,
        simulated=found["simulated"],
        accelerator=found["accelerator"],
        seconds_per_epoch=seconds,
        images_per_epoch=sum(counts),
        img_s=train["img_s"],
        ingest_img_s=ingest["img_s"],
        compute_img_s=found["compute_img_s"],
        wait_share=max(0.0, 1 - train["img_s"] / found["compute_img_s"]),
        cpu_ms=1000 * ingest["cpu_s"],
        val_cpu_ms=1000 * validation["cpu_s"] if validation else None,
        own_cpu_ms=1000 * ingest["own_cpu_s"],
        handover_ms=1000 * ingest["handover_s"],
        first_batch_s=train["first_s"],
        pixel_levels=run.pixels.get(cell.loader, {}).get("mean_levels"),
        **_shares("cpu", verdict.cpu_percent),
        **_shares("gpu", verdict.gpu_percent or _gpu_percent(found["gpu_busy"])),
        **_verdict(verdict),
    )
    return projection.of(row, counts) if projection else row


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": verdict.kind,
        "confidence": verdict.confidence,
        "communication_share": verdict.communication_share,
        "next_fix": verdict.fix,
        "next_fix_words": verdict.fix_words,
        "predicted_img_s": verdict.fix_img_s,
        "foreign_cores": verdict.foreign_cores,
        "report": verdict.report,
    }


def _pass_s(one: dict[str, Any], images: int) -> float:
    """Return the seconds of a pass over `images` images: until its first batch, then at the steady rate."""
    return float(one["first_s"]) + images / float(one["img_s"]) if images else 0.0


def _shares(name: str, values: tuple[float, ...] | list[float] | None) -> dict[str, Any]:
    if values is None:
        return {}
    return {f"{name}_p{quantile}": float(value) for quantile, value in zip(QUANTILES, values, strict=True)}


def _gpu_percent(busy: list[float]) -> tuple[float, ...]:
    return tuple(100 * percentile(busy, quantile) for quantile in QUANTILES)


def _priced(row: Row, usd_per_hour: float) -> Row:
    if row.seconds_per_epoch is None:
        return row
    return replace(row, usd_per_epoch=usd_per_hour * row.seconds_per_epoch / 3600)


SAME = ("model", "load", "mode", "batch_size", "precision", "transform", "ranks", "epoch")
"""Fields that a row and the reference's row have in common, unless the reference names them."""


def with_gains(rows: Sequence[Row], reference: Any) -> list[Row]:
    """Compare each row with the reference's row of the same model, load, mode and batch size, if it is among the rows."""
    same = [name for name in SAME if name not in reference]
    first: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if all(getattr(row, name) == value for name, value in reference.items()):
            first.setdefault(tuple(getattr(row, name) for name in same), row)
    return [_with_gain(row, first.get(tuple(getattr(row, name) for name in same))) for row in rows]


def _with_gain(row: Row, other: Row | None) -> Row:
    if other is None or row.seconds_per_epoch is None or other.seconds_per_epoch is None:
        return replace(row, gain_percent=None)
    return replace(row, gain_percent=100 * (1 - row.seconds_per_epoch / other.seconds_per_epoch))


def as_documents(rows: list[Row]) -> list[dict[str, Any]]:
    """Return the rows as JSON objects."""
    return [asdict(row) for row in rows]
