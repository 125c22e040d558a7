"""The training loop, written to be read from top to bottom.

`train` prepares a run, trains it, and returns a `Result`. A run can stop after any step and continue later; on the CPU with
`deterministic` it then ends with the same bits. No step waits for the GPU: losses are read after the first step, and every
LOG_STEPS steps.

- Before the first step: `prepare.py`. Everything that can fail for a wrong option fails there.
- One step (gradients, update of the weights): `Learner.train_step` in `learner.py`.
- Where a resumed run continues: `resume.py`. What a checkpoint holds: `state.py`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import DecodeError, HeadraceError
from headrace.training.distributed.devices import Device
from headrace.training.distributed.ranks import Ranks, leave_group, lost_ranks_reported
from headrace.training.prepare import prepare
from headrace.training.settings.options import Options
from headrace.training.state import TrainingProgress, TrainingRun, save
from headrace.training.stop_signal import StopRequest
from headrace.training.weights import checkpoint
from headrace.training.weights.evaluation import Scores, evaluate

if TYPE_CHECKING:
    import torch

__all__ = ["Options", "Result", "TrainingProgress", "TrainingStart", "train"]

LOG_STEPS = 20  # steps between two lines of metrics
PROGRESS_S = 1.0  # report progress at least this often, in seconds, even if a step takes longer than usual


@dataclass(frozen=True, slots=True)
class TrainingStart:
    """Facts before the first step: the step to continue from (0: a new run), and the rank of this process."""

    step: int
    ranks: Ranks


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a run. `img_s` (all ranks) and `wait_share` cover training steps only, without warm-up and evaluation."""

    steps: int
    epochs: float
    scores: Scores | None
    img_s: float | None
    wait_share: float | None
    seconds: float
    device: Device
    ranks: Ranks
    checkpoint: Path | str | None  # newest checkpoint; a URL if the run resumed from there and had nothing left to do
    uploaded: str | None  # URL of the newest checkpoint in the object store that was read back and compared
    final: Path | None  # file of the final weights; None if the run was stopped before its end
    resumed_from_step: int | None
    exit_code: int
    losses: tuple[float, ...]
    skipped: int  # how often this rank replaced an image that could not be decoded


