"""Options of a training run: parsed here, whether from the command line or from the TOML file of `--config`."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from headrace.cli.shared.unnamed_folder import unnamed_folder
from headrace.datasets.sources.remote.store import is_url
from headrace.errors import UsageError
from headrace.gpu.placement import DECODE
from headrace.system.text.redaction import MASK
from headrace.training.logs.loggers import LOGGERS
from headrace.training.models.factory import check_model_of_file
from headrace.training.settings import options_file
from headrace.training.settings.optimization import AUGMENTATIONS, OPTIMIZERS, SCHEDULES, OptimizationOptions
from headrace.training.settings.options import COMPILE, Options
from headrace.training.settings.presets import PRESETS
from headrace.training.settings.resolve_options import KEYS, ResolvedOptions, resolve_options

__all__ = ["add_model_of_weights", "add_training_options", "options_from_arguments"]

DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Options)}
OPTIMIZATION_DEFAULTS = OptimizationOptions()


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Add all options of a run. Options not given are absent from the namespace, so that a file or a preset can set them."""
    _add_run(parser.add_argument_group("the run"))
    _add_machine(parser.add_argument_group("the machine"))
    _add_optimization(parser.add_argument_group("optimization"))


def add_model_of_weights(parser: argparse.ArgumentParser) -> None:
    """Add the `--model` of a verb that reads trained weights."""
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="model of the weights; needed only if it is MODULE:FACTORY, code that a file alone must not choose",
    )


def _add_run(group: argparse._ArgumentGroup) -> None:
    def add(name: str, *, default: Any = None, **more: Any) -> None:
        _option(group, name, default, **more)

    add("--model", metavar="NAME", help="a classifier of torchvision or timm, resnet20…56 for small images, or MODULE:FACTORY")
    add("--data", metavar="PATH", help="training images: a folder of class folders, or a packed dataset")
    add("--val", metavar="PATH", help="validation images (default: DATA/val or DATA/test beside DATA/train, else none)")
    add("--sharded-data", help="each host holds its own shards of --data only, as with SageMaker's ShardedByS3Key")
    add("--sharded-val", help="each host holds its own shards of --val only")
    add("--out", metavar="FOLDER", help="folder for checkpoints, metrics.jsonl, config.toml, final.safetensors", default="run")
    add("--epochs", type=int, metavar="N", help="passes over the training images", default=DEFAULTS["epochs"])
    add("--steps", type=int, metavar="N", help="stop after N steps, before all epochs are done")
    add(
        "--batch-size",
        type=_size,
        metavar="N|auto",
        help="images per step on each GPU; auto measures",
        default=DEFAULTS["batch_size"],
    )
    add("--global-batch", type=int, metavar="N", help="images per weight update over all GPUs: accumulate batches up to it")
    add("--image-size", type=int, metavar="PIXELS", help="image size of training", default=DEFAULTS["image_size"])
    add("--seed", type=int, metavar="N", help="seed of all random draws", default=DEFAULTS["seed"])
    add("--pretrained", metavar="FILE|auto", help="start from these weights; auto downloads those of torchvision or timm")
    add(
        "--resume",
        metavar="auto|PATH",
        help="continue from the newest whole checkpoint (--out, --checkpoint-url), or from PATH",
    )
    add("--checkpoint-url", metavar="URL", help="upload checkpoints in the background: s3://, gs://, az://")
    add("--checkpoint-steps", type=int, metavar="N", help="save a checkpoint every N steps")
    add(
        "--checkpoint-minutes",
        type=float,
        metavar="M",
        help="save a checkpoint every M minutes",
        default=DEFAULTS["checkpoint_minutes"],
    )
    add("--keep", type=int, metavar="N", help="keep the newest N checkpoints", default=DEFAULTS["keep"])
    add("--nan-steps", type=int, metavar="N", help="skip up to N steps whose loss is not finite, then stop (default: 0)")
    add("--log", type=_names, metavar="NAME,…", help=f"loggers besides metrics.jsonl: {', '.join(LOGGERS)}")
    add(
        "--on-error",
        choices=("raise", "skip"),
        help="at an image that cannot be decoded: stop, or replace it by another",
        default="raise",
    )


