"""The trainer: one loop over `headrace.Loader`, which can stop and go on at any step and ends with the same bits.

`train(options)` prepares everything first, so that what can fail fails before time is spent, then runs the loop
in `_train`, which is meant to be read. No step waits for the GPU: losses are read at every LOG_STEPS-th step only.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import DecodeError, HeadraceError
from headrace.training import checkpoint
from headrace.training.devices import Device
from headrace.training.distributed.ranks import Ranks, leave, lost_ranks_reported
from headrace.training.evaluation import Scores, evaluate
from headrace.training.options import Options
from headrace.training.prepare import prepare
from headrace.training.state import TrainingProgress, TrainingRun, save
from headrace.training.stop_signal import StopRequest

if TYPE_CHECKING:
    import torch

__all__ = ["Options", "Result", "TrainingProgress", "TrainingStart", "train"]

LOG_STEPS = 20


@dataclass(frozen=True, slots=True)
class TrainingStart:
    """What is known before the first step: the step to go on from (0: the beginning), and which process this is."""

    step: int
    ranks: Ranks


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it. `img_s` (of all ranks) and `wait_share` are of training alone, without warm-up and evaluation."""

    steps: int
    epochs: float
    scores: Scores | None
    img_s: float | None
    wait_share: float | None
    seconds: float
    device: Device
    ranks: Ranks
    checkpoint: Path | str | None  # a URL when the run went on from there and nothing was left to do
    uploaded: str | None  # the newest that is in the object store, read back and compared
    final: Path | None  # None when stopped before the end
    resumed_from_step: int | None
    exit_code: int
    losses: tuple[float, ...]
    skipped: int  # images that could not be decoded, each time another was used instead; of this rank


def train(
    options: Options,
    *,
    watch: Callable[[TrainingProgress], None] = lambda progress: None,
    begin: Callable[[TrainingStart], None] = lambda start: None,
) -> Result:
    """Trains to the end, or to a request to stop (then the exit code is 128 + the signal's number, and resuming goes on).

    `watch` is told how it goes; `begin` is called once on every rank when all is prepared, before the first step.
    """
    import torch

    started_s = time.monotonic()
    try:
        run = prepare(options, watch)
    except BaseException:
        leave()
        raise
    try:
        with StopRequest() as stop, lost_ranks_reported(run.ranks):
            begin(TrainingStart(run.step, run.ranks))
            _train(run, stop)
            # Still within: a second SIGTERM must not end the process while the last checkpoint is on its way.
            _save(run)
            run.writer.close()
            finished = run.step == run.total_steps
            final = _save_final(run) if finished and run.ranks.main else None
            if run.uploads is not None:
                run.uploads.close()  # last: what is on this disk is whole, whatever the store does
    except DecodeError:
        if run.ranks.world_size == 1 and run.step % options.optimization.accumulate == 0:
            _save(run)  # one bad image is no reason to lose the steps before it
        raise
    except torch.OutOfMemoryError as error:
        what = f"a batch of {options.batch_size} does not fit into the memory of {run.device.name} at step {run.step + 1}"
        raise HeadraceError(what, hint="--batch-size auto finds one that does; or --accumulate, --precision bf16") from error
    finally:
        run.writer.wait()
        if run.uploads is not None:
            run.uploads.wait()
        run.loader.close()
        run.metrics.close()
        if run.val_loader is not None:
            run.val_loader.close()
        if run.lock is not None:
            run.lock.close()
        leave()
    img_s, wait_share = run.pace.read()
    return Result(
        steps=run.step,
        epochs=run.step / len(run.loader),
        scores=run.scores,
        img_s=None if img_s is None else img_s * run.ranks.world_size,
        wait_share=wait_share,
        seconds=time.monotonic() - started_s,
        device=run.device,
        ranks=run.ranks,
        checkpoint=run.writer.last,
        uploaded=None if run.uploads is None else run.uploads.last,
        final=final,
        resumed_from_step=run.resumed_from_step,
        exit_code=0 if finished else 128 + run.stop_signal,
        losses=tuple(run.losses),
        skipped=run.skipped + run.loader.stats().skipped_count,
    )


