"""Where a run's figures go besides metrics.jsonl: TensorBoard's event files, MLflow, Weights & Biases.

Event files are written by ourselves. MLflow and W&B are imported when asked for, and write below the run's folder unless
their own environment variables say otherwise (MLFLOW_TRACKING_URI; WANDB_MODE, default offline).
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from headrace.errors import MissingDependencyError, UsageError
from headrace.training import tensorboard_events as tfevents

__all__ = ["LOGGERS", "Logger", "Loggers", "figures"]


class Logger(Protocol):
    """A place for figures."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the values of one step."""

    def close(self) -> None:
        """Writes what is left."""


class TensorBoard:
    """One event file a process under OUT/tensorboard; `tensorboard --logdir OUT` shows it."""

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        folder = out / "tensorboard"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._path = folder / f"events.out.tfevents.{time.time_ns()}.headrace"
            self._path.write_bytes(tfevents.head(time.time()))
        except OSError as error:
            raise UsageError(f"--log tensorboard: {folder}: {error.strerror}", hint="choose another --out") from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends the values."""
        now_s = time.time()
        with open(self._path, "ab") as file:
            file.write(b"".join(tfevents.scalar(now_s, step, name, value) for name, value in values.items()))

    def close(self) -> None:
        """Nothing is left: every write is complete."""


class MLflow:
    """A run of MLflow's experiment "headrace", in OUT/mlflow.db unless MLFLOW_TRACKING_URI is set."""

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        self._mlflow = _imported("mlflow")
        if "MLFLOW_TRACKING_URI" not in os.environ:
            self._mlflow.set_tracking_uri(f"sqlite:///{out.resolve() / 'mlflow.db'}")
        self._mlflow.set_experiment("headrace")
        self._mlflow.start_run(run_name=out.name)
        self._mlflow.log_params({name: str(value) for name, value in config.items()})

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the values. MLflow's names know no colon and such; ours have none."""
        self._mlflow.log_metrics(dict(values), step=step)

    def close(self) -> None:
        """Ends the run."""
        self._mlflow.end_run()


class WandB:
    """A run of the project "headrace", offline below OUT/wandb unless WANDB_MODE says otherwise."""

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        wandb = _imported("wandb")
        mode = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(project="headrace", name=out.name, dir=str(out), mode=mode, config=dict(config))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the values."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()


LOGGERS: dict[str, Callable[[Path, Mapping[str, Any]], Logger]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


class Loggers:
    """The chosen ones. One that fails on the way is told of by `warn` and left out: no figure is worth a training run."""

    def __init__(self, names: Sequence[str], out: Path, config: Mapping[str, Any], *, warn: Callable[[str], None]) -> None:
        for name in names:
            if name not in LOGGERS:
                raise UsageError(f"there is no logger {name!r}", hint=f"there are {', '.join(LOGGERS)}")
        self._open = {name: LOGGERS[name](out, config) for name in names}
        self._warn = warn

    def write(self, facts: Mapping[str, Any]) -> None:
        """Passes on the figures of a line of metrics.jsonl."""
        values = figures(facts)
        for name, logger in list(self._open.items()) if values else []:
            self._attempt(name, lambda logger=logger: logger.write(int(facts["step"]), values))  # type: ignore[misc]

    def close(self) -> None:
        """Ends all."""
        for name, logger in list(self._open.items()):
            self._attempt(name, logger.close)

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # theirs are of any kind: servers gone, disks full, protocols changed
            del self._open[name]
            self._warn(f"warning: no more figures to {name}: {type(error).__name__}: {error}")


def figures(facts: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line: `train/loss`, `train/img_s` …, `evaluation/top1` …; what was not measured is absent."""
    named = {f"train/{name}": facts.get(name) for name in ("loss", "learning_rate", "img_s", "wait_share", "image_size")}
    named |= {f"evaluation/{name}": facts.get("evaluation", {}).get(name) for name in ("top1", "top5", "loss")}
    if "loss" not in facts:
        named = {name: value for name, value in named.items() if name.startswith("evaluation/")}
    return {name: float(value) for name, value in named.items() if isinstance(value, int | float)}


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(f"--log {name}: {name} is not installed", hint=f"pip install {name}") from error
