"""The options of a training run on the command line, and in the TOML file of `--config`: parsed here and nowhere else."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from headrace.errors import UsageError
from headrace.training import options_file
from headrace.training.loggers import LOGGERS
from headrace.training.optimization import AUGMENTATIONS, OPTIMIZERS, SCHEDULES, OptimizationOptions
from headrace.training.options import COMPILE, Options
from headrace.training.presets import PRESETS
from headrace.training.resolve_options import KEYS, ResolvedOptions, resolve_options

__all__ = ["add_training_options", "options_from_arguments"]

DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Options)}
RECIPE = OptimizationOptions()


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """All options of a run. Those that are not given are absent from the namespace: the file and the recipe may know better."""
    _add_run(parser.add_argument_group("the run"))
    _add_machine(parser.add_argument_group("the machine"))
    _add_recipe(parser.add_argument_group("the recipe"))


def _add_run(group: argparse._ArgumentGroup) -> None:
    def add(name: str, *, default: Any = None, **more: Any) -> None:
        _option(group, name, default, **more)

    add("--model", metavar="NAME", help="a classifier of torchvision or timm, resnet20…56 for small images, or MODULE:FACTORY")
    add("--data", metavar="PATH", help="training images: a folder of class folders, or a packed dataset")
    add("--val", metavar="PATH", help="validation images (default: DATA/val or DATA/test beside DATA/train, else none)")
    add("--out", metavar="FOLDER", help="checkpoints, metrics.jsonl, config.toml and final.safetensors", default="run")
    add("--epochs", type=int, metavar="N", default=DEFAULTS["epochs"])
    add("--steps", type=int, metavar="N", help="stop after N steps, whatever the epochs say")
    add(
        "--batch-size",
        type=_size,
        metavar="N|auto",
        help="images a step on each GPU; auto tries",
        default=DEFAULTS["batch_size"],
    )
    add("--global-batch", type=int, metavar="N", help="images an optimizer step over all GPUs: batches are added up to it")
    add("--image-size", type=int, metavar="PIXELS", default=DEFAULTS["image_size"])
    add("--seed", type=int, metavar="N", default=DEFAULTS["seed"])
    add("--pretrained", metavar="FILE|auto", help="weights to start from; auto: those of torchvision or timm, downloaded")
    add("--resume", metavar="auto|PATH", help="go on from the newest whole checkpoint (--out, --checkpoint-url), or from PATH")
    add("--checkpoint-url", metavar="URL", help="keep checkpoints here too: s3://, gs://, az:// (sent in the background)")
    add("--checkpoint-steps", type=int, metavar="N", help="a checkpoint every N steps")
    add("--checkpoint-minutes", type=float, metavar="M", help="… every M minutes", default=DEFAULTS["checkpoint_minutes"])
    add("--keep", type=int, metavar="N", help="how many checkpoints to keep", default=DEFAULTS["keep"])
    add("--nan-steps", type=int, metavar="N", help="pass over N steps with a loss that is not finite, then stop (default: 0)")
    add("--log", type=_names, metavar="NAME,…", help=f"besides metrics.jsonl: {', '.join(LOGGERS)}")
    add("--on-error", choices=("raise", "skip"), help="an image that cannot be decoded: stop, or use another", default="raise")


def _add_machine(group: argparse._ArgumentGroup) -> None:
    def add(name: str, *, default: Any = None, **more: Any) -> None:
        _option(group, name, default, **more)

    add("--device", metavar="DEVICE", help="cpu, cuda, or sim:a100 (a timed wait) (default: cuda if there is any)")
    add("--processes", type=int, metavar="N", help="ranks on this machine (default: one for each GPU)")
    add("--precision", choices=("auto", "bf16", "fp16", "fp32"), help="auto: bf16 or fp16 on a GPU", default="auto")
    add("--compile", nargs="?", const="on", choices=("auto", *COMPILE), default="off",
        help="torch.compile; graphs: with CUDA graphs; auto: what is 3 %% faster here, tried once and remembered")  # fmt: skip
    add("--channels-last", help="channels-last memory", default=True)
    add("--sync-batch-norm", help="batch normalisation over the batches of all GPUs")
    add("--tf32", help="float32 products in TF32 on GPUs", default=True)
    add("--deterministic", help="the same bits every time (slower)")
    add("--threads", type=int, metavar="N", help="threads that read and decode (default: the usable cores)")
    add("--prefetch", type=int, metavar="N", help="batches made ahead", default=DEFAULTS["prefetch"])


def _add_recipe(group: argparse._ArgumentGroup) -> None:
    def add(name: str, **more: Any) -> None:
        _option(group, name, getattr(RECIPE, name[2:].replace("-", "_"), None), **more)

    add("--recipe", choices=tuple(PRESETS), help="ingredients that belong together; docs/training.md says where they come from")
    add("--optimizer", choices=OPTIMIZERS, help="lamb and lars come from timm")
    add("--learning-rate", type=float, metavar="RATE", help="for a global batch of 256; grows with it")
    add("--momentum", type=float, metavar="SHARE")
    add("--nesterov", help="Nesterov's momentum")
    add("--weight-decay", type=float, metavar="DECAY")
    add("--decay-norms", help="weight decay on norms and biases too")
    add("--schedule", choices=SCHEDULES, help="the learning rate after the warm-up")
    add("--warmup-epochs", type=float, metavar="N", help="default: a tenth of the run, at most 5")
    add("--label-smoothing", type=float, metavar="SHARE")
    add("--augment", choices=AUGMENTATIONS, help="besides crop and flip")
    add("--erase", type=float, metavar="P", help="probability of random erasing (0: off)")
    add("--mixup", type=float, metavar="ALPHA", help="mix pairs of images (0: off)")
    add("--cutmix", type=float, metavar="ALPHA", help="paste parts of images (0: off)")
    add("--average", type=float, metavar="DECAY", help="score a moving average of the weights (0: off)")
    add("--clip-norm", type=float, metavar="NORM", help="largest norm of the gradients (0: any)")
    add("--accumulate", type=int, metavar="N", help="batches to an optimizer step")
    add("--blurpool", help="a low-pass filter before strided convolutions and in max pooling")
    add("--start-scale", type=float, metavar="SHARE", help="image size of the first epochs, of --image-size (1: the same)")
    add("--resize-begin", type=float, metavar="SHARE", help="of the epochs, after which images grow")
    add("--resize-end", type=float, metavar="SHARE", help="of the epochs, after which they have --image-size")
    add("--test-scale", type=float, metavar="SHARE", help="image size of the evaluation, of --image-size")
    add("--flip-test", help="evaluate each image together with its mirror image")
    add("--body-rate", type=float, metavar="SHARE", help="learning rate of all but the last layer, of that layer's")


def _option(group: argparse._ArgumentGroup, name: str, default: Any, *, help: str = "", **more: Any) -> None:
    """One option; True or False with `--no-…` where it takes no value."""
    if default not in (None, False, 0) and "(" not in help:
        shown = f"{default:.4g}" if isinstance(default, float) else "yes" if default is True else default
        help = f"{help} (default: {shown})".strip()
    if not {"metavar", "choices"} & more.keys():
        more["action"] = argparse.BooleanOptionalAction
    group.add_argument(name, default=argparse.SUPPRESS, help=help, **more)


def _size(word: str) -> int | str:
    if word == "auto":
        return word
    if not word.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number or auto, not {word!r}")
    return int(word)


def _names(word: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in word.split(",") if name.strip())
    for name in names:
        if name not in LOGGERS:
            raise argparse.ArgumentTypeError(f"there is no {name!r}; there are {', '.join(LOGGERS)}")
    return names


def options_from_arguments(args: argparse.Namespace, config: Path | None) -> ResolvedOptions:
    """The run that the command line and the file ask for. Raises UsageError."""
    given = {key: value for key, value in vars(args).items() if key in KEYS}
    return resolve_options({**(_from_file(config) if config is not None else {}), **given})


def _from_file(path: Path) -> dict[str, Any]:
    """The file's values, through the same parser as the command line's, so that the same is allowed."""
    parser = _FileParser(prog=str(path), allow_abbrev=False, add_help=False)
    parser.path = path
    add_training_options(parser)
    words: list[str] = []
    for name, value in options_file.read(path, KEYS).items():
        flag = f"--{name.replace('_', '-')}"
        takes_none = isinstance(parser.get_default(name), bool) or name in _SWITCHES
        if takes_none != isinstance(value, bool):
            what = "must be true or false" if takes_none else "is no switch"
            raise UsageError(f"--config {path}: {name} {what}, not {value!r}")
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words.append(f"{flag}={','.join(map(str, value)) if isinstance(value, list) else value}")
    return vars(parser.parse_args(words))


_SWITCHES = tuple(field.name for field in (*fields(Options), *fields(OptimizationOptions)) if isinstance(field.default, bool))


class _FileParser(argparse.ArgumentParser):
    path: Path

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"--config {self.path}: {message.removeprefix('argument ')}")
