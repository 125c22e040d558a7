"""`headrace tune`: measure settings for a training run on this machine."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path

from rich import box
from rich.table import Column, Table

from headrace.attach.experiments.range_curve import RangeTest
from headrace.cli.shared import output
from headrace.cli.shared.price_options import add_price_options, machine_usd_per_hour
from headrace.cli.train.training_options import add_training_options, options_from_arguments
from headrace.datasets.records.dataset import Dataset
from headrace.errors import UsageError
from headrace.report.pages import learning_rate_page
from headrace.system.hardware.nvml import find_driver
from headrace.system.text.sizes import count_text, percent_text
from headrace.training.distributed.devices import Device, open_device
from headrace.training.distributed.processes import rank_count
from headrace.training.inputs.data import open_data
from headrace.training.inputs.enlarging import enlargement_note
from headrace.training.settings import options_file
from headrace.training.settings.resolve_options import ResolvedOptions, with_global_batch
from headrace.training.tune.batch_size import batch_words
from headrace.training.tune.deadline import Deadline
from headrace.training.tune.learning_rate import find_learning_rate
from headrace.training.tune.tune import Reporter, TuningResult, measured_batch_size, tune

SUMMARY = "measure batch size, threads and prefetch for a training run on this machine, and say what limits it"
EXAMPLE = """
headrace tune --model resnet50 --data /data/imagenet --batch-size auto --write tuned.toml
headrace tune --model resnet50 --data /data/imagenet --batch-size auto --find-learning-rate --write tuned.toml
headrace train --config tuned.toml
"""

BATCH_SIZE_SHARE = 0.5
"""With --find-learning-rate, the search for a batch size may take this share of --time-limit."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headrace tune`: those of `headrace train`, and its own."""
    add_training_options(parser)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="read options from a TOML file; the command line overrides them"
    )
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="seconds of each measurement (default: 5)")
    parser.add_argument(
        "--time-limit",
        type=float,
        default=300.0,
        metavar="S",
        help="end all measurements after S seconds, and say what was not measured (default: 300)",
    )
    parser.add_argument(
        "--find-learning-rate",
        action="store_true",
        help="find a learning rate by a range test instead: train with a growing rate, and throw the weights away",
    )
    parser.add_argument(
        "--page",
        type=Path,
        default=Path("learning-rate.html"),
        metavar="FILE",
        help="where --find-learning-rate draws the loss over the rate (default: learning-rate.html)",
    )
    add_price_options(parser, of="this machine")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write the settings to a file for `headrace train --config FILE`"
    )


def run(args: argparse.Namespace) -> int:
    """Measure settings for a training run, print them, and write them to the file asked for. Return the exit code."""
    if not 0 < args.seconds <= 600:
        raise UsageError(f"--seconds must be from 0 to 600, not {args.seconds:g}")
    if not args.time_limit > 0:
        raise UsageError(f"--time-limit must be above 0, not {args.time_limit:g}")
    usd_per_hour = machine_usd_per_hour(args)
    deadline = Deadline(args.time_limit)
    resolved = options_from_arguments(args, args.config)
    device = open_device(resolved.options.device)
    ranks = rank_count(resolved.processes, resolved.options.device)
    data, _ = open_data(resolved.options)
    if note := enlargement_note(data, resolved.options.image_size):
        output.log(f"note: {note}")
    driver = find_driver()[0] if device.kind == "cuda" else None
    memory_bytes = min(gpu.memory_bytes for gpu in driver.gpus) if driver and driver.gpus else None
    if args.find_learning_rate:
        return _find_learning_rate(args, resolved, data, device, ranks=ranks, deadline=deadline, memory_bytes=memory_bytes)
    with output.Heartbeat("headrace tune") as beat:
        report = Reporter(output.log, beat.begin)
        found = tune(
            resolved,
            data,
            device,
            ranks=ranks,
            seconds=args.seconds,
            memory_bytes=memory_bytes,
            deadline=deadline,
            report=report,
        )
    if args.write is not None:
        options_file.write(replace(found.options, resume=None), args.write)
    usd = _usd_per_epoch(found, len(data), usd_per_hour)
    document = {**_document(found, args.write), "usd_per_epoch": usd}
    output.emit(args, document, lambda: _render(found, args.write, usd))
    return 0


