"""`headrace train`: train a classifier."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from rich.markup import escape

from headrace.cli.shared import output
from headrace.cli.shared.price_options import add_price_options, machine_usd_per_hour
from headrace.cli.train.run_watch import RunWatch
from headrace.cli.train.training_line import TrainingMeter, training_progress
from headrace.cli.train.training_options import add_training_options, options_from_arguments
from headrace.diagnosis.result.model import Diagnosis
from headrace.diagnosis.rules.input import INPUT_SHARE
from headrace.errors import UsageError
from headrace.report.pages import training_page
from headrace.system.hardware import machine
from headrace.system.hardware.nvml import find_driver
from headrace.system.processes.own_python import own_module
from headrace.system.text.sizes import count_text, percent_text
from headrace.training.distributed.devices import open_device
from headrace.training.distributed.processes import rank_count, run_processes
from headrace.training.distributed.ranks import ranks_from_environment
from headrace.training.dry_run import DryRun, measure_dry_run
from headrace.training.inputs.data import data_notes, open_data
from headrace.training.loop import Options, Result, TrainingProgress, train
from headrace.training.settings import options_file
from headrace.training.settings.options import Compile, check_options
from headrace.training.settings.resolve_options import ResolvedOptions, with_global_batch
from headrace.training.tune.batch_size import CPU_SECONDS, batch_words, choose_batch_size
from headrace.training.tune.compiling import choose_compile
from headrace.training.tune.compute_rate import ComputeRate
from headrace.training.tune.deadline import Deadline
from headrace.training.tune.machine_use import MachineUse
from headrace.training.tune.memory_limit import memory_budget_bytes
from headrace.training.weights.resume import find_checkpoint
from headrace.training.weights.saved_state import read_saved_state

SUMMARY = "train a classifier: mixed precision, checkpoints, exact resume, no waiting for input"
INTERRUPTED = "finishing this step, then saving; Ctrl-C once more stops now"
EXAMPLE = """
headrace train --model resnet50 --data /data/imagenet/train --val /data/imagenet/val --epochs 16 --out runs/one
headrace train --model resnet50 --data /data/imagenet/train --out runs/one --resume auto
"""

DRY_RUN_SECONDS = 3.0  # how long a dry run measures the input
DRY_RUN_LIMIT_S = 60.0  # time limit of all measurements of a dry run together


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headrace train`."""
    add_training_options(parser)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="read options from a TOML file; the command line overrides them"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="measure for some seconds and print what the run would take; write nothing"
    )
    add_price_options(parser, of="this machine")


def run(args: argparse.Namespace) -> int:
    """Train with a progress bar. Return the exit code: 128 + n if signal n asked the training to stop."""
    usd_per_hour = machine_usd_per_hour(args)
    resolved = options_from_arguments(args, args.config)
    count = rank_count(resolved.processes, resolved.options.device)
    options = _measured_options(resolved, count)
    if args.dry_run:
        return _dry_run(args, resolved, options, count)
    if count > 1 and "WORLD_SIZE" not in os.environ:
        return _run_processes(args, count, options)
    if not ranks_from_environment().main:
        return _train_and_diagnose(options, lambda progress: None)[0].exit_code
    _log_options(resolved, options)
    with training_progress(options.model) as meter:
        result, diagnosis = _train_and_diagnose(
            options, lambda progress: _show_progress(options, progress, meter), on_phase=meter.begin
        )
    title = f"{options.model} on {result.device.name}"
    metrics, page = Path(options.out) / "metrics.jsonl", Path(options.out) / "report.html"
    report = training_page.write(metrics, page, title=title, diagnosis=diagnosis)
    usd = None if usd_per_hour is None else result.seconds / 3600 * usd_per_hour
    document = {**_document(options, result, report, diagnosis), "usd": usd}
    output.emit(args, document, lambda: _render(result, report, diagnosis, usd))
    return result.exit_code


