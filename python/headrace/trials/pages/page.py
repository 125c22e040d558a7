"""The HTML page of a run: the experiment, its results beside the published ones, charts, heat maps, the whole table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import UsageError
from headrace.report.drawing.heat_map import CORES, GPU, data_uri
from headrace.report.drawing.markup import Html, tag
from headrace.report.pages.page import figure, footer, header, html_page, write_page
from headrace.report.pages.tables import table
from headrace.report.text import numbers
from headrace.system.text.sizes import count_text
from headrace.trials.experiment.cells import Cell, Experiment
from headrace.trials.measuring.runner import Run
from headrace.trials.pages.charts import Chart, legend, svg
from headrace.trials.results.outputs import COLUMNS, NOTHING, cells_of
from headrace.trials.results.row import Row
from headrace.trials.results.rows import with_gains
from headrace.trials.results.targets import BEGINNINGS as TARGETS
from headrace.trials.results.targets import DISTURBED_CORES, disturbed

__all__ = ["HeatRows", "heat_rows", "write"]

STYLE = """
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1rem 3rem; }
figure { margin: 1rem 0; } figure svg { display: block; width: 100%; max-width: 46rem; overflow: visible; }
#verdict p + p { margin-top: 0.7rem; } #verdict .money p + p { margin-top: 0; }
figcaption { font-weight: 620; margin-bottom: 0.5rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1rem 2rem; }
.pair img { width: 100%; height: 5rem; image-rendering: pixelated; display: block; border: 1px solid var(--hair); }
@media (max-width: 40rem) { figure svg text { font-size: 18px; } }
"""

HEAT_MAPS = 4
"""Number of heat maps side by side: the reference, and the next loaders in the declared order."""


@dataclass(frozen=True, slots=True)
class HeatRows:
    """The use of cores and GPU over time in one cell: `cores[core][column]` and `gpu[column]`, 0 to 1."""

    name: str
    cores: tuple[tuple[float, ...], ...]
    gpu: tuple[float, ...]


def heat_rows(run: Run) -> list[HeatRows]:
    """Return the heat maps of the first loaders, each with its first model at the heaviest load."""
    heaviest = max(cell.load for cell in run.experiment.cells)
    found = []
    for group in run.groups:
        cell = group.cells[0]
        verdict = (group.verdicts or {}).get(cell.model)
        if verdict is None or cell.load != heaviest or "models" not in (group.result or {}):
            continue
        measured = (group.result or {})["models"][cell.model]
        found.append(HeatRows(_heat_name(cell), verdict.cores_busy, tuple(measured["gpu_busy"])))
    return found[:HEAT_MAPS]


def _heat_name(cell: Cell) -> str:
    """Say which cell a heat map is of, without what all cells have."""
    parts = [cell.loader, cell.model]
    parts += [cell.data] if cell.data != "folder" else []
    parts += [count_text(cell.workers, "worker")] if cell.workers is not None else []
    parts += [f"load {cell.load}"] if cell.transform == "augmentation-load" else []
    parts += [cell.mode] if cell.mode == "faithful" else []
    return ", ".join(parts)


def write(
    path: Path,
    experiment: Experiment,
    rows: Sequence[Row],
    charts: Sequence[Chart],
    heat: Sequence[HeatRows],
    sentences: Sequence[str],
    notes: Sequence[str],
) -> Path:
    """Write the page and return `path`. sentences: what came out. notes: how it was measured, and what it cannot show."""
    done = [row for row in rows if row.seconds_per_epoch is not None]
    targets = [sentence for sentence in sentences if sentence.startswith(TARGETS)]
    head = [sentence for sentence in sentences if sentence not in targets]
    body = tag(
        "main",
        _head(experiment, done, head),
        tag("section", *(_figure(chart) for chart in charts), class_="charts") if charts else None,
        _heat(heat),
        tag("section", tag("h2", "targets"), tag("ul", *(tag("li", target) for target in targets))) if targets else None,
        tag("section", tag("h2", "all cells"), _table(rows)),
        tag("section", tag("h2", "how it was measured"), tag("ul", *(tag("li", note) for note in notes))),
    )
    text = html_page(
        f"{experiment.title} · headrace trials",
        header(f"headrace trials {experiment.name}"),
        body,
        footer(),
        css=STYLE,
        images=True,
    )
    return write_page(path, text, name="page", error=UsageError, hint="--out FOLDER chooses another place")


def _head(experiment: Experiment, done: Sequence[Row], sentences: Sequence[str]) -> Html:
    quiet = [row for row in done if (row.foreign_cores or 0.0) < DISTURBED_CORES]  # the reference's row must be among them
    compared = with_gains(quiet, experiment.reference) if experiment.reference else []
    best = max((row.gain_percent or 0.0 for row in compared), default=0.0)
    measured = sum(row.epoch in (None, 1) for row in done)  # a training has a row for each epoch
    cells = [figure(str(measured), "cell measured" if measured == 1 else "cells measured")]
    if best > 0:
        cells.insert(0, figure(f"{best:.0f} %", "less time per epoch, at most", accent=True))
    words = disturbed(done)
    warning = tag("p", f"{words}: repeat the run on a quiet machine before you quote these figures.") if words else None
    simulated = any(row.simulated for row in done)
    mark = tag("p", tag("span", "computing is simulated", class_="simulated")) if simulated else None
    return tag(
        "section",
        tag("h1", experiment.question),
        mark,
        tag("div", *cells, class_="money"),
        warning,
        *(tag("p", sentence) for sentence in sentences),
        id="verdict",
    )


def _table(rows: Sequence[Row]) -> Html:
    """Return the table of all cells, without the columns that hold nothing."""
    texts = [cells_of(row) for row in rows]
    chosen = [number for number, _ in enumerate(COLUMNS) if any(cells[number] != NOTHING for cells in texts)]
    titles = [COLUMNS[number] for number in chosen]
    numeric = next((place for place, number in enumerate(chosen) if number >= COLUMNS.index("epoch")), len(chosen))
    return table(
        "all cells", titles, [[cells[number] for number in chosen] for cells in texts], quiet=True, numeric_from=numeric
    )


def _figure(chart: Chart) -> Html:
    return tag("figure", tag("figcaption", chart.title), svg(chart), legend(chart))


def _heat(heat: Sequence[HeatRows]) -> Html | None:
    shown = [entry for entry in heat if entry.cores and entry.cores[0]]
    if not shown:
        return None
    pictures = []
    for entry in shown:
        busy = [value for row in entry.cores for value in row]
        words = f"{entry.name}: cores busy {numbers.percent(sum(busy) / len(busy))}"
        if entry.gpu:
            words += f", GPU {numbers.percent(sum(entry.gpu) / len(entry.gpu))}"
        gpu = tag("img", src=data_uri([entry.gpu], GPU), alt=f"GPU over time, {entry.name}") if entry.gpu else None
        cores = tag("img", src=data_uri(entry.cores, CORES), alt=f"CPU cores over time, {entry.name}")
        pictures.append(tag("div", tag("p", words), cores, gpu))
    note = tag(
        "p", "A row a core, then the GPU; time to the right, half a second a column; full colour is busy.", class_="note"
    )
    return tag("section", tag("h2", "where the time goes: heat maps"), tag("div", *pictures, class_="pair"), note)
