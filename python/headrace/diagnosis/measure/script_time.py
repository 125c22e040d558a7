"""The time between two batches that is not the model's: functions that the script calls beside its training step.

From the first forward pass to the end of the optimizer's step the time is the model's, with the waits in the frame of the loop
itself. Functions of the script and of libraries that the loop calls beside forward, backward and step (a tracker, pictures,
metrics, validation) are the script's, as is work of the loop's own frame after the optimizer's step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.diagnosis.measure.hot_functions import LEAST_SAMPLES, PASSING, is_own, name_of
from headrace.diagnosis.measure.machine import Machine
from headrace.diagnosis.measure.rank import Rank
from headrace.session.model import Session, Stack, StackFrame

__all__ = ["ScriptFunction", "ScriptTime", "measure_script"]

NAMED_SHARE = 0.02
"""Name a function when it takes at least this share of the step."""

MODEL_FILES = (
    "torch/optim/",
    "torch/autograd/",
    "torch/nn/modules/",
    "torch/nn/parallel/",
    "torch/_dynamo/",
    "torch/_inductor/",
)
"""Files of PyTorch whose functions belong to a forward or backward pass, or to the optimizer's step."""

BESIDE_FILES = ("torch/serialization.py", "torch/utils/tensorboard/", "torch/utils/data/")
"""Files of PyTorch whose functions are no computation of the model: saving, logging, other loaders."""

LEAST_ANCESTOR_SHARE = 0.2
"""Take a function for a part of the loop when at least this share of its samples is in a forward pass of the step."""

Key = tuple[str, str]
"""Name and file of a function."""


@dataclass(frozen=True, slots=True)
class ScriptFunction:
    """A function that the training loop calls beside forward, backward and step.

    file, line: the line of the script that leads to it. seconds: mean per step.
    """

    name: str
    file: str
    line: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ScriptTime:
    """The script's part of a step: mean seconds without those of collections and checkpoints, and the functions in it.

    after_s: seconds per step after the optimizer's step; None where no optimizer was seen.
    """

    seconds: float = 0.0
    functions: tuple[ScriptFunction, ...] = ()
    after_s: float | None = None


@dataclass(slots=True)
class _Found:
    name: str
    seconds: float = 0.0
    lines: Counter[tuple[str, int]] = field(default_factory=Counter)


def measure_script(session: Session, rank: Rank, machine: Machine) -> ScriptTime:
    """Return the script's part of a rank's step. Nothing is told of a loop in which no optimizer steps."""
    if rank.after_s is None or not any(step.optimizer_steps for step in rank.steps):
        return ScriptTime()
    stacks = [one for one in session.stacks if one.role == "step" and one.pid == rank.process.pid and one.frames]
    if sum(stack.count for stack in stacks) < LEAST_SAMPLES:
        return ScriptTime(_without_pauses(rank, machine, _busy_after_s(rank)), (), rank.after_s)
    training = _training_functions(session, stacks)
    found: dict[Key, _Found] = {}
    loop = _Found("")
    for stack, seconds in _weighted(stacks, rank):
        at = _script_frame(stack, training)
        if at is not None:
            frame = _named(stack.frames, at)
            _add(found.setdefault((name_of(frame), frame.file), _Found(name_of(frame))), stack, frame, seconds)
        elif stack.after_optimizer and not _is_model(stack.frames[-1]) and not _waits_for_device(stack.frames[-1]):
            _add(loop, stack, stack.frames[-1], seconds)
    named_s = math.fsum(one.seconds for one in found.values())
    loop.seconds = min(loop.seconds, max(0.0, _busy_after_s(rank) - named_s))
    if loop.seconds and loop.lines:
        loop.name = f"line {loop.lines.most_common(1)[0][0][1]} after the optimizer's step"
        found["", ""] = loop
    seconds = _without_pauses(rank, machine, named_s + loop.seconds)
    scale = min(1.0, seconds / (named_s + loop.seconds)) if found else 0.0
    functions = sorted((_function(one, scale) for one in found.values()), key=lambda one: -one.seconds)
    return ScriptTime(seconds, tuple(one for one in functions if one.seconds >= NAMED_SHARE * rank.step_s), rank.after_s)


def _busy_after_s(rank: Rank) -> float:
    """Return the seconds per step that the training thread works after the optimizer's step. Waits for the device are none."""
    return max(0.0, (rank.after_cpu_s or 0.0) - (rank.sync_s or 0.0))


def _without_pauses(rank: Rank, machine: Machine, seconds: float) -> float:
    """Return the seconds of the script without collections and checkpoints, which have causes of their own, and at most
    those in which the device idles."""
    seconds -= rank.pauses.gc_s + rank.pauses.save_s
    if machine.gpu_busy is not None and rank.gpu_step_s is not None:
        seconds = min(seconds, (1 - machine.gpu_busy) * rank.step_s - rank.exposed_wait_s - (rank.h2d_s or 0.0))
    return max(0.0, min(seconds, rank.compute_s - (rank.compute_queue_s or 0.0)))