def _add_machine(group: argparse._ArgumentGroup) -> None:
    def add(name: str, *, default: Any = None, **more: Any) -> None:
        _option(group, name, default, **more)

    add("--device", metavar="DEVICE", help="cpu, cuda, or sim:a100 (a timed wait) (default: cuda if there is a GPU)")
    add("--processes", type=int, metavar="N", help="ranks on this machine (default: one per GPU)")
    add(
        "--precision",
        choices=("auto", "bf16", "fp16", "fp32"),
        help="number format of compute; auto: bf16 or fp16 on a GPU, fp32 on a CPU",
        default="auto",
    )
    add("--compile", nargs="?", const="on", choices=("auto", *COMPILE), default="off",
        help="torch.compile; graphs: with CUDA graphs; auto: use what is 3 %% faster here, and cache the answer")  # fmt: skip
    add("--channels-last", help="use channels-last memory", default=True)
    add("--sync-batch-norm", help="normalise over the batches of all GPUs")
    add("--tf32", help="compute float32 products in TF32 on GPUs", default=True)
    add("--deterministic", help="compute the same bits every time (slower)")
    add("--threads", type=int, metavar="N", help="threads that read and decode (default: one per usable core)")
    add("--prefetch", type=int, metavar="N", help="batches to make ahead", default=DEFAULTS["prefetch"])
    add("--decode", choices=DECODE, help="who decodes JPEGs for a GPU; auto: by measured rates", default="auto")


def _add_optimization(group: argparse._ArgumentGroup) -> None:
    def add(name: str, **more: Any) -> None:
        _option(group, name, getattr(OPTIMIZATION_DEFAULTS, name[2:].replace("-", "_"), None), **more)

    add(
        "--recipe",
        choices=tuple(PRESETS),
        help="preset: options that belong together; docs/guides/training.md names their sources",
    )
    add("--optimizer", choices=OPTIMIZERS, help="optimizer; lamb and lars need timm")
    add(
        "--learning-rate",
        type=float,
        metavar="RATE",
        help="peak learning rate for a global batch of 256; it grows with the batch",
    )
    add("--momentum", type=float, metavar="SHARE", help="momentum of sgd and lars")
    add("--nesterov", help="use Nesterov momentum")
    add("--weight-decay", type=float, metavar="DECAY", help="weight decay")
    add("--decay-norms", help="apply weight decay to norms and biases too")
    add("--schedule", choices=SCHEDULES, help="learning rate after the warm-up")
    add("--warmup-epochs", type=float, metavar="N", help="epochs of warm-up (default: a tenth of the run, at most 5)")
    add("--label-smoothing", type=float, metavar="SHARE", help="label smoothing")
    add("--augment", choices=AUGMENTATIONS, help="augmentation besides crop and flip")
    add("--erase", type=float, metavar="P", help="probability of random erasing (0: off)")
    add("--mixup", type=float, metavar="ALPHA", help="alpha of MixUp, which blends pairs of images (0: off)")
    add("--cutmix", type=float, metavar="ALPHA", help="alpha of CutMix, which pastes parts of images (0: off)")
    add(
        "--average",
        type=float,
        metavar="DECAY",
        help="decay of a moving average of the weights, which is evaluated instead (0: off)",
    )
    add("--clip-norm", type=float, metavar="NORM", help="largest norm of the gradients (0: no limit)")
    add("--accumulate", type=int, metavar="N", help="batches per weight update")
    add("--blurpool", help="add a low-pass filter before strided convolutions and in max pooling")
    add("--start-scale", type=float, metavar="SHARE", help="image size of the first epochs, as a share of --image-size")
    add("--resize-begin", type=float, metavar="SHARE", help="images grow after this share of the epochs")
    add("--resize-end", type=float, metavar="SHARE", help="images have --image-size after this share of the epochs")
    add("--test-scale", type=float, metavar="SHARE", help="image size of the evaluation, as a share of --image-size")
    add("--flip-test", help="evaluate the mean of each image and its mirror image")
    add("--body-rate", type=float, metavar="SHARE", help="learning rate of all layers but the last, as a share of that layer's")


def _option(group: argparse._ArgumentGroup, name: str, default: Any, *, help: str = "", **more: Any) -> None:
    """Add one option; one without a value is a switch with `--no-…`."""
    if default not in (None, False, 0) and "(" not in help:
        value = f"{default:.4g}" if isinstance(default, float) else "yes" if default is True else default
        help = f"{help} (default: {value})".strip()
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
    """Return the options of a run: defaults, overridden by preset, file, command line, in this order.

    Raises UsageError for a file with other options or values, for options that are missing, for a masked password in a URL, and
    for a link in the place of the folder of results, if none is named.
    """
    given = {key: value for key, value in vars(args).items() if key in KEYS}
    file = _from_file(config) if config is not None else {}
    if "model" in file and "model" not in given:
        check_model_of_file(file["model"], given=None, where=f"--config {config}")
    found = {**file, **given}
    for flag, url in {
        "--data": found.get("data"),
        "--val": found.get("val"),
        "--checkpoint-url": found.get("checkpoint_url"),
    }.items():
        if isinstance(url, str) and is_url(url) and MASK in url:
            raise UsageError(f"the password in {flag} {url} is masked, as in every file", hint=f"give {flag} with its URL")
    resolved = resolve_options(found)
    if "out" not in found:
        unnamed_folder(resolved.options.out)
    return resolved


def _from_file(path: Path) -> dict[str, Any]:
    """Return the values of the file, checked by the same parser as those of the command line."""
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