def _train_and_diagnose(
    options: Options,
    on_progress: Callable[[TrainingProgress], None],
    on_phase: Callable[[str], None] = lambda phase: None,
) -> tuple[Result, Diagnosis | None]:
    """Train, and diagnose the run."""
    recording = RunWatch(options)
    try:
        result = train(options, on_progress=on_progress, on_start=recording.begin, on_phase=on_phase)
    except BaseException:
        recording.end(failed=True)
        raise
    # Whoever asks a run to stop waits for its end; where the input keeps up, nothing is predicted from its images.
    return result, recording.end(measure=result.exit_code == 0 and (result.wait_share or 0.0) >= INPUT_SHARE)


def _measured_options(resolved: ResolvedOptions, count: int) -> Options:
    """Return the options, with batch size and compile mode measured where they are `auto`."""
    ranks = ranks_from_environment().world_size if "WORLD_SIZE" in os.environ else count
    options = resolved.options
    if resolved.auto_batch_size:
        options = replace(options, batch_size=_measured_batch_size(resolved, ranks))
    options = with_global_batch(options, resolved.global_batch, ranks)
    return replace(options, compile=_measured_compile_mode(options, ranks)) if resolved.auto_compile else options


def _log_options(resolved: ResolvedOptions, options: Options) -> None:
    """Log the source of the preset, and the options that differ from the defaults."""
    if resolved.preset is not None:
        output.log(f"recipe: {resolved.preset.source}")
    plain = options_file.flatten(Options(options.model, options.data, options.out))
    given = {name: value for name, value in options_file.flatten(options).items() if plain.get(name) != value}
    if given:
        output.log_list("options", options_file.toml_text(given).strip().splitlines())


def _measured_compile_mode(options: Options, ranks: int) -> Compile:
    device = open_device(options.device)
    if device.kind != "cuda":
        output.log(f"compile off: it is not measured on the {device.name}")
        return "off"
    if "WORLD_SIZE" in os.environ:
        raise UsageError("--compile auto does not work under torchrun", hint="give --compile on or off")
    data, _ = open_data(options)
    with output.Heartbeat("headrace train", "measuring compile modes"):
        choice = choose_compile(options, device=device, classes=len(data.classes), processes=ranks, log=output.log)
    known = " (from the cache)" if choice.remembered else ""
    output.log(f"compile {choice.mode}{known}")
    return choice.mode


def _measured_batch_size(resolved: ResolvedOptions, ranks: int) -> int:
    """Return the batch size of the run to resume, else the smallest that is nearly as fast as the fastest."""
    options = resolved.options
    if "WORLD_SIZE" in os.environ:
        raise UsageError("--batch-size auto does not work under torchrun", hint="give a number")
    if (found := find_checkpoint(options)[0]) is not None:
        return read_saved_state(found).batch_size
    device = open_device(options.device)
    if device.simulated:
        hint = "give a number, or use a GPU"
        raise UsageError(f"--batch-size auto: the {device.name} takes the same time per image at any batch size", hint=hint)
    data, _ = open_data(options)
    driver = find_driver()[0] if device.kind == "cuda" else None
    memory_bytes = min(gpu.memory_bytes for gpu in driver.gpus) if driver and driver.gpus else None
    together = f", {ranks} ranks together" if ranks > 1 else ""
    output.log(f"measuring batch sizes for {options.model} on {device.name}{together}, without input")
    with output.Heartbeat("headrace train", "measuring batch sizes"):
        choice = choose_batch_size(
            options,
            classes=len(data.classes),
            images=len(data),
            memory_bytes=memory_bytes,
            host_budget_bytes=memory_budget_bytes() if device.kind == "cpu" else None,
            global_batch=resolved.global_batch,
            processes=ranks,
            seconds=CPU_SECONDS if device.kind == "cpu" else None,
            on_trial=_log_trial,
        )
    if (message := choice.left_out_message()) is not None:
        output.log(message)
    output.log(f"batch size {choice.batch_size}: the smallest within 3 % of the best rate")
    chosen = with_global_batch(replace(options, batch_size=choice.batch_size), resolved.global_batch, ranks)
    output.log(batch_words(chosen, len(data), ranks))
    return choice.batch_size