def train(
    options: Options,
    *,
    on_progress: Callable[[TrainingProgress], None] = lambda progress: None,
    on_start: Callable[[TrainingStart], None] = lambda start: None,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Result:
    """Train until the last step, or until a signal asks to stop; the exit code is then 128 + the signal's number.

    `on_progress` receives progress and messages. `on_start` is called on every rank, once, before the first step. `on_phase`
    receives what begins instead of a step: "first step", "evaluating", "saving".
    Raises HeadraceError and its subclasses; those for wrong options before any step.

        result = train(Options(model="resnet18", data="/data/pets", out="runs/pets", epochs=5))
    """
    import torch

    started_s = time.monotonic()
    try:
        run = prepare(options, on_progress)
    except BaseException:
        leave_group()
        raise
    try:
        # The last checkpoint is written inside this block: a second SIGTERM must not end the process before it is whole.
        with StopRequest() as stop, lost_ranks_reported(run.ranks):
            on_start(TrainingStart(run.step, run.ranks))
            on_phase("first step")
            _train_remaining_steps(run, stop, on_phase)
            if run.stop_signal and run.ranks.main:
                name = signal.Signals(run.stop_signal).name
                run.metrics.write(step=run.step, interrupted_by=name, total_steps=run.total_steps)
            on_phase("saving")
            final = _save_last(run)
    except DecodeError:
        if run.ranks.world_size == 1 and run.step % options.optimization.accumulate == 0:
            _save(run)  # keep the steps before the image that cannot be decoded
        raise
    except torch.OutOfMemoryError as error:
        what = f"a batch of {options.batch_size} does not fit into the memory of {run.device.name} at step {run.step + 1}"
        raise HeadraceError(what, hint="--batch-size auto finds one that does; or --accumulate, --precision bf16") from error
    finally:
        run.close()
        leave_group()
    return _result(run, final, time.monotonic() - started_s)


def _train_remaining_steps(run: TrainingRun, stop: StopRequest, on_phase: Callable[[str], None]) -> None:
    """Train until the run is finished or stopped. Each pass of the outer loop is one epoch, or its rest after a resume."""
    while not run.finished and not run.stop_signal:
        _evaluate_if_due(run, stop, on_phase)  # the last run was stopped after an epoch, before its evaluation
        _change_image_size_if_due(run)
        for images, labels in _timed_batches(run):
            loss = run.learner.train_step(run.step, images, labels)
            run.loader.top_up()
            run.step += 1
            run.loss_monitor.add(run.step, loss)
            run.timer.end_step(len(labels))
            run.unreported_images += len(labels) * run.ranks.world_size
            if run.step == 1 or run.step % LOG_STEPS == 0 or run.finished:
                _report(run)
            elif run.ranks.main and time.monotonic() - run.reported_s >= PROGRESS_S:
                _report_steps(run)
            stop_signal, save_now = run.vote.cast(stop.number, _checkpoint_overdue(run))
            if run.finished or run.step % run.options.optimization.accumulate == 0:  # else accumulated gradients would be lost
                run.stop_signal = stop_signal
                if save_now or _is_multiple(run.step, run.options.checkpoint_steps):
                    _save(run)
            if run.finished or run.stop_signal:
                break
    run.vote.close()
    if run.stop_signal and run.step != 1 and run.step % LOG_STEPS and not run.finished:
        _report(run)  # the last step, before the checkpoint is saved
    _evaluate_if_due(run, stop, on_phase)


def _change_image_size_if_due(run: TrainingRun) -> None:
    """Open another loader if the images of this epoch have another size (progressive resizing)."""
    epoch = run.step // len(run.loader)
    size = run.input.size(epoch)
    if size != run.image_size:
        run.skipped += run.loader.stats().skipped_count
        run.loader.close()
        run.loader, run.image_size = run.input.loader(epoch), size


def _timed_batches(run: TrainingRun) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the loader's batches, on the device; tell the timer when each one is requested and when it arrives."""
    batches = iter(run.loader)
    run.timer.request_batch()
    for images, labels in batches:
        run.timer.begin_step()
        if _loader_continues_after_this_step(run):
            run.loader.begin_next()
        yield images, labels
        run.timer.request_batch()


def _loader_continues_after_this_step(run: TrainingRun) -> bool:
    """Return whether the step about to begin is the last of an epoch, and the next epoch uses the same loader."""
    step = run.step + 1
    if step % len(run.loader) or step >= run.total_steps or run.stop_signal:
        return False
    return run.input.size(step // len(run.loader)) == run.image_size


def _save(run: TrainingRun) -> None:
    """Save a checkpoint. Raise HeadraceError instead if a loss was not finite."""
    run.loss_monitor.read(run.loader, saved=run.writer.settled)
    save(run)


def _report(run: TrainingRun) -> None:
    """Read the losses, which waits for the device; write a line of metrics; report progress."""
    loss = run.loss_monitor.read(run.loader, saved=run.writer.settled)
    if loss is not None:
        run.losses.append(loss)
    img_s, wait_share = run.rates()  # on every rank: this also releases the timer's CUDA events
    if not run.ranks.main:
        return
    learning_rate = run.learner.learning_rate(run.step - 1)
    highest = run.learner.highest_learning_rate(range(max(0, run.step - LOG_STEPS), run.step))
    run.metrics.write(step=run.step, epoch=run.epoch, loss=loss, learning_rate=learning_rate, highest_learning_rate=highest,
                      img_s=img_s, wait_share=wait_share, image_size=run.image_size)  # fmt: skip
    if run.metrics.problem is not None:
        run.warn(run.metrics.problem)
    _report_steps(run)


def _report_steps(run: TrainingRun) -> None:
    """Report the steps that are done, with the loss that was read last; the device is not waited for."""
    images, run.unreported_images = run.unreported_images, 0
    run.report_progress(images=images, loss=run.losses[-1] if run.losses else None)


def _evaluate_if_due(run: TrainingRun, stop: StopRequest, on_phase: Callable[[str], None]) -> None:
    """Evaluate after each epoch and at the end, unless a signal asks to stop: then the resumed run does it."""
    is_epoch_end = run.step % len(run.loader) == 0 or run.finished
    if run.val_loader is None or not is_epoch_end or run.evaluated_step == run.step or run.stop_signal:
        return
    run.timer.pause()
    on_phase("evaluating")
    loss = run.loss_monitor.read(run.loader, saved=run.writer.settled)  # the evaluation waits for the device as well
    scores = evaluate(
        run.learner.evaluated_model,
        run.val_loader,
        device=run.device.torch_name,
        autocast=run.learner.autocast,
        flip=run.options.optimization.flip_test,
        stopped=lambda: stop.signal is not None,
    )
    if scores is None:
        run.stop_signal = run.stop_signal or stop.number or signal.SIGTERM
        return
    run.scores, run.evaluated_step = scores, run.step
    if run.ranks.main:
        run.metrics.write(step=run.step, epoch=run.epoch, evaluation=asdict(scores), training_loss=loss)
        run.report_progress()


def _is_multiple(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def _checkpoint_overdue(run: TrainingRun) -> bool:
    """Return whether --checkpoint-minutes have passed, by the clock of rank 0; the vote passes it on to the other ranks."""
    minutes = run.options.checkpoint_minutes
    return run.ranks.main and minutes is not None and time.monotonic() - run.saved_s >= 60 * minutes


def _save_last(run: TrainingRun) -> Path | None:
    """Save the last checkpoint and, if the run is finished, the final weights; return their path on rank 0.

    The object store comes last: whatever happens there, the files on this disk are whole.
    """
    _save(run)
    run.writer.close()
    final = _save_final_weights(run) if run.finished and run.ranks.main else None
    if run.uploads is not None:
        run.uploads.close()
    return final


def _save_final_weights(run: TrainingRun) -> Path:
    path = Path(run.options.out) / "final.safetensors"
    weights = {name: tensor.detach().to("cpu", copy=True) for name, tensor in run.learner.evaluated_model.state_dict().items()}
    facts = {
        "model": run.options.model,
        "simulated": run.device.simulated,  # then the weights are those of a stand-in, not of the model
        "image_size": run.options.image_size,
        "test_size": run.options.optimization.test_size(run.options.image_size),
        "flip_test": run.options.optimization.flip_test,
        "blurpool": run.options.optimization.blurpool,
        "classes": list(run.loader.dataset.classes),
        "steps": run.step,
        "trained_side": run.trained_side,
    }
    checkpoint.save_weights(path, weights, facts)
    return path


def _result(run: TrainingRun, final: Path | None, seconds: float) -> Result:
    img_s, wait_share = run.rates()
    return Result(
        steps=run.step,
        epochs=run.step / len(run.loader),
        scores=run.scores,
        img_s=img_s,
        wait_share=wait_share,
        seconds=seconds,
        device=run.device,
        ranks=run.ranks,
        checkpoint=run.writer.last,
        uploaded=None if run.uploads is None else run.uploads.last,
        final=final,
        resumed_from_step=run.resumed_from_step,
        exit_code=0 if run.finished else 128 + run.stop_signal,
        losses=tuple(run.losses),
        skipped=run.skipped + run.loader.stats().skipped_count,
    )
