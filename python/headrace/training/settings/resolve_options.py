"""Resolve the options of a run: defaults, then a preset, then a TOML file, then the command line; the last one wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from headrace.errors import UsageError
from headrace.system.text.sizes import count_text
from headrace.training.settings.optimization import OptimizationOptions
from headrace.training.settings.options import Options
from headrace.training.settings.presets import PRESETS, Preset

__all__ = ["KEYS", "ResolvedOptions", "resolve_options", "with_global_batch"]

_OPTIONS = tuple(field.name for field in fields(Options) if field.name != "optimization")
_OPTIMIZATION = tuple(field.name for field in fields(OptimizationOptions))
# Names allowed in a TOML file: every option of a run, and those resolved before it starts (preset, global batch, ranks).
KEYS = (*_OPTIONS, "recipe", *_OPTIMIZATION, "global_batch", "processes")
_OF_THE_OPTIMIZER = ("learning_rate", "weight_decay")


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """The resolved options. With `auto_batch_size` or `auto_compile`, that option must still be measured."""

    options: Options
    preset: Preset | None
    auto_batch_size: bool = False
    auto_compile: bool = False
    global_batch: int | None = None
    processes: int | None = None


def resolve_options(given: Mapping[str, Any]) -> ResolvedOptions:
    """Return a run's options: `given` ones (named as in KEYS) override the preset's and the defaults.

    Raises UsageError if the model, the data, or the trained weights that a preset starts from are not given.
    """
    for name in ("model", "data"):
        if name not in given:
            raise UsageError(f"--{name} is missing", hint=f"--{name} on the command line, or {name} = … in --config FILE")
    preset = PRESETS[given["recipe"]] if "recipe" in given else None
    from_preset = {} if preset is None else asdict(preset.optimization)
    if given.get("optimizer", from_preset.get("optimizer")) != from_preset.get("optimizer"):
        for key in _OF_THE_OPTIMIZER:  # a learning rate for SGD is far too high for Adam
            from_preset.pop(key, None)
    optimization = OptimizationOptions(**{**from_preset, **{key: given[key] for key in _OPTIMIZATION if key in given}})
    options: dict[str, Any] = {"out": "run"}
    if preset is not None:
        options |= {"epochs": preset.epochs, "image_size": preset.image_size}
    options |= {key: given[key] for key in _OPTIONS if key in given}
    if preset is not None and preset.pretrained and options.get("pretrained") is None:
        hint = "--pretrained FILE, or --pretrained auto for those of torchvision or timm"
        raise UsageError(f"--recipe {given['recipe']} starts from trained weights", hint=hint)
    auto = {key: options.get(key) == "auto" for key in ("batch_size", "compile")}
    settled = {key: value for key, value in options.items() if not auto.get(key)}
    return ResolvedOptions(
        Options(**settled, optimization=optimization),
        preset,
        auto_batch_size=auto["batch_size"],
        auto_compile=auto["compile"],
        global_batch=given.get("global_batch"),
        processes=given.get("processes"),
    )


def with_global_batch(options: Options, global_batch: int | None, ranks: int) -> Options:
    """Return the options with `accumulate` set for updates of `global_batch` images (None: unchanged).

    Raises UsageError unless `global_batch` is a multiple of the batch size times the ranks.
    """
    if global_batch is None:
        return options
    step = options.batch_size * ranks
    if global_batch < 1 or global_batch % step:
        hint = f"--global-batch {max(1, round(global_batch / step)) * step}, or another --batch-size"
        raise UsageError(
            f"--global-batch {global_batch} is not a multiple of "
            f"{count_text(options.batch_size, 'image')} × {count_text(ranks, 'rank')}",
            hint=hint,
        )
    return replace(options, optimization=replace(options.optimization, accumulate=global_batch // step))
