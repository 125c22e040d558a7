"""The state of a training run in memory, and its way to a checkpoint and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from headrace.errors import HeadraceError, StateError
from headrace.loading.loader import Loader
from headrace.training.checkpoint import Checkpoint, Writer
from headrace.training.devices import Device, StepTimer
from headrace.training.distributed.ranks import Ranks, RankVote
from headrace.training.evaluation import Scores
from headrace.training.input import TrainingInput
from headrace.training.learner import Learner
from headrace.training.metrics import Metrics
from headrace.training.nonfinite_loss import LossMonitor
from headrace.training.options import Options
from headrace.training.uploads import Uploads

if TYPE_CHECKING:
    import torch

__all__ = ["TrainingProgress", "TrainingRun", "restore", "save"]


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """What the loop tells while it runs. `wait_share` near 0: input keeps up; near 1: the device mostly waits."""

    step: int
    total_steps: int
    epoch: int
    images: int  # since the last report
    loss: float | None
    img_s: float | None
    wait_share: float | None
    scores: Scores | None = None
    remark: str | None = None


@dataclass(slots=True)
class TrainingRun:
    """Everything the loop holds."""

    options: Options
    ranks: Ranks
    device: Device
    learner: Learner
    loader: Loader
    feed: TrainingInput
    image_size: int  # of `loader`
    val_loader: Loader | None
    writer: Writer
    uploads: Uploads | None
    metrics: Metrics
    pace: StepTimer
    agreement: RankVote
    loss_monitor: LossMonitor
    watch: Callable[[TrainingProgress], None]
    lock: BinaryIO | None
    total_steps: int
    step: int = 0
    resumed_from_step: int | None = None
    evaluated_step: int = 0
    saved_step: int = -1
    saved_s: float = field(default_factory=time.monotonic)
    scores: Scores | None = None
    losses: list[float] = field(default_factory=list)
    unreported_images: int = 0
    skipped: int = 0  # images of loaders that are closed
    stop_signal: int = 0  # agreed by all ranks


def save(run: TrainingRun) -> None:
    """Copies the state to the CPU and has it written in the background."""
    import torch

    if run.saved_step == run.step:
        return
    run.saved_step, run.saved_s = run.step, time.monotonic()
    if not run.ranks.main:
        return
    tensors = {f"model.{name}": tensor for name, tensor in run.learner.model.state_dict().items()}
    optimizer = run.learner.optimizer.state_dict()
    for index, entries in optimizer["state"].items():
        tensors |= {f"optimizer.{index}.{key}": value for key, value in entries.items() if torch.is_tensor(value)}
    if run.learner.average is not None:
        tensors |= {f"average.{name}": tensor for name, tensor in run.learner.average.model.state_dict().items()}
    copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
    _refuse_broken(run, copies)
    state = {
        "step": run.step,
        "batch_size": run.options.batch_size,
        "loader": run.loader.state_dict(),
        "scaler": run.learner.scaler_state(),
        "groups": [_numbers(group) for group in optimizer["param_groups"]],  # timm's LAMB counts its steps there
        "evaluated_step": run.evaluated_step,
        "scores": asdict(run.scores) if run.scores else None,
        "identity": identity(run),
        "classes": list(run.loader.dataset.classes),  # for those who read the weights
    }
    run.writer.submit(run.step, copies, state)
    for problem in (run.writer.problem, run.uploads.problem if run.uploads else None):
        if problem is not None:
            run.watch(TrainingProgress(run.step, run.total_steps, 0, 0, None, None, None, remark=f"warning: {problem}"))


def _refuse_broken(run: TrainingRun, copies: Mapping[str, torch.Tensor]) -> None:
    """Weights that are not finite must never take the place of good ones. Raises HeadraceError."""
    for name, _ in run.learner.model.named_parameters():
        if not copies[f"model.{name}"].isfinite().all():
            kept = f"the last good checkpoint is {run.writer.last}" if run.writer.settled() else "nothing was saved before"
            raise HeadraceError(
                f"the weights {name} are not finite after step {run.step}: they are not saved; {kept}",
                hint="lower --learning-rate, use --clip-norm or --precision fp32; then --resume auto",
            )


def identity(run: TrainingRun) -> dict[str, Any]:
    """What must be the same for a resumed run to be the same run."""
    options = run.options
    return {
        "model": options.model,
        "simulated": run.device.simulated,
        "classes": len(run.loader.dataset.classes),
        "image_size": options.image_size,
        "total_steps": run.total_steps,
        "recipe": asdict(options.optimization),
    }


def restore(run: TrainingRun, found: Checkpoint) -> None:
    """Puts a checkpoint into the run. Raises StateError, in words, when it is of another run."""
    import torch

    _check_same_run(found, identity(run))
    tensors, state = found.tensors, found.state
    try:
        run.learner.model.load_state_dict(_below("model.", tensors))
        if run.learner.average is not None:
            run.learner.average.model.load_state_dict(_below("average.", tensors))
    except RuntimeError as error:
        raise StateError(f"{found.path} does not fit the model: {str(error).splitlines()[0]}") from error
    optimizer = run.learner.optimizer.state_dict()
    optimizer["state"] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            optimizer["state"].setdefault(int(index), {})[key] = value
    for group, numbers in zip(optimizer["param_groups"], state["groups"], strict=True):
        group.update({name: torch.tensor(value[0]) if isinstance(value, list) else value for name, value in numbers.items()})
    run.learner.optimizer.load_state_dict(optimizer)
    for parameter, entries in run.learner.optimizer.state.items():
        for key, value in entries.items():
            if torch.is_tensor(value) and value.shape == parameter.shape:
                # In the parameter's own memory layout (channels-last): fused kernels walk both alike.
                entries[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
    run.learner.load_scaler_state(state["scaler"])
    run.loader.load_state_dict(state["loader"])
    run.step = run.resumed_from_step = run.saved_step = state["step"]
    run.evaluated_step = state["evaluated_step"]
    run.scores = Scores(**state["scores"]) if state["scores"] else None
    run.writer.last = found.path


def _numbers(group: Mapping[str, Any]) -> dict[str, float | list[float]]:
    """A parameter group's numbers; one that is a tensor stands in a list."""
    plain: dict[str, float | list[float]] = {
        name: value for name, value in group.items() if isinstance(value, int | float) and name != "lr"
    }
    tensors = {name: value for name, value in group.items() if hasattr(value, "numel") and value.numel() == 1}
    return plain | {name: [value.item()] for name, value in tensors.items()}


def _below(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _check_same_run(found: Checkpoint, expected: Mapping[str, Any]) -> None:
    for name, value in expected.items():
        saved = found.state.get("identity", {}).get(name)
        if saved != value:
            raise StateError(
                f"{found.path} is of another run: its {name.replace('_', ' ')} is {saved!r}, here it is {value!r}",
                hint="resume with the options it was started with, or choose another --out",
            )
