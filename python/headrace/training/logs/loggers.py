"""Loggers: copies of the metrics for TensorBoard, MLflow, and Weights & Biases.

We write TensorBoard's event files ourselves. MLflow and W&B are imported when asked for. They write below the run's folder
unless their environment variables say otherwise (MLFLOW_TRACKING_URI; WANDB_MODE, default offline).
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from headrace.errors import MissingDependencyError, UsageError
from headrace.system.files.private_files import make_output_folder, output_opener
from headrace.training.logs import tensorboard_events as tfevents

__all__ = ["LOGGERS", "Logger", "Loggers", "figures"]


class Logger(Protocol):
    """The interface of a logger, which receives the metrics of a run."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of one step."""

    def close(self) -> None:
        """Write the values that are still buffered, and end the logger's run."""


class TensorBoard:
    """Writes one event file per process under OUT/tensorboard; view it with `tensorboard --logdir OUT`."""

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        folder = out / "tensorboard"
        try:
            make_output_folder(folder)
            self._path = folder / f"events.out.tfevents.{time.time_ns()}.headrace"
            self._append(tfevents.head(time.time()))
        except OSError as error:
            raise UsageError(f"--log tensorboard: {folder}: {error.strerror}", hint="choose another --out") from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append the values of one step to the event file."""
        now_s = time.time()
        self._append(b"".join(tfevents.scalar(now_s, step, name, value) for name, value in values.items()))

    def _append(self, records: bytes) -> None:
        with open(self._path, "ab", opener=output_opener) as file:
            file.write(records)

    def close(self) -> None:
        """Do nothing: every write is complete."""


class MLflow:
    """Logs to a run of MLflow's experiment "headrace", in OUT/mlflow.db unless MLFLOW_TRACKING_URI is set."""

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        self._mlflow = _imported("mlflow")
        if "MLFLOW_TRACKING_URI" not in os.environ:
            self._mlflow.set_tracking_uri(f"sqlite:///{out.resolve() / 'mlflow.db'}")
        self._mlflow.set_experiment("headrace")
        self._mlflow.start_run(run_name=out.name)
        self._mlflow.log_params({name: str(value) for name, value in config.items()})

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of one step. MLflow allows no colons in names; these have none."""
        self._mlflow.log_metrics(dict(values), step=step)

    def close(self) -> None:
        """End MLflow's run."""
        self._mlflow.end_run()


class WandB:
    """Logs to a run of the W&B project "headrace", offline below OUT/wandb unless WANDB_MODE says otherwise."""

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        wandb = _imported("wandb")
        mode = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(project="headrace", name=out.name, dir=str(out), mode=mode, config=dict(config))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End W&B's run, and write what is still buffered."""
        self._run.finish()


LOGGERS: dict[str, Callable[[Path, Mapping[str, Any]], Logger]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


class Loggers:
    """All loggers of a run. One that fails is reported by `warn` and dropped: a logger must not end a training run."""

    def __init__(self, names: Sequence[str], out: Path, config: Mapping[str, Any], *, warn: Callable[[str], None]) -> None:
        for name in names:
            if name not in LOGGERS:
                raise UsageError(f"there is no logger {name!r}", hint=f"there are {', '.join(LOGGERS)}")
        self._open = {name: LOGGERS[name](out, config) for name in names}
        self._warn = warn

    def write(self, facts: Mapping[str, Any]) -> None:
        """Log the numbers of one line of metrics.jsonl to all loggers."""
        values = figures(facts)
        for name, logger in list(self._open.items()) if values else []:
            self._attempt(name, lambda logger=logger: logger.write(int(facts["step"]), values))  # type: ignore[misc]

    def close(self) -> None:
        """Close all loggers."""
        for name, logger in list(self._open.items()):
            self._attempt(name, logger.close)

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # servers vanish, disks fill up: these packages raise anything
            del self._open[name]
            self._warn(f"warning: the logger {name} failed and is dropped: {type(error).__name__}: {error}")


def figures(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in a line of metrics.jsonl as `train/loss`, `evaluation/top1` …; those not measured are absent."""
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