def _weighted(stacks: Sequence[Stack], rank: Rank) -> Iterable[tuple[Stack, float]]:
    """Yield the stacks with the seconds per step that each stands for, without waits for a core.

    The time before and after the end of the optimizer's step is known, and each stack stands for its part of one of the two.
    """
    after = sum(stack.count for stack in stacks if stack.after_optimizer)
    before = sum(stack.count for stack in stacks) - after
    whole_s = max(0.0, rank.compute_s - rank.pauses.other_loader_s - (rank.compute_queue_s or 0.0))
    after_s = min(whole_s, max(0.0, (rank.after_s or 0.0) - (rank.after_queue_s or 0.0))) if after else 0.0
    for stack in stacks:
        if stack.after_optimizer:
            yield stack, stack.count * after_s / after
        else:
            yield stack, stack.count * (whole_s - after_s) / before


def _training_functions(session: Session, stacks: Sequence[Stack]) -> frozenset[Key]:
    """Return the functions that the training step runs in: those which call the optimizer, backward, or a forward pass."""
    known = session.facts.get("training_path")
    rows = [one for one in known if isinstance(one, list | tuple) and len(one) == 3] if isinstance(known, list | tuple) else []
    path = [StackFrame(str(function), str(file), 0) for function, file, _ in rows]
    certain = {_key(frame) for frame in _before_model(path)}
    inside: Counter[Key] = Counter()
    whole: Counter[Key] = Counter()
    for stack in stacks:
        callers = {_key(frame) for frame in _before_model(stack.frames)}
        is_step = len(callers) < len(stack.frames) and not stack.after_optimizer
        if any(frame.file.startswith("torch/optim/") for frame in stack.frames):
            certain |= callers
        for key in {_key(frame) for frame in stack.frames}:
            whole[key] += stack.count
            inside[key] += stack.count if is_step and key in callers else 0
    return frozenset(certain | {key for key, count in inside.items() if count and count >= LEAST_ANCESTOR_SHARE * whole[key]})


def _before_model(frames: Sequence[StackFrame]) -> Sequence[StackFrame]:
    """Return the callers of the first function that belongs to the model or the optimizer; all frames where none does."""
    return frames[: next((at for at, frame in enumerate(frames) if _is_model(frame)), len(frames))]


def _script_frame(stack: Stack, training: frozenset[Key]) -> int | None:
    """Return the place on a stack of the function that the training loop calls beside the step; None: it is in the step."""
    frames = stack.frames
    model = len(_before_model(frames))
    if model < len(frames) and not stack.after_optimizer:
        return None
    at = 1 + max((at for at, frame in enumerate(frames[:model]) if _key(frame) in training), default=-1)
    while at < len(frames) and frames[at].function.rpartition(".")[2] in PASSING:
        at += 1
    if at == 0 or at >= len(frames):
        return None  # no part of the loop is seen, or the loop itself runs
    if _is_model(frames[at]) or _waits_for_device(frames[-1]):
        return None
    if not frames[at].file.startswith("torch/") or frames[at].file.startswith(BESIDE_FILES):
        return at
    return next((below for below in range(at, model) if is_own(frames[below])), None)  # a decorator of PyTorch calls it


def _is_model(frame: StackFrame) -> bool:
    method = frame.function.rpartition(".")[2]
    return (
        frame.file.startswith(MODEL_FILES)
        or (method == "backward" and frame.file.startswith("torch/"))
        or (method == "forward" and "." in frame.function)
    )


def _waits_for_device(frame: StackFrame) -> bool:
    return frame.file == "torch/_tensor.py" and frame.function in ("Tensor.item", "torch.cuda.synchronize")


def _named(frames: Sequence[StackFrame], at: int) -> StackFrame:
    """Return the function of the script at this place or above it, or else the library's function that the loop calls."""
    return next((frame for frame in frames[at:] if is_own(frame) and frame.function not in PASSING), frames[at])


def _key(frame: StackFrame) -> Key:
    return frame.function, frame.file


def _add(found: _Found, stack: Stack, frame: StackFrame, seconds: float) -> None:
    found.seconds += seconds
    at = stack.frames.index(frame)
    place = next((one for one in reversed(stack.frames[: at + 1]) if is_own(one)), frame)
    found.lines[place.file, place.line] += stack.count


def _function(found: _Found, scale: float) -> ScriptFunction:
    (file, line), _ = found.lines.most_common(1)[0]
    return ScriptFunction(found.name, file, line, scale * found.seconds)