def _train(run: TrainingRun, stop: StopRequest) -> None:
    """The loop. Every pass of the outer loop is an epoch, or what is left of one."""
    while run.step < run.total_steps and not run.stop_signal:
        _evaluate_if_due(run, stop)
        _resize_if_due(run)
        for images, labels in _timed(run):
            loss = run.learner.learn(run.step, images, labels)
            run.loader.top_up()
            run.step += 1
            run.loss_monitor.add(run.step, loss)
            run.pace.end(len(labels))
            run.unreported_images += len(labels) * run.ranks.world_size
            last = run.step == run.total_steps
            if run.step % LOG_STEPS == 0 or last:
                _report(run)
            stop_signal, save_now = run.agreement.vote(stop.number, _checkpoint_overdue(run))
            if last or run.step % run.options.optimization.accumulate == 0:  # between two updates there are gradients to lose
                run.stop_signal = stop_signal
                if save_now or _is_multiple(run.step, run.options.checkpoint_steps):
                    _save(run)
            if last or run.stop_signal:
                break
    run.agreement.close()
    _evaluate_if_due(run, stop)


def _resize_if_due(run: TrainingRun) -> None:
    """Progressive resizing: an epoch whose images have another size gets a loader of its own."""
    epoch = run.step // len(run.loader)
    size = run.feed.size(epoch)
    if size != run.image_size:
        run.skipped += run.loader.stats().skipped_count
        run.loader.close()
        run.loader, run.image_size = run.feed.loader(epoch), size


def _timed(run: TrainingRun) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The loader's batches, on the device, with the clock told when they are asked for and when they arrive."""
    batches = iter(run.loader)
    run.pace.ask()
    for images, labels in batches:
        run.pace.begin()
        if _another_epoch_follows(run):
            run.loader.begin_next()
        yield images, labels
        run.pace.ask()


def _another_epoch_follows(run: TrainingRun) -> bool:
    """Whether this is the last step of an epoch, after which the same loader goes on."""
    step = run.step + 1
    if step % len(run.loader) or step >= run.total_steps or run.stop_signal:
        return False
    return run.feed.size(step // len(run.loader)) == run.image_size


def _save(run: TrainingRun) -> None:
    """A checkpoint, unless a loss says that it would be of no use."""
    run.loss_monitor.read(run.loader, saved=run.writer.settled)
    save(run)


def _report(run: TrainingRun) -> None:
    """Reads the losses (where the loop waits for the device), writes a line of metrics, tells the watcher."""
    value = run.loss_monitor.read(run.loader, saved=run.writer.settled)
    epoch = (run.step - 1) // len(run.loader)
    if value is not None:
        run.losses.append(value)
    img_s, wait_share = run.pace.read()
    if not run.ranks.main:
        return
    img_s = None if img_s is None else img_s * run.ranks.world_size
    rate = run.learner.learning_rate(run.step - 1)
    run.metrics.write(step=run.step, epoch=epoch, loss=value, learning_rate=rate, img_s=img_s, wait_share=wait_share,
                      image_size=run.image_size)  # fmt: skip
    if run.metrics.problem is not None:
        run.watch(
            TrainingProgress(run.step, run.total_steps, epoch, 0, None, None, None, remark=f"warning: {run.metrics.problem}")
        )
    images, run.unreported_images = run.unreported_images, 0
    run.watch(TrainingProgress(run.step, run.total_steps, epoch, images, value, img_s, wait_share, run.scores))


def _evaluate_if_due(run: TrainingRun, stop: StopRequest) -> None:
    """After each epoch and at the end; a run that was stopped before it evaluates when it goes on."""
    whole_epochs = run.step % len(run.loader) == 0 or run.step == run.total_steps
    if run.val_loader is None or not whole_epochs or run.evaluated_step == run.step or run.stop_signal:
        return
    run.pace.pause()
    scores = evaluate(
        run.learner.judged,
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
    if not run.ranks.main:
        return
    epoch = (run.step - 1) // len(run.loader)
    run.metrics.write(step=run.step, epoch=epoch, evaluation=asdict(run.scores))
    run.watch(TrainingProgress(run.step, run.total_steps, epoch, 0, None, *run.pace.read(), run.scores))


def _is_multiple(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def _checkpoint_overdue(run: TrainingRun) -> bool:
    """By the main process's clock: the others follow its vote."""
    minutes = run.options.checkpoint_minutes
    return run.ranks.main and minutes is not None and time.monotonic() - run.saved_s >= 60 * minutes


def _save_final(run: TrainingRun) -> Path:
    path = Path(run.options.out) / "final.safetensors"
    weights = {name: tensor.detach().to("cpu", copy=True) for name, tensor in run.learner.judged.state_dict().items()}
    facts = {
        "model": run.options.model,
        "simulated": run.device.simulated,  # then these are a stand-in's weights, not the model's
        "image_size": run.options.image_size,
        "test_size": run.options.optimization.test_size(run.options.image_size),
        "flip_test": run.options.optimization.flip_test,
        "blurpool": run.options.optimization.blurpool,
        "classes": list(run.loader.dataset.classes),
        "steps": run.step,
    }
    checkpoint.save_weights(path, weights, facts)
    return path
