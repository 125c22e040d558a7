"""`headrace train`: a whole training run."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import fields, replace
from pathlib import Path

from rich.markup import escape

from headrace.cli import output
from headrace.devices import open_device
from headrace.errors import UsageError
from headrace.nvml import find_driver
from headrace.recipe import Recipe
from headrace.report import training
from headrace.trainer import Options, Progress, Result, train
from headrace.training.batch_size import choose
from headrace.training.prepare import open_data
from headrace.training.processes import run_processes
from headrace.training.ranks import ranks_from_environment
from headrace.training.resume import find
from headrace.training.trial import Trial

SUMMARY = "train a classifier: mixed precision, checkpoints, exact resume, no waiting for input"
EXAMPLE = """
headrace train --model resnet50 --data /data/imagenet/train --val /data/imagenet/val --epochs 16 --out runs/one
headrace train --model resnet50 --data /data/imagenet/train --out runs/one --resume auto
"""

DEFAULTS = {field.name: field.default for field in fields(Options)}
RECIPE = Recipe()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `headrace train`."""
    add = parser.add_argument
    add("--model", required=True, help="a classifier of torchvision or timm, resnet20…56 for small images, or MODULE:FACTORY")
    add("--data", required=True, metavar="PATH", help="training images: a folder of class folders, or a packed dataset")
    add("--val", metavar="PATH", help="validation images (default: DATA/val beside DATA/train, else none)")
    add("--out", default="run", metavar="FOLDER", help="checkpoints, metrics.jsonl and final.safetensors (default: run)")
    add("--epochs", type=int, default=DEFAULTS["epochs"])
    add("--steps", type=int, metavar="N", help="stop after N steps, whatever the epochs say")
    add("--batch-size", default=str(DEFAULTS["batch_size"]), metavar="N|auto", help="images a step on each GPU; auto tries")
    add("--image-size", type=int, default=DEFAULTS["image_size"], metavar="PIXELS")
    add("--precision", choices=("auto", "bf16", "fp16", "fp32"), default="auto", help="auto: bf16 or fp16 on a GPU")
    add("--device", metavar="DEVICE", help="cpu, cuda, or sim:a100 (a timed wait) (default: cuda if there is any)")
    add("--seed", type=int, default=0)
    add("--compile", action="store_true", help="torch.compile the model (minutes at the start, faster steps)")
    add("--deterministic", action="store_true", help="the same bits every time (slower)")
    add("--resume", metavar="auto|PATH", help="go on from the newest whole checkpoint (--out, --checkpoint-url), or from PATH")
    add("--checkpoint-url", metavar="URL", help="keep checkpoints here too: s3://, gs://, az:// (sent in the background)")
    add("--checkpoint-steps", type=int, metavar="N", help="a checkpoint every N steps")
    add("--checkpoint-minutes", type=float, default=DEFAULTS["checkpoint_minutes"], metavar="M", help="… every M minutes")
    add("--keep", type=int, default=DEFAULTS["keep"], metavar="N", help="how many checkpoints to keep")
    add("--nan-steps", type=int, default=0, metavar="N", help="pass over N steps with a loss that is not finite, then stop")
    add("--sync-batch-norm", action="store_true", help="batch normalisation over the batches of all GPUs")
    add("--threads", type=int, metavar="N", help="threads that read and decode (default: the usable cores)")
    add("--on-error", choices=("raise", "skip"), default="raise", help="an image that cannot be decoded: stop, or use another")
    add("--learning-rate", type=float, default=RECIPE.learning_rate, help="for a global batch of 256; scales with it")
    add("--momentum", type=float, default=RECIPE.momentum)
    add("--weight-decay", type=float, default=RECIPE.weight_decay)
    add("--label-smoothing", type=float, default=RECIPE.label_smoothing)
    add("--warmup-epochs", type=float, metavar="N", help="default: a tenth of the run, at most 5")
    add("--mixup", type=float, default=RECIPE.mixup, metavar="ALPHA", help="mix pairs of images (0: off)")
    add("--cutmix", type=float, default=RECIPE.cutmix, metavar="ALPHA", help="paste parts of images (0: off)")
    add("--average", type=float, default=RECIPE.average, metavar="DECAY", help="score a moving average of the weights")
    add("--clip-norm", type=float, default=RECIPE.clip_norm, metavar="NORM", help="largest norm of the gradients (0: any)")
    add("--accumulate", type=int, default=RECIPE.accumulate, metavar="N", help="batches to an optimizer step")
    add("--processes", type=int, metavar="N", help="ranks on this machine (default: one for each GPU)")


def run(args: argparse.Namespace) -> int:
    """Trains with a progress bar; exit code 128 + signal when asked to stop."""
    options = _options(args)
    if args.batch_size == "auto":
        options = replace(options, batch_size=_chosen_batch_size(options))
    count = _processes(args)
    if count > 1 and "WORLD_SIZE" not in os.environ:
        return _run_processes(args, count, options.batch_size)
    if not ranks_from_environment().main:
        return train(options).exit_code
    with output.progress(f"{options.model}: preparing", None) as meter:
        result = train(options, watch=lambda progress: _show(options, progress, meter))
    title = f"{options.model} on {result.device.name}"
    report = training.write(Path(options.out) / "metrics.jsonl", Path(options.out) / "report.html", title=title)
    output.emit(args, _document(options, result, report), lambda: _render(result, report))
    return result.exit_code