def _find_learning_rate(
    args: argparse.Namespace,
    resolved: ResolvedOptions,
    data: Dataset,
    device: Device,
    *,
    ranks: int,
    deadline: Deadline,
    memory_bytes: int | None,
) -> int:
    """Run the range test; print the chosen rate, draw the page, and write the settings."""
    options = resolved.options
    if resolved.auto_batch_size and not device.simulated:  # the rate depends on the batch size, so that comes first
        with output.Heartbeat("headrace tune", "batch sizes"):
            choice = measured_batch_size(
                resolved,
                data,
                device,
                ranks=ranks,
                memory_bytes=memory_bytes,
                deadline=Deadline(BATCH_SIZE_SHARE * deadline.left_s),
                log=output.log,
            )
        options = replace(options, batch_size=choice.batch_size)
    options = with_global_batch(options, resolved.global_batch, ranks)
    with output.Heartbeat("headrace tune", "learning-rate range test"):
        found = find_learning_rate(options, data, device, ranks=ranks, deadline=deadline, log=output.log)
    page = learning_rate_page.write(found, args.page, title=f"learning rate of {options.model}")
    if found.learning_rate is not None:
        options = replace(options, optimization=replace(options.optimization, learning_rate=found.learning_rate))
    note = batch_words(options, len(data), ranks)
    if args.write is not None:
        options_file.write(replace(options, resume=None), args.write)
    document = {
        "learning_rate": found.learning_rate,
        "batch_size": options.batch_size,
        "batch_note": note,
        "range_test": found,
        "page": page,
        "config": args.write,
        "not_measured": deadline.not_measured,
    }
    output.emit(args, document, lambda: _render_learning_rate(found, page, note))
    return 0


def _render_learning_rate(found: RangeTest, page: Path, batch_note: str) -> None:
    if found.learning_rate is not None:
        output.say(
            f"--learning-rate {found.learning_rate:.3g} (a rate of {found.rate:.3g} for a batch of {found.global_batch:,} "
            f"images): {found.rule}"
        )
    if found.note is not None:
        output.say(f"note: {found.note}")
    output.say(batch_note)
    output.say(f"loss over rate: {page}")


def _document(found: TuningResult, written: Path | None) -> dict[str, object]:
    options = found.options
    return {
        "device": found.device,
        "ranks": found.ranks,
        "binds": found.binds,
        "advice": found.advice,
        "batch_size": options.batch_size,
        "threads": options.threads,
        "prefetch": options.prefetch,
        "compile": options.compile,
        "ingest_img_s": max(
            (one.img_s for one in found.ingest if one.threads == (options.threads or 0) * found.ranks), default=None
        ),
        "compute_img_s": found.compute_img_s,
        "img_s": max((one.img_s for one in found.together), default=None),
        "compute_use": found.compute_use,
        "not_measured": found.not_measured,
        "batch_trials": [{"batch_size": size, "img_s": rate} for size, rate in found.batch_trials],
        "batch_left_out": found.batch_left_out,
        "batch_note": found.batch_note,
        "compile_trials": found.compile_img_s,
        "ingest_trials": found.ingest,
        "together_trials": found.together,
        "config": written,
    }


def _usd_per_epoch(found: TuningResult, images: int, usd_per_hour: float | None) -> float | None:
    """Return the price of an epoch at the best measured rate of training, in USD; None without a price or a rate."""
    rate = max((one.img_s for one in found.together), default=None)
    return None if usd_per_hour is None or not rate else images / rate / 3600 * usd_per_hour


def _render(found: TuningResult, written: Path | None, usd_per_epoch: float | None) -> None:
    options = found.options
    numbers = (Column(name, no_wrap=True) for name in ("what", "setting", "img/s"))
    table = Table(*numbers, Column("", overflow="fold"), box=box.SIMPLE_HEAD)
    for size, rate in found.batch_trials:
        mark = "chosen" if size == options.batch_size else ""
        table.add_row("compute alone", f"batch {size}", "does not fit" if rate is None else f"{rate:,.0f}", mark)
    if found.batch_left_out:
        table.add_row("", f"batch {found.batch_left_out[0]} …", "not measured", "left out")
    for mode, rate in found.compile_img_s.items():
        table.add_row("compute alone", f"compile {mode}", f"{rate:,.0f}", "chosen" if mode == options.compile else "")
    if not found.batch_trials and found.compute_img_s is not None:
        table.add_row("compute alone", f"batch {options.batch_size}", f"{found.compute_img_s:,.0f}", "")
    for one in found.ingest:
        noise = one.use.noise().strip() if one.use else ""
        mark = "chosen" if one.threads == (options.threads or 0) * found.ranks else ""
        table.add_row(
            "input alone",
            count_text(one.threads, "thread"),
            f"{one.img_s:,.0f}",
            f"{mark or f'{one.cores:.1f} cores busy'} {noise}".strip(),
        )
    for both in found.together:
        noise = both.use.noise() if both.use else ""
        setting = f"{count_text(both.prefetch, 'batch')} ahead"
        waits = f"{percent_text(both.wait_share, digits=1)} of the time waiting for input{noise}"
        table.add_row("together", setting, f"{both.img_s:,.0f}", waits)
    if table.row_count:
        output.stdout_console.print(table, markup=False)
    if found.binds == "not measured":
        output.say(f"what limits the training on the {found.device} was not measured: {found.advice}")
    else:
        output.say(f"what limits the training on the {found.device} is {found.binds}: {found.advice}")
    output.say(found.batch_note)
    if found.not_measured:
        output.say(f"not measured within the time limit: {', '.join(found.not_measured)}")
    if usd_per_epoch is not None:
        output.say(f"an epoch costs ${usd_per_epoch:,.2f} at this rate")
    if written is not None:
        output.say(f"settings: {written}; headrace train --config {shlex.quote(str(written))}")
