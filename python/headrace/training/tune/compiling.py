"""Choose a compile mode: measure whether torch.compile and CUDA graphs make this model faster here, and cache the answer."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from headrace.datasets.sources.archives.container_index_cache import cache_folder
from headrace.errors import CommandError, SourceError
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.private_cache import make_cache_folder, owned_file
from headrace.training.distributed.devices import Device
from headrace.training.settings.options import COMPILE, Compile, Options
from headrace.training.tune.compute_rate import ComputeRate, measure_compute_rate

__all__ = ["LEAST_GAIN", "CompileChoice", "choose_compile"]

LEAST_GAIN = 1.03  # compile only if this many times as fast as eager mode: compiling takes time at the start and has bugs


@dataclass(frozen=True, slots=True)
class CompileChoice:
    """The chosen mode, the rate in img/s of each mode that ran, why others failed, and whether this came from the cache."""

    mode: Compile
    img_s: dict[str, float]
    failed: dict[str, str]
    remembered: bool = False


def choose_compile(
    options: Options,
    *,
    device: Device,
    classes: int,
    processes: int = 1,
    try_mode: Callable[..., ComputeRate] = measure_compute_rate,
    log: Callable[[str], None] = lambda line: None,
) -> CompileChoice:
    """Choose the fastest of COMPILE if it is 3 % faster than eager mode, else "off"; "off" on CPUs and simulated devices.

    The answer is cached for the same model, sizes, precision, GPU and version of torch. `log` receives a line for each mode.
    """
    if device.kind != "cuda":
        return CompileChoice("off", {}, {})
    path = _cache_file(options, device, classes, processes)
    with contextlib.suppress(OSError, ValueError, TypeError):
        if not owned_file(path):
            raise ValueError("not a choice that this user stored")
        return replace(CompileChoice(**json.loads(path.read_text())), remembered=True)
    rates: dict[str, float] = {}
    failed: dict[str, str] = {}
    for mode in COMPILE:
        try:
            trial = try_mode(replace(options, compile=mode), classes=classes, processes=processes)
        except CommandError as error:
            if mode == "off":
                raise
            failed[mode] = str(error)
        else:
            if trial.img_s is None:
                failed[mode] = "does not fit"
            else:
                rates[mode] = trial.img_s
        log(f"compile {mode}: " + (f"{rates[mode]:,.0f} img/s" if mode in rates else failed[mode]))
    choice = CompileChoice(_best(rates), rates, failed)
    try:
        make_cache_folder(path.parent)
        atomic_write(path, json.dumps(asdict(choice)))
    except SourceError as error:
        log(f"the choice is not kept: {error} ({error.hint})")
    except OSError:
        pass  # it is only tried again
    return choice


def _best(rates: dict[str, float]) -> Compile:
    fastest: Compile = "off"
    for mode in COMPILE:
        if mode in rates and rates[mode] >= LEAST_GAIN * rates.get("off", 0.0) and rates[mode] > rates.get(fastest, 0.0):
            fastest = mode
    return fastest


def _cache_file(options: Options, device: Device, classes: int, processes: int) -> Path:
    import torch

    facts = [options.model, options.batch_size, options.image_size, options.precision, options.channels_last, options.tf32]
    facts += [asdict(options.optimization), classes, processes, device.name, torch.__version__]
    return cache_folder() / "compile" / f"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}.json"