def _log_trial(trial: ComputeRate) -> None:
    memory = f", {trial.memory_bytes / 2**30:.1f} GiB" if trial.memory_bytes is not None else ""
    result = "does not fit" if trial.img_s is None else f"{trial.img_s:,.0f} img/s{memory}"
    output.log(f"  {trial.batch_size:>5}: {result}")


def _dry_run(args: argparse.Namespace, resolved: ResolvedOptions, options: Options, ranks: int) -> int:
    """Measure for some seconds, and print what the run would take."""
    check_options(options)
    device = open_device(options.device)
    data, val = open_data(options)
    _log_options(resolved, options)
    for note in data_notes(options, data, val, ranks=ranks):
        output.log(f"note: {note}")
    output.log(f"measuring on the {device.name} for {DRY_RUN_LIMIT_S:.0f} s at most; nothing is written")
    with output.Heartbeat("headrace train --dry-run") as beat:
        dry_run = measure_dry_run(
            options,
            data,
            val,
            device,
            ranks=ranks,
            seconds=DRY_RUN_SECONDS,
            usd_per_hour=machine_usd_per_hour(args),
            deadline=Deadline(DRY_RUN_LIMIT_S),
            begin=beat.begin,
        )
    document = {**asdict(dry_run), "model": options.model, "device": device.name, "options": options_file.flatten(options)}
    output.emit(args, document, lambda: _render_dry_run(options, device.name, dry_run))
    return 0


def _render_dry_run(options: Options, device: str, dry_run: DryRun) -> None:
    val = f", {dry_run.val_images:,} for validation" if dry_run.val_images is not None else ", no validation"
    sizes = ", then ".join(f"{size} px" + (f" from epoch {epoch + 1}" if epoch else "") for epoch, size in dry_run.sizes)
    output.say(f"{options.model}, {dry_run.parameters / 1e6:,.1f} million parameters, on {dry_run.ranks} × {device}")
    output.say(f"data: {count_text(dry_run.images, 'image')} of {count_text(dry_run.classes, 'class')}{val}; {sizes}")
    output.say(
        f"batch: {dry_run.batch_size} × {count_text(dry_run.ranks, 'rank')}, "
        f"{count_text(dry_run.global_batch, 'image')} to an optimizer step"
    )
    output.say(
        f"steps: {dry_run.steps_per_epoch:,} an epoch, {dry_run.total_steps:,} in all, {dry_run.warmup_steps:,} of them warm-up"
    )
    output.say(f"learning rate: {dry_run.peak_learning_rate:.4g} at its peak, then {options.optimization.schedule}")
    if dry_run.compute_threads is not None:
        cores = machine.cores().usable
        each = f" in each of {dry_run.ranks} ranks" if dry_run.ranks > 1 else ""
        output.say(
            f"compute: {count_text(dry_run.compute_threads, 'thread')}{each}, on {cores:g} core{'' if cores == 1 else 's'}"
        )
    compute = _rate(dry_run.compute_img_s, dry_run.compute_use, "does not fit" if dry_run.binds == "memory" else "not measured")
    ingest = _rate(dry_run.ingest_img_s, dry_run.ingest_use, "not measured")
    binds = "" if dry_run.binds == "not measured" else f": {dry_run.binds} binds"
    output.say(f"rates: compute alone {compute}, input alone {ingest}{binds}")
    if dry_run.not_measured:
        output.say(f"not measured within {DRY_RUN_LIMIT_S:.0f} s: {', '.join(dry_run.not_measured)}")
    if dry_run.seconds is not None and dry_run.seconds_per_epoch is not None:
        money = "" if dry_run.usd is None else f", {dry_run.usd:,.2f} USD"
        output.say(f"time: {_time(dry_run.seconds_per_epoch)} an epoch, {_time(dry_run.seconds)} in all{money} (estimate)")
    memory = "" if dry_run.memory_bytes is None else f"GPU memory: {dry_run.memory_bytes / 2**30:.1f} GiB; "
    output.say(f"{memory}a checkpoint: {dry_run.checkpoint_bytes / 1e6:,.0f} MB, {options.keep} kept")


