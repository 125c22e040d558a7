"""`headrace trials`: repeat a published experiment on this machine, with table, charts and one page."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.table import Table

from headrace.cli.shared import output
from headrace.cli.shared.price_options import add_price_options, machine_usd_per_hour
from headrace.cli.shared.unnamed_folder import unnamed_folder
from headrace.cost.estimates.floors import ASSUMED_CPU_SPREAD, CPU_SPREAD
from headrace.cost.market.live_prices import read_table
from headrace.cost.market.prices import PriceTable
from headrace.errors import UsageError
from headrace.report.sessions.session_folder import foreign_values
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.private_files import make_output_folder
from headrace.system.hardware import machine
from headrace.trials.experiment.accelerator import SIMULATED_GPUS, rate_of
from headrace.trials.experiment.cells import LOADERS, Experiment, experiment_names, load, select
from headrace.trials.measuring.loaders import has_gpu
from headrace.trials.measuring.runner import Group, Run, Settings, materials_of, run_groups
from headrace.trials.pages import charts, page, summary
from headrace.trials.results import outputs
from headrace.trials.results.projection import Projection
from headrace.trials.results.row import Row
from headrace.trials.results.rows import as_documents, rows_of

SUMMARY = "repeat a published experiment here: loaders × models × augmentation loads, with table, charts and a page"
EXAMPLE = """
headrace trials dali --simulate v100 --out trials-dali
headrace trials dali --simulate v100 --models resnet18 --loads 1,12 --loaders pytorch,headrace,run
headrace trials workers --data /data/caltech --out trials-workers
"""

#: Columns of the terminal's table where they hold anything; descriptions only where they differ. The page has all.
SHORT = (
    "loader", "model", "load", "batch", "mode", "data", "epoch", "s/epoch", "published", "img/s", "input alone",
    "computing alone", "loss", "top-1", "verdict",
)  # fmt: skip
DESCRIPTIONS = ("model", "load", "batch", "mode", "data")

#: Photographs that a file of an experiment may ask for, about 5 GB.
MOST_PHOTOGRAPHS = 50_000

#: Fields of AMD's CPUs whose name a virtual machine hides: (family, model) → name in the price table. AMD's PPR of family 19h,
#: models 10h to 1Fh: Genoa; of family 1Ah, models 00h to 0Fh: Turin.
HIDDEN_NAMES = {(25, model): "EPYC 9R14" for model in range(16, 32)} | {(26, model): "EPYC 9R45" for model in range(16)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headrace trials`."""
    add = parser.add_argument
    add("experiment", metavar="EXPERIMENT", help=f"{', '.join(experiment_names())}; or a TOML file of your own")
    add("--data", type=Path, metavar="DIR", help="use your own images: DIR/CLASS/image, or DIR/train and DIR/val of that form")
    add("--scale", type=float, metavar="S", help="make S times the published number of photographs, without --data")
    add("--simulate", metavar="GPU", help=f"computing is a timed wait at a published rate: {', '.join(SIMULATED_GPUS)}")
    add("--models", metavar="A,B", help="only these models")
    add("--loads", metavar="1,12", help="only these augmentation loads")
    add("--loaders", metavar="A,B", help=f"only these loaders: {', '.join(LOADERS)}")
    add(
        "--mode",
        choices=("faithful", "corrected"),
        help="faithful: each side's work as published; corrected: equal work (default: both)",
    )
    add("--batch-size", type=int, metavar="N", help="images of a batch, instead of the experiment's")
    add("--budget-minutes", type=float, metavar="M", help="end within M minutes; the cells of least value are dropped")
    add("--seconds", type=float, metavar="S", help="seconds of each measurement (default: what the budget allows, at most 4)")
    add("--out", type=Path, metavar="DIR", help="folder of the results; a run that was ended continues there")
    add_price_options(parser, of="this machine")


