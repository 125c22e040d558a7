"""What to train, on what, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headrace.errors import UsageError
from headrace.training.optimization import OptimizationOptions

__all__ = ["COMPILE", "Compile", "Options", "Precision", "check"]

Precision = Literal["auto", "bf16", "fp16", "fp32"]
Compile = Literal["off", "on", "graphs"]

COMPILE: tuple[Compile, ...] = ("off", "on", "graphs")


@dataclass(frozen=True, slots=True)
class Options:
    """What to train, on what, and how. `batch_size` is over all ranks' own share: per rank."""

    model: str
    data: str
    out: str
    val: str | None = None
    epochs: int = 16
    steps: int | None = None  # stop after so many, whatever the epochs say
    batch_size: int = 256
    image_size: int = 224
    precision: Precision = "auto"
    device: str | None = None
    seed: int = 0
    deterministic: bool = False
    resume: str | None = None  # None, "auto", or a checkpoint's folder or URL
    nan_steps: int = 0  # so many steps whose loss is not finite are passed over; the next one ends the run
    sync_batch_norm: bool = False  # statistics of batch normalisation over all ranks
    checkpoint_url: str | None = None  # an object store in which checkpoints are kept too
    checkpoint_steps: int | None = None
    checkpoint_minutes: float | None = 10.0
    keep: int = 2
    threads: int | None = None
    prefetch: int = 3  # batches that are made ahead
    on_error: Literal["raise", "skip"] = "raise"  # an image that cannot be decoded: stop, or use another and count it
    compile: Compile = "off"  # torch.compile; "graphs": with CUDA graphs
    channels_last: bool = True
    tf32: bool = True  # float32 products of CUDA GPUs in TF32
    pretrained: str | None = None  # a file of weights, or "auto": those of torchvision or timm, downloaded
    log: tuple[str, ...] = ()  # besides metrics.jsonl: tensorboard, mlflow, wandb
    optimization: OptimizationOptions = field(default_factory=OptimizationOptions)


def check(options: Options) -> None:
    """Raises UsageError for a number that makes no sense."""
    for name in ("epochs", "batch_size", "image_size", "keep", "prefetch"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(options, name)}")
    if options.nan_steps < 0:
        raise UsageError(f"--nan-steps must be 0 or more, not {options.nan_steps}")
    for name in ("steps", "checkpoint_steps", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    if options.compile not in COMPILE:
        raise UsageError(f"--compile must be one of {', '.join(COMPILE)}, not {options.compile!r}")