def _rate(img_s: float | None, use: MachineUse | None, otherwise: str) -> str:
    return otherwise if img_s is None else f"{img_s:,.0f} img/s{use.noise() if use else ''}"


def _time(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours} h {rest // 60:02d} min" if hours else f"{rest // 60} min {rest % 60:02d} s"


def _run_processes(args: argparse.Namespace, count: int, options: Options) -> int:
    """Run this command line in `count` processes, with the measured options; print what rank 0 prints."""
    measured = ["--batch-size", str(options.batch_size), "--compile", options.compile]
    code, printed = run_processes(count, own_module("headrace", *args.words, *measured))
    if args.json and printed:
        output.emit(args, json.loads(printed), lambda: None)
    elif printed:
        print(printed, end="")
    return code


def _show_progress(options: Options, progress: TrainingProgress, meter: TrainingMeter) -> None:
    if progress.remark:
        output.stderr_console.print(escape(progress.remark), soft_wrap=True)
        return
    words = f"{options.model} epoch {progress.epoch + 1} step {progress.step}/{progress.total_steps}"
    if progress.loss is not None:
        words += f" loss {progress.loss:.3f}"
    if progress.wait_share is not None:
        words += f" wait {percent_text(progress.wait_share)}"
    if progress.scores is not None:
        words += f" top-1 {percent_text(progress.scores.top1, digits=1)}"
    left = (progress.total_steps - progress.step) * options.batch_size * ranks_from_environment().world_size
    meter.update(words, images=progress.images, left=left, rate=progress.img_s)


def _document(options: Options, result: Result, report: Path, diagnosis: Diagnosis | None) -> dict[str, object]:
    scores = result.scores
    return {
        "model": options.model,
        "batch_size": options.batch_size,
        "device": result.device.name,
        "simulated": result.device.simulated,
        "top1": scores.top1 if scores else None,
        "top5": scores.top5 if scores else None,
        "img_s": result.img_s,
        "wait_share": result.wait_share,
        "epochs": result.epochs,
        "steps": result.steps,
        "seconds": result.seconds,
        "skipped": result.skipped,
        "world_size": result.ranks.world_size,
        "loss": result.losses[-1] if result.losses else None,
        "checkpoint": result.checkpoint,
        "uploaded": result.uploaded,
        "final": result.final,
        "metrics": Path(options.out) / "metrics.jsonl",
        "resumed_from_step": result.resumed_from_step,
        "report": report,
        "verdict": diagnosis.verdict if diagnosis else None,
        "session": diagnosis.session if diagnosis else None,
    }


def _render(result: Result, report: Path, diagnosis: Diagnosis | None, usd: float | None) -> None:
    state = "finished" if result.final else "stopped"
    output.say(
        f"{state} after {count_text(result.steps, 'step')} ({result.epochs:.2f} epochs) in {result.seconds:.0f} s "
        f"on {result.device.name}"
    )
    if result.img_s is not None and result.wait_share is not None:
        output.say(f"{result.img_s:,.0f} img/s, {percent_text(result.wait_share, digits=1)} of the time waiting for input")
    if result.scores is not None:
        top5 = "" if result.scores.top5 is None else f", top-5 {percent_text(result.scores.top5, digits=2)}"
        output.say(f"top-1 {percent_text(result.scores.top1, digits=2)}{top5} on {count_text(result.scores.images, 'image')}")
    if usd is not None:
        output.say(f"cost: ${usd:,.2f} for these {result.seconds:.0f} s")
    output.say(f"weights: {result.final}" if result.final else f"continue with --resume auto; checkpoint: {result.checkpoint}")
    if result.skipped:
        output.say(f"images that could not be decoded and were replaced: {result.skipped:,}")
    if diagnosis is not None:
        output.say(f"{diagnosis.verdict}: {diagnosis.summary} (details: {diagnosis.report})")
    output.say(f"report: {report}")