def run(args: argparse.Namespace) -> int:
    """Run the experiment's measurements, print the table, write the files. Return the exit code."""
    experiment = _experiment(args)
    usd_per_hour = machine_usd_per_hour(args)
    settings = _settings(args, experiment)
    # An unknown processor ends the run before it measures.
    projection, source = _projection(experiment, settings.gpu, real=settings.is_real_gpu)
    where = f"a simulated {settings.gpu.upper()}" if settings.gpu else "the CPU" if settings.device == "cpu" else "the GPU"
    output.log(f"headrace trials: {experiment.title}; computing on {where}; results in {settings.out}")
    with output.progress("trials", unit="cells") as bar:

        def count(groups: int) -> None:
            bar.advance(0, total=sum(1 for _ in experiment.cells))

        def done(group: Group) -> None:
            cell = group.cells[0]
            bar.advance(len(group.cells), f"{cell.loader}, load {cell.load}, {cell.mode}")

        found = run_groups(experiment, settings, log=output.log, on_start=count, on_group=done)
    counts = materials_of(experiment, settings).counts()
    with foreign_values(settings.out, "shown"):  # results that were there may come from anybody
        rows = rows_of(found, counts, projection, usd_per_hour)
        sentences, notes = summary.sentences_of(found, rows), summary.notes_of(found, rows, source)
        document = _document(args, found, rows, sentences, notes)
        files = _write(found, rows, document, sentences, notes)
    output.emit(args, document | {"files": files}, lambda: _render(rows, sentences, files))
    return 0 if any(row.img_s is not None for row in rows) else 1


def _experiment(args: argparse.Namespace) -> Experiment:
    return select(
        load(args.experiment),
        models=_names(args.models),
        loads=_numbers(args.loads),
        loaders=_names(args.loaders),
        mode=args.mode,
        batch_size=args.batch_size,
    )


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(number) for number in text.split(",")]
    except ValueError:
        raise UsageError(f"--loads takes whole numbers with commas between them, not {text!r}") from None


def _settings(args: argparse.Namespace, experiment: Experiment) -> Settings:
    for name, value in (("--budget-minutes", args.budget_minutes), ("--seconds", args.seconds), ("--scale", args.scale)):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{name} must be above 0, not {value:g}")
    if args.batch_size is not None and args.batch_size < 1:
        raise UsageError(f"--batch-size must be at least 1, not {args.batch_size}")
    if args.simulate is not None and args.simulate not in SIMULATED_GPUS:
        raise UsageError(f"there is no simulated GPU {args.simulate!r}", hint=f"known: {', '.join(SIMULATED_GPUS)}")
    if args.data is not None and not args.data.is_dir():
        raise UsageError(f"--data {args.data}: there is no such folder")
    _check_photographs(args, experiment)
    gpu_here = has_gpu()
    simulated = args.simulate or (None if gpu_here else experiment.accelerator)
    _check_simulation(args.simulate, simulated, experiment)
    declared = {cell.batch_size for cell in load(args.experiment).cells}
    budget = args.budget_minutes if args.budget_minutes is not None else experiment.budget_minutes
    return Settings(
        out=(args.out or unnamed_folder(f"headrace-trials-{experiment.name}")).absolute(),
        own=args.data.absolute() if args.data else None,
        scale=args.scale if args.scale is not None else experiment.scale,
        gpu=simulated,
        device="cuda" if gpu_here else "cpu",
        budget_s=60 * budget,
        seconds=args.seconds,
        batch_size=args.batch_size if args.batch_size not in declared else None,
    )


def _check_photographs(args: argparse.Namespace, experiment: Experiment) -> None:
    """Raise `UsageError` where the file of an experiment would have more photographs made than a run can use."""
    made = experiment.scale * (experiment.train_images + experiment.validation_images)
    if args.data is None and args.scale is None and made > MOST_PHOTOGRAPHS:
        raise UsageError(
            f"{args.experiment} asks for {made:,.0f} photographs, more than {MOST_PHOTOGRAPHS:,}",
            hint="--scale S makes S times the published number, --data DIR uses your own images",
        )


def _check_simulation(asked: str | None, gpu: str | None, experiment: Experiment) -> None:
    """Raise `UsageError` where a cell cannot be simulated: a training computes, and a rate must be published."""
    if experiment.kind == "training":
        if asked is not None:
            raise UsageError(f"{experiment.name} trains a model, which cannot be simulated", hint="leave --simulate out")
        return
    for model, precision in dict.fromkeys((cell.model, cell.precision) for cell in experiment.cells if gpu is not None):
        try:
            rate_of(gpu or "", model, precision)
        except UsageError as error:
            known = [name for name, rates in SIMULATED_GPUS.items() if precision in rates]
            raise UsageError(str(error), hint=f"GPUs with published rates in {precision}: {', '.join(known)}") from None


