"""List what could not be measured in a session, with the reasons."""

from __future__ import annotations

import math

from headrace.attach.record.load_hooks import HOOK_FAILED
from headrace.diagnosis.measure.enough_steps import SETTLED_STEPS, TIMED_STEPS, steps_words
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.script_time import is_use_unknown
from headrace.diagnosis.result.model import End
from headrace.session.model import Session

__all__ = ["missing_sources", "why_no_steps"]


def missing_sources(job: MeasuredJob) -> tuple[str, ...]:
    """Return the sources that were missing, and the quantities that were therefore not measured, each with the reason."""
    missing = [f"{item.what}: {item.why}" for item in job.session.not_measured]
    rank = job.rank
    if rank.batch_cost is None:
        unknown = {
            "none": "no loader that headrace knows makes them",
            "tensorflow": "TensorFlow's threads make them ahead",
        }.get(rank.loader.family, "no worker of this loader reported")
        missing.append(f"the making of batches: {unknown}")
    elif rank.loader.family == "tensorflow":
        how = "counted as blocked" if rank.batch_cost.queue_s is None else "estimated from all threads of the job"
        missing.append(f"CPU queueing while batches are made: TensorFlow's threads make them; the time is {how}")
    elif rank.batch_cost.queue_s is None:
        missing.append("CPU queueing in the workers: the kernel keeps no scheduler statistics")
    steps = (job.session.facts.get("tensorflow") or {}).get("steps_per_execution") or 1
    if steps > 1:
        missing.append(
            f"the gain of steps_per_execution={steps}: Keras runs one step at a time while headrace times its batches"
        )
    if rank.after_s is not None and is_use_unknown(job.session, rank, job.machine):
        missing.append("the script's own functions: how busy the device is meanwhile is not known")
    if job.machine.gpu_busy is not None and rank.gpu_step_s is None:
        missing.append("times on the GPU's clock: no CUDA work was seen in the training process")
    if rank.loader.take_over == "unknown":
        missing.append(f"whether headrace run takes the loader over: {rank.loader.take_over_reason}")
    if rank.elsewhere:
        missing.append(
            "how long training waits: the loader is iterated by another thread than the training thread; its waits are shown"
        )
    if rank.items is None:
        missing.append("images per batch: the batch has no tensor to count")
    if not job.session.samples:
        missing.append("the machine (cores, memory, GPU): no samples")
    return tuple(dict.fromkeys(missing))


def why_no_steps(session: Session, end: End | None) -> str:
    """Return why a session holds too few steps, and what to do. `end`: how the command ended."""
    if session.steps:
        were = "was" if len(session.steps) == 1 else "were"
        timed = f"{steps_words(session.steps)} {were} timed"
        if end is not None and end.is_failure:
            return f"{timed} before the command ended: too few to say what sets their pace"
        more = "more epochs or images, or a smaller batch for this run"
        return (
            f"{timed}; {TIMED_STEPS} steps of one loader give a provisional verdict, {SETTLED_STEPS} after the start a settled "
            f"one: {f'the command ended by itself, so give it {more}' if end is not None and end.kind == 'finished' else ''}"
            f"{f'let the command run longer ({more})' if end is None or end.kind != 'finished' else ''}"
        )
    failed = [item.why for item in session.not_measured if item.what == HOOK_FAILED]
    if failed:
        return f"a hook of headrace failed, so no step was timed ({failed[0]}): please report it, with the type of the loader"
    limit_s = session.facts.get("time_limit_s")
    if limit_s:
        rest = "" if session.loaders else ", or the command uses no PyTorch DataLoader and no tf.data pipeline"
        return (
            f"no step was timed in the {limit_s:g} s until --seconds ended the command: starting and the first batch took "
            f"longer{rest}; give it more time, for example --seconds {max(60, 4 * math.ceil(limit_s))}"
        )
    if end is not None and end.is_failure:
        return f"no step was timed: {end.text}"
    if session.loaders and all(loader.family == "tensorflow" for loader in session.loaders):
        return (
            "a tf.data pipeline was iterated, but no batch of it reached Python: a loop inside a tf.function is not timed. For "
            "this run, take the loop out of it: for batch in dataset: train_step(batch), with @tf.function on train_step alone"
        )
    if session.loaders:
        return "a DataLoader was made but gave no step; look at the command's own output for an error before training"
    if session.processes:
        return "PyTorch ran, but no DataLoader was iterated; only torch.utils.data loaders are timed"
    return (
        "no PyTorch DataLoader was seen, and no tf.data pipeline that Python iterates: the command does not use one, or "
        "starts Python with -I, -E or -S, or in a container of its own; put `headrace diagnose --` in front of the training "
        "command itself"
    )
