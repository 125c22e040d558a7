"""The options of a training run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headrace.errors import UsageError
from headrace.gpu.placement import DECODE, Decode
from headrace.training.settings.optimization import OptimizationOptions

__all__ = ["COMPILE", "Compile", "Options", "Precision", "check_options"]

Precision = Literal["auto", "bf16", "fp16", "fp32"]
Compile = Literal["off", "on", "graphs"]

COMPILE: tuple[Compile, ...] = ("off", "on", "graphs")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a training run: the model, the data, the machine, and how to optimise.

    `batch_size` is per rank, `image_size` in pixels. `out` is the folder for checkpoints, metrics and weights. The page
    `docs/reference/training.md` explains the options.

        Options(model="resnet50", data="/data/imagenet", out="runs/one", epochs=16, precision="bf16")
    """

    model: str  # a model's name in torchvision, timm or headrace, or "MODULE:FACTORY" for your own
    data: str  # an image folder or a packed dataset
    out: str
    val: str | None = None  # validation data; None: DATA/val or DATA/test, if DATA holds them beside DATA/train
    epochs: int = 16
    steps: int | None = None  # stop after this many steps, before all epochs are done
    batch_size: int = 256
    image_size: int = 224
    precision: Precision = "auto"
    device: str | None = None  # "cpu", "cuda", "sim:a100"; None: CUDA if there is a GPU
    seed: int = 0
    deterministic: bool = False  # compute the same bits every time (slower)
    resume: str | None = None  # checkpoint to continue from: None, "auto" (the newest), or its folder or URL
    nan_steps: int = 0  # skip up to this many steps whose loss is not finite; one more ends the run
    sync_batch_norm: bool = False  # batch normalisation over the batches of all ranks
    sharded_data: bool = False  # each host holds only its own shards of `data` (SageMaker's ShardedByS3Key)
    sharded_val: bool = False  # each host holds only its own shards of `val`
    checkpoint_url: str | None = None  # object-store prefix to which checkpoints are uploaded too
    checkpoint_steps: int | None = None  # save a checkpoint after every this many steps
    checkpoint_minutes: float | None = 10.0  # save a checkpoint after every this many minutes
    keep: int = 2  # number of newest checkpoints to keep
    threads: int | None = None  # threads that read and decode; None: one per usable core
    prefetch: int = 3  # number of batches made ahead
    decode: Decode = "auto"  # where JPEGs are decoded when training on a GPU: see `headrace.Loader`
    on_error: Literal["raise", "skip"] = "raise"  # for an image that cannot be decoded: stop, or replace and count it
    compile: Compile = "off"  # torch.compile: "off", "on", or "graphs" (on, with CUDA graphs)
    channels_last: bool = True
    tf32: bool = True  # compute float32 products in TF32 on CUDA GPUs
    pretrained: str | None = None  # a file of weights, or "auto": download those of torchvision or timm
    log: tuple[str, ...] = ()  # loggers besides metrics.jsonl: tensorboard, mlflow, wandb
    optimization: OptimizationOptions = field(default_factory=OptimizationOptions)


def check_options(options: Options) -> None:
    """Raise UsageError for a value out of range."""
    for name in ("epochs", "batch_size", "image_size", "keep", "prefetch"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(options, name)}")
    if options.nan_steps < 0:
        raise UsageError(f"--nan-steps must be 0 or more, not {options.nan_steps}")
    for name in ("steps", "checkpoint_steps", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    if options.decode not in DECODE:
        raise UsageError(f"--decode must be one of {', '.join(DECODE)}, not {options.decode!r}")
    if options.compile not in COMPILE:
        raise UsageError(f"--compile must be one of {', '.join(COMPILE)}, not {options.compile!r}")