def _options(args: argparse.Namespace) -> Options:
    given = vars(args)
    recipe = Recipe(**{field.name: given[field.name] for field in fields(Recipe)})
    names = [field.name for field in fields(Options) if field.name not in ("recipe", "batch_size")]
    size = DEFAULTS["batch_size"] if args.batch_size == "auto" else args.batch_size
    if not str(size).isdecimal():
        raise UsageError(f"--batch-size must be a number or auto, not {size!r}")
    return Options(**{name: given[name] for name in names}, batch_size=int(str(size)), recipe=recipe)


def _chosen_batch_size(options: Options) -> int:
    """That of the run to go on with, else the smallest that is nearly as fast as the fastest."""
    if "WORLD_SIZE" in os.environ:
        raise UsageError("--batch-size auto cannot be asked of each rank by itself", hint="give torchrun a number")
    if options.resume is not None and (found := find(options)[0]) is not None:
        return int(found.state["batch_size"])
    device = open_device(options.device)
    if device.simulated:
        hint = "give a number, or try on a GPU"
        raise UsageError(f"--batch-size auto: the {device.name} takes as long an image at any size", hint=hint)
    data, _ = open_data(options)
    driver = find_driver()[0] if device.kind == "cuda" else None
    memory_bytes = min(gpu.memory_bytes for gpu in driver.gpus) if driver and driver.gpus else None
    output.say(f"trying batch sizes for {options.model} on {device.name}, with input that costs nothing")
    choice = choose(options, classes=len(data.classes), images=len(data), memory_bytes=memory_bytes, watch=_show_trial)
    output.say(f"batch size {choice.batch_size}: the smallest within 3 % of the best rate")
    return choice.batch_size


def _show_trial(trial: Trial) -> None:
    memory = f", {trial.memory_bytes / 2**30:.1f} GiB" if trial.memory_bytes is not None else ""
    result = "does not fit" if trial.img_s is None else f"{trial.img_s:,.0f} img/s{memory}"
    output.say(f"  {trial.batch_size:>5}: {result}")


def _processes(args: argparse.Namespace) -> int:
    """How many ranks this machine is to run."""
    if args.processes is not None:
        if args.processes < 1:
            raise UsageError(f"--processes must be at least 1, not {args.processes}")
        return int(args.processes)
    if args.device not in (None, "cuda"):
        return 1
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([entry for entry in visible.split(",") if entry.strip() not in ("", "-1")])
    driver, _ = find_driver()
    return len(driver.gpus) if driver else 1


def _run_processes(args: argparse.Namespace, count: int, batch_size: int) -> int:
    """Runs `count` ranks of this same command, with the batch size chosen, and prints what the main one printed."""
    code, printed = run_processes(count, [*args.words, "--batch-size", str(batch_size)])
    if args.json and printed:
        output.emit(args, json.loads(printed), lambda: None)
    elif printed:
        print(printed, end="")
    return code


def _show(options: Options, progress: Progress, meter: output.Meter) -> None:
    if progress.remark:
        output.console.print(escape(progress.remark), soft_wrap=True)
        return
    words = f"{options.model} epoch {progress.epoch + 1} step {progress.step}/{progress.total_steps}"
    if progress.loss is not None:
        words += f" loss {progress.loss:.3f}"
    if progress.wait_share is not None:
        words += f" wait {progress.wait_share:.0%}"
    if progress.scores is not None:
        words += f" top-1 {progress.scores.top1:.1%}"
    left = (progress.total_steps - progress.step) * options.batch_size * ranks_from_environment().world_size
    meter.advance(progress.images, words, total=meter.done + progress.images + left)


def _document(options: Options, result: Result, report: Path) -> dict[str, object]:
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
    }


def _render(result: Result, report: Path) -> None:
    state = "finished" if result.final else "stopped"
    print(f"{state} after {result.steps} steps ({result.epochs:.2f} epochs) in {result.seconds:.0f} s on {result.device.name}")
    if result.img_s is not None and result.wait_share is not None:
        print(f"{result.img_s:,.0f} img/s, {result.wait_share:.1%} of the time waiting for input")
    if result.scores is not None:
        top5 = "" if result.scores.top5 is None else f", top-5 {result.scores.top5:.2%}"
        print(f"top-1 {result.scores.top1:.2%}{top5} on {result.scores.images:,} images")
    print(f"weights: {result.final}" if result.final else f"go on with --resume auto; checkpoint: {result.checkpoint}")
    if result.skipped:
        print(f"{result.skipped:,} times an image could not be decoded, and another was used in its place")
    print(f"report: {report}")