def _projection(experiment: Experiment, gpu: str | None, *, real: bool = False) -> tuple[Projection | None, str | None]:
    """Return the projection to the published machine, and its arithmetic in words.

    None for a processor that is not in the table of scores, and where another GPU than the published one computes.
    gpu: the simulated one. real: whether a GPU of this machine computes.
    """
    if experiment.published_cpu is None:
        return None, None
    (table,) = read_table("us-east-1", lambda line: None)
    score = _published_score(table, experiment.published_cpu)  # refused on every machine, also where nothing is projected
    if experiment.published_vcpus is None:
        return None, None
    if gpu is not None and experiment.accelerator is not None and gpu != experiment.accelerator:
        return None, f"none: the published machine has a {experiment.accelerator.upper()}, and a {gpu.upper()} is simulated."
    if real:
        return None, "none: the model computes on the GPU of this machine, not on the published one."
    named, hidden = _processor(table)
    if named is None:
        return None, f"none: no published score of this processor ({machine.processor().model})."
    speed = score / table.cpu_score(named)
    spread = ASSUMED_CPU_SPREAD if hidden else CPU_SPREAD
    source = table.source("cpu")["source"]
    words = (
        f"{experiment.published_vcpus} vCPUs of {experiment.published_cpu}, each {speed:.2f} times as fast as a core here "
        f"({named}{', by its family and model' if hidden else ''}), {speed / spread:.2f} to {speed * spread:.2f}; "
        f"scores: {source}."
    )
    return Projection(experiment.published_vcpus, speed, speed / spread, speed * spread, source), words


def _published_score(table: PriceTable, cpu: str) -> float:
    """Return the score of the published machine's processor. Raises `UsageError` with the known names for another one."""
    try:
        return table.cpu_score(cpu)
    except UsageError:
        known = ", ".join(table.document["cpus"])
        raise UsageError(f"published_cpu {cpu!r} has no score in the price table", hint=f"known: {known}") from None


def _processor(table: PriceTable) -> tuple[str | None, bool]:
    """Return this machine's processor in the table, and whether its name was hidden by the virtual machine."""
    found = machine.processor()
    named = table.cpu_by_model_name(found.model)
    if named is not None:
        return named, False
    return HIDDEN_NAMES.get((found.family or 0, found.model_number or 0)), True


def _document(
    args: argparse.Namespace, found: Run, rows: list[Row], sentences: list[str], notes: list[str]
) -> dict[str, object]:
    settings = found.settings
    return {
        "experiment": found.experiment.name,
        "title": found.experiment.title,
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cpu": machine.processor().model, "cores": machine.cores().usable},
        "simulate": settings.gpu,
        "scale": settings.scale,
        "seconds": found.seconds,
        "elapsed_s": found.elapsed_s,
        "rows": as_documents(rows),
        "sentences": sentences,
        "notes": notes,
        "pixels": found.pixels,
    }


def _write(found: Run, rows: list[Row], document: dict[str, object], sentences: list[str], notes: list[str]) -> dict[str, str]:
    out, experiment = found.settings.out, found.experiment
    text = f"# {experiment.title}\n\n{outputs.markdown(rows)}\n" + "".join(f"- {line}\n" for line in (*sentences, *notes))
    outputs.write_files(out, rows, document, text)
    drawn = charts.charts_of(rows, experiment.compare)
    folder = out / "charts"
    make_output_folder(folder)
    for chart in drawn:
        atomic_write(folder / f"{chart.name}.svg", charts.svg_file(chart))
        charts.write_png(chart, folder / f"{chart.name}.png")
    written = page.write(out / "trials.html", experiment, rows, drawn, page.heat_rows(found), sentences, notes)
    names = {
        "page": written,
        "json": out / "trials.json",
        "csv": out / "rows.csv",
        "markdown": out / "trials.md",
        "charts": folder,
    }
    return {name: str(path) for name, path in names.items()}


def _render(rows: list[Row], sentences: list[str], files: dict[str, str]) -> None:
    table = Table(box=None, pad_edge=False)
    texts_of = [dict(zip(outputs.COLUMNS, outputs.cells_of(row), strict=True)) for row in rows]
    values = {name: {texts[name] for texts in texts_of} for name in SHORT}
    names = [name for name in SHORT if len(values[name]) > 1 or (name not in DESCRIPTIONS and values[name] != {"–"})]
    for name in names:
        numeric = name not in ("loader", "model", "mode", "verdict")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=name != "verdict", overflow="fold")
    for texts in texts_of:
        table.add_row(*(texts[name] for name in names))
    output.stdout_console.print(table, markup=False)
    for sentence in sentences:
        output.say(sentence)
    output.say(f"page: {files['page']}")
