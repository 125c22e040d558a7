"""The state of a training run: what it holds in memory, how it is saved to a checkpoint and restored from one.

`TrainingRun` is everything the loop holds. `save` copies the part that a resumed run needs into a checkpoint; `restore` puts
it back. Where in the data a resumed run continues: `resume.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from headrace.errors import HeadraceError, StateError
from headrace.loading.loader import Loader
from headrace.system.text.foreign_errors import first_line
from headrace.training.distributed.devices import Device
from headrace.training.distributed.ranks import Ranks, RankVote
from headrace.training.inputs.input import TrainingInput
from headrace.training.learning.learner import Learner
from headrace.training.learning.nonfinite_loss import LossMonitor
from headrace.training.logs.metrics import Metrics
from headrace.training.logs.step_timer import StepTimer
from headrace.training.settings.options import Options
from headrace.training.weights.checkpoint import Checkpoint, Writer
from headrace.training.weights.evaluation import Scores
from headrace.training.weights.resume import is_continued_by
from headrace.training.weights.saved_state import read_saved_state
from headrace.training.weights.uploads import Uploads

if TYPE_CHECKING:
    import torch

__all__ = ["TrainingProgress", "TrainingRun", "restore", "save"]


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """One report of a run while it trains. If `remark` is set, only the remark and the step are meant.

    `img_s` covers all ranks. `wait_share` near 0: input keeps up; near 1: the device mostly waits.
    """

    step: int
    total_steps: int
    epoch: int
    images: int  # images trained since the last report
    loss: float | None
    img_s: float | None
    wait_share: float | None
    scores: Scores | None = None
    remark: str | None = None


@dataclass(slots=True)
class TrainingRun:
    """Everything that the training loop works with. A step is one batch; step: number of steps that are done."""

    options: Options
    ranks: Ranks
    device: Device
    learner: Learner
    loader: Loader
    input: TrainingInput
    image_size: int  # side of the images of `loader`, in pixels
    val_loader: Loader | None
    writer: Writer
    uploads: Uploads | None
    metrics: Metrics
    timer: StepTimer
    vote: RankVote
    loss_monitor: LossMonitor
    on_progress: Callable[[TrainingProgress], None]
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
    reported_s: float = field(default_factory=time.monotonic)
    skipped: int = 0  # images replaced by loaders that are closed by now, because they could not be decoded
    trained_side: int | None = None  # median of the shorter sides of the training images, in pixels
    stop_signal: int = 0  # number of the signal for which all ranks agreed to stop; 0: train on

    @property
    def finished(self) -> bool:
        """Whether all steps of the run are done."""
        return self.step == self.total_steps

    @property
    def epoch(self) -> int:
        """The epoch of the latest finished step, counted from 0."""
        return (self.step - 1) // len(self.loader)

    def rates(self) -> tuple[float | None, float | None]:
        """Return the images a second of all ranks, and the wait share; None before the first measurement."""
        img_s, wait_share = self.timer.rates()
        return None if img_s is None else img_s * self.ranks.world_size, wait_share

    def report_progress(self, *, images: int = 0, loss: float | None = None) -> None:
        """Call `on_progress` with rates, scores and `loss`. images: trained since the last call."""
        self.reported_s = time.monotonic()
        self.on_progress(TrainingProgress(self.step, self.total_steps, self.epoch, images, loss, *self.rates(), self.scores))

    def warn(self, message: str) -> None:
        """Report a problem that does not end the run."""
        remark = f"warning: {message}"
        self.on_progress(TrainingProgress(self.step, self.total_steps, self.epoch, 0, None, None, None, remark=remark))

    def close(self) -> None:
        """Wait for background writes, then close loaders, files and the lock of the output folder."""
        self.writer.wait()
        if self.uploads is not None:
            self.uploads.wait()
        self.loader.close()
        self.metrics.close()
        if self.val_loader is not None:
            self.val_loader.close()
        if self.lock is not None:
            self.lock.close()


def save(run: TrainingRun) -> None:
    """Save a checkpoint: copy the state to the CPU, and write it in the background. Does nothing if this step is saved.

    Raises HeadraceError if weights are not finite.
    """
    if run.saved_step == run.step:
        return
    run.saved_step, run.saved_s = run.step, time.monotonic()
    if not run.ranks.main:
        return
    tensors, groups = _tensors_and_groups(run.learner)
    copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
    _check_finite(run, copies)
    state = {
        "step": run.step,
        "batch_size": run.options.batch_size,
        "loader": run.loader.state_dict(),
        "scaler": run.learner.scaler_state(),
        "groups": groups,
        "evaluated_step": run.evaluated_step,
        "scores": asdict(run.scores) if run.scores else None,
        "identity": _identity(run),
        "finished_epochs": run.options.epochs if run.finished and run.options.steps is None else None,
        "classes": list(run.loader.dataset.classes),  # for programs that read the weights
        "trained_side": run.trained_side,
    }
    run.writer.wait()  # else the next checkpoint could fail first, and the problem of this one would be lost
    for problem in (run.writer.problem, run.uploads.problem if run.uploads else None):
        if problem is not None:
            run.warn(str(problem))
    run.writer.submit(run.step, copies, state)


def restore(run: TrainingRun, found: Checkpoint) -> None:
    """Put a checkpoint into the run: weights, optimizer, loader position, step. Raises StateError if it is of another run."""
    continued = is_continued_by(found, run.options)
    _check_same_run(found, _identity(run), but="total_steps" if continued else None)
    tensors, state = found.tensors, read_saved_state(found)
    try:
        run.learner.model.load_state_dict(_below("model.", tensors))
        if run.learner.average is not None:
            run.learner.average.model.load_state_dict(_below("average.", tensors))
    except RuntimeError as error:
        raise StateError(f"{found.path} does not fit the model: {first_line(error)}") from error
    try:
        _restore_optimizer(run.learner.optimizer, tensors, state.groups)
        run.learner.load_scaler_state(state.scaler)
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise StateError(f"{found.path} does not fit the optimizer: {first_line(error)}") from error
    # With more epochs the images of an epoch may have another size, and the transform another hash.
    run.loader.load_state_dict(state.loader | ({"transform": run.loader.state_dict()["transform"]} if continued else {}))
    run.step = run.resumed_from_step = run.saved_step = state.step
    run.evaluated_step = state.evaluated_step
    run.scores = state.scores
    run.writer.last = found.path


def _tensors_and_groups(learner: Learner) -> tuple[dict[str, torch.Tensor], list[dict[str, float | list[float]]]]:
    """Return the tensors to save, by name, and the numbers of the optimizer's parameter groups."""
    import torch

    tensors = {f"model.{name}": tensor for name, tensor in learner.model.state_dict().items()}
    optimizer = learner.optimizer.state_dict()
    for index, entries in optimizer["state"].items():
        tensors |= {f"optimizer.{index}.{key}": value for key, value in entries.items() if torch.is_tensor(value)}
    if learner.average is not None:
        tensors |= {f"average.{name}": tensor for name, tensor in learner.average.model.state_dict().items()}
    return tensors, [_numbers(group) for group in optimizer["param_groups"]]


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor], groups: Any) -> None:
    import torch

    state = optimizer.state_dict()
    state["state"] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state["state"].setdefault(int(index), {})[key] = value
    for group, numbers in zip(state["param_groups"], groups, strict=True):
        known = {name: value for name, value in numbers.items() if name != "params"}  # LAMB adds a "step"
        group.update({name: torch.tensor(value[0]) if isinstance(value, list) else value for name, value in known.items()})
    optimizer.load_state_dict(state)
    for parameter, entries in optimizer.state.items():
        for key, value in entries.items():
            if torch.is_tensor(value) and value.shape == parameter.shape:
                # Use the parameter's memory layout (channels-last): fused kernels walk both in the same order.
                entries[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _numbers(group: Mapping[str, Any]) -> dict[str, float | list[float]]:
    """Return the numbers of a parameter group, without the learning rate. A tensor (timm's LAMB counts steps) is a list."""
    plain: dict[str, float | list[float]] = {
        name: value for name, value in group.items() if isinstance(value, int | float) and name != "lr"
    }
    tensors = {name: value for name, value in group.items() if hasattr(value, "numel") and value.numel() == 1}
    return plain | {name: [value.item()] for name, value in tensors.items()}


def _check_finite(run: TrainingRun, copies: Mapping[str, torch.Tensor]) -> None:
    """Raise HeadraceError if weights are not finite: they must never replace good ones."""
    for name, _ in run.learner.model.named_parameters():
        if not copies[f"model.{name}"].isfinite().all():
            kept = f"the last good checkpoint is {run.writer.last}" if run.writer.settled() else "nothing was saved before"
            raise HeadraceError(
                f"the weights {name} are not finite after step {run.step}: they are not saved; {kept}",
                hint="lower --learning-rate, use --clip-norm or --precision fp32; then --resume auto",
            )


def _identity(run: TrainingRun) -> dict[str, Any]:
    """Return the settings that a resumed run must share with its checkpoint. The keys are part of the checkpoint format."""
    options = run.options
    return {
        "model": options.model,
        "simulated": run.device.simulated,
        "classes": len(run.loader.dataset.classes),
        "image_size": options.image_size,
        "total_steps": run.total_steps,
        "recipe": asdict(options.optimization),
    }


def _check_same_run(found: Checkpoint, expected: Mapping[str, Any], *, but: str | None) -> None:
    """Raise StateError for another value of a setting. but: the setting that may differ."""
    for name, value in expected.items():
        identity = found.state.get("identity")
        saved = identity.get(name) if isinstance(identity, dict) else None
        if saved != value and name != but:
            more = "; more --epochs may follow when the run has finished" if name == "total_steps" else ""
            raise StateError(
                f"{found.path} is of another run: its {name.replace('_', ' ')} is {saved!r}, here it is {value!r}",
                hint=f"resume with the options it was started with, or choose another --out{more}",
            )


def _below(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
