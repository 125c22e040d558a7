"""The time between two batches that is not the model's: functions that the script calls beside its training step.

From the first forward pass to the end of the optimizer's step the time is the model's, with the waits in the frame of the loop
itself. Functions of the script and of libraries that the loop calls beside forward, backward and step (a tracker, pictures,
metrics, validation) are the script's, as is work of the loop's own frame after the optimizer's step. A function before that
step may be a loss, so nothing is said of its use.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.diagnosis.measure.hot_functions import LEAST_SAMPLES, PASSING, name_of
from headrace.diagnosis.measure.machine import Machine
from headrace.diagnosis.measure.rank import Rank
from headrace.diagnosis.measure.stats import median
from headrace.session.model import Session
from headrace.session.stacks import Stack, StackFrame

__all__ = ["ScriptFunction", "ScriptTime", "is_use_unknown", "measure_script"]

NAMED_SHARE = 0.02
"""Name a function when it takes at least this share of the step."""

OPTIMIZERS = "torch/optim/"

MODEL_FILES = (
    OPTIMIZERS,
    "torch/autograd/",
    "torch/nn/modules/",
    "torch/nn/parallel/",
    "torch/_dynamo/",
    "torch/_inductor/",
)
"""Files of PyTorch whose functions belong to a forward or backward pass, or to the optimizer's step."""

BESIDE_FILES = ("torch/serialization.py", "torch/utils/tensorboard/", "torch/utils/data/")
"""Files of PyTorch whose functions are no computation of the model: saving, logging, other loaders."""

TRAINING_LIBRARIES = (
    "accelerate/", "apex/", "bitsandbytes/", "colossalai/", "deepspeed/", "fairscale/", "horovod/", "timm/", "torch_xla/",
)  # fmt: skip
"""Libraries whose functions, called by the training loop, are parts of the training: exchanges, clipping, averaged weights."""

LEAST_ANCESTOR_SHARE = 0.2
"""Take a function for a part of the loop when at least this share of its samples is in a forward pass of the step."""

Key = tuple[str, str]
"""Name and file of a function."""


@dataclass(frozen=True, slots=True)
class ScriptFunction:
    """A function that the training loop calls beside forward, backward and step.

    file, line: the line of the script that leads to it. seconds: mean per step. after: whether most of them pass after the
    optimizer's step; before it, the function may be a loss.
    """

    name: str
    file: str
    line: int
    seconds: float
    after: bool


@dataclass(frozen=True, slots=True)
class ScriptTime:
    """The script's part of a step: mean seconds without those of collections and checkpoints, and the functions in it.

    after_s: seconds per step after the optimizer's step; None where no optimizer was seen.
    uneven_s: the part of `seconds` that may lie in single long steps, rather than in each step.
    is_before: whether most of `seconds`, or the longest function, pass before the optimizer's step, where a loss has its place.
    """

    seconds: float = 0.0
    functions: tuple[ScriptFunction, ...] = ()
    after_s: float | None = None
    uneven_s: float = 0.0
    is_before: bool = False


@dataclass(slots=True)
class _Found:
    name: str
    before_s: float = 0.0
    after_s: float = 0.0
    lines: Counter[tuple[str, int]] = field(default_factory=Counter)


def measure_script(session: Session, rank: Rank, machine: Machine) -> ScriptTime:
    """Return the script's part of a rank's step. Nothing is told of a loop in which no optimizer steps, nor of a device whose
    use is not known: what waits for it looks like work of the script."""
    if rank.after_s is None or not any(step.optimizer_steps for step in rank.steps) or is_use_unknown(session, rank, machine):
        return ScriptTime()
    stacks = [one for one in session.stacks if one.role == "step" and one.pid == rank.process.pid and one.frames]
    if sum(stack.count for stack in stacks) < LEAST_SAMPLES:
        paused_s = rank.pauses.gc_after_s + rank.pauses.save_after_s
        seconds = _bounded(session, rank, machine, _busy_after_s(rank) - paused_s)
        return ScriptTime(seconds, (), rank.after_s, min(seconds, _uneven_after_s(rank)))
    found = _functions(session, stacks, rank)
    before_s, after_s = (math.fsum(one.before_s for one in found), math.fsum(one.after_s for one in found))
    seconds = _bounded(session, rank, machine, before_s + after_s)
    scale = seconds / (before_s + after_s) if before_s + after_s else 0.0
    functions = sorted((_function(one, scale) for one in found if one.lines), key=lambda one: -one.seconds)
    return ScriptTime(
        seconds,
        tuple(one for one in functions if one.seconds >= NAMED_SHARE * rank.step_s),
        rank.after_s,
        uneven_s=scale * before_s + min(scale * after_s, _uneven_after_s(rank)),
        is_before=before_s > after_s or any(not one.after for one in functions[:1]),
    )


def is_use_unknown(session: Session, rank: Rank, machine: Machine) -> bool:
    """Return whether a device trains of which nothing tells how busy it is (a part of a GPU, AMD, Apple)."""
    return machine.gpu_busy is None and _trains_on_device(session, rank)


def _trains_on_device(session: Session, rank: Rank) -> bool:
    settings = session.facts.get("configuration") or {}
    return rank.gpu_step_s is not None or settings.get("device") not in (None, "cpu")


def _functions(session: Session, stacks: Sequence[Stack], rank: Rank) -> list[_Found]:
    """Return the script's functions with their times, without those of collections and checkpoints.

    These have causes of their own. They are taken off the samples that show them; what no sample shows, off all functions
    before or after the optimizer's step, by its time.
    """
    training = _training_functions(session, stacks)
    found: dict[Key, _Found] = {}
    loop = _Found("")
    pauses = rank.pauses
    lost_s = {"gc": pauses.gc_s, "save": pauses.save_s}
    sampled_s = dict.fromkeys(lost_s, 0.0)
    for stack, seconds in _weighted(stacks, rank):
        if (pause := _pause(stack, rank)) is not None:
            sampled_s[pause] += seconds
    for stack, seconds in _weighted(stacks, rank):
        pause = _pause(stack, rank)
        working_s = seconds if pause is None else seconds * _kept(sampled_s[pause], lost_s[pause])
        at = _script_frame(stack, training)
        if at is not None:
            frame = _named(stack.frames, at)
            _add(found.setdefault((name_of(frame), frame.file), _Found(name_of(frame))), stack, frame, working_s)
        elif stack.after_optimizer and _is_loops(stack.frames):
            _add(loop, stack, stack.frames[-1], working_s)
    loop.after_s = min(loop.after_s, max(0.0, _busy_after_s(rank) - math.fsum(one.after_s for one in found.values())))
    if loop.after_s and loop.lines:
        loop.name = f"line {loop.lines.most_common(1)[0][0][1]} after the optimizer's step"
        found["", ""] = loop
    gc, save = (_kept(lost_s[name], sampled_s[name]) for name in ("gc", "save"))  # the parts that no sample shows
    after_s = math.fsum(one.after_s for one in found.values())
    before_s = math.fsum(one.before_s for one in found.values())
    after = _kept(after_s, gc * pauses.gc_after_s + save * pauses.save_after_s)
    before = _kept(before_s, gc * (pauses.gc_s - pauses.gc_after_s) + save * (pauses.save_s - pauses.save_after_s))
    for one in found.values():
        one.after_s, one.before_s = one.after_s * after, one.before_s * before
    return list(found.values())


def _kept(whole_s: float, lost_s: float) -> float:
    """Return the share of a time that remains without a part of it."""
    return max(0.0, 1 - lost_s / whole_s) if whole_s > 0 else 1.0


def _pause(stack: Stack, rank: Rank) -> str | None:
    """Return "save" for a stack in `torch.save`, "gc" for one at the script's own call of `gc.collect`; None for all others."""
    if any(frame.file == "torch/serialization.py" for frame in stack.frames):
        return "save"
    own = next((frame for frame in reversed(stack.frames) if frame.is_own), None)
    return "gc" if own is not None and rank.pauses.gc_call == f"{own.file}:{own.line}" else None


def _busy_after_s(rank: Rank) -> float:
    """Return the seconds per step that the training thread works after the optimizer's step. Waits for the device are none."""
    return max(0.0, (rank.after_cpu_s or 0.0) - (rank.sync_s or 0.0))


def _uneven_after_s(rank: Rank) -> float:
    """Return the seconds per step by which single steps take longer after the optimizer's step than the usual step."""
    known = [step.after_s for step in rank.steps if step.after_s is not None]
    usual_s = median(known) or 0.0
    return math.fsum(max(0.0, one - usual_s) for one in known) / len(rank.steps)


def _bounded(session: Session, rank: Rank, machine: Machine, seconds: float) -> float:
    """Return the seconds of the script, but at most those in which the device idles and the thread waits for nothing."""
    if machine.gpu_busy is not None and _trains_on_device(session, rank):
        seconds = min(seconds, (1 - machine.gpu_busy) * rank.step_s - rank.exposed_wait_s - (rank.h2d_s or 0.0))
    return max(0.0, min(seconds, rank.compute_s - (rank.compute_queue_s or 0.0) - (rank.sync_s or 0.0)))


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
        certain |= {_key(frame) for frame in stack.frames[: _optimizer_end(stack.frames)]}
        for key in {_key(frame) for frame in stack.frames}:
            whole[key] += stack.count
            inside[key] += stack.count if is_step and key in callers else 0
    return frozenset(certain | {key for key, count in inside.items() if count and count >= LEAST_ANCESTOR_SHARE * whole[key]})


def _optimizer_end(frames: Sequence[StackFrame]) -> int:
    """Return the number of frames that lead to the optimizer's step; in a closure that it runs, up to the training step."""
    closure = _closure(frames)
    if closure:
        return next(at for at in range(closure, len(frames)) if frames[at].is_own) + 1
    return next((at for at, frame in enumerate(frames) if frame.file.startswith(OPTIMIZERS)), 0)


def _closure(frames: Sequence[StackFrame]) -> int:
    """Return where a closure begins that an optimizer of PyTorch runs; 0 without one. Lightning's training step is in one."""
    last = max((at for at, frame in enumerate(frames) if frame.file.startswith(OPTIMIZERS)), default=-1)
    if last < 0 or not frames[last].function.endswith(".step") or frames[last].file.endswith("lr_scheduler.py"):
        return 0
    return last + 1 if any(frame.is_own for frame in frames[last + 1 :]) else 0


def _before_model(frames: Sequence[StackFrame]) -> Sequence[StackFrame]:
    """Return the callers of the first function that belongs to the model or the optimizer; all frames where none does."""
    return frames[: next((at for at in range(_closure(frames), len(frames)) if _is_model(frames[at])), len(frames))]


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
    if _is_model(frames[at]) or frames[at].file.startswith(TRAINING_LIBRARIES) or _waits_for_device(frames[-1]):
        return None
    if not frames[at].file.startswith("torch/") or frames[at].file.startswith(BESIDE_FILES):
        return at
    return next((below for below in range(at, model) if frames[below].is_own), None)  # a decorator of PyTorch calls it


def _is_model(frame: StackFrame) -> bool:
    method = frame.function.rpartition(".")[2]
    return (
        frame.file.startswith(MODEL_FILES)
        or (method == "backward" and frame.file.startswith("torch/"))
        or (method == "forward" and "." in frame.function)
    )


def _is_loops(frames: Sequence[StackFrame]) -> bool:
    """Return whether the loop's own frame works, of a stack after the optimizer's step that is no function of the script."""
    is_training = any(frame.file.startswith(TRAINING_LIBRARIES) for frame in frames)
    return not is_training and not _is_model(frames[-1]) and not _waits_for_device(frames[-1])


def _waits_for_device(frame: StackFrame) -> bool:
    return frame.file == "torch/_tensor.py" and frame.function in ("Tensor.item", "torch.cuda.synchronize")


def _named(frames: Sequence[StackFrame], at: int) -> StackFrame:
    """Return the function of the script at this place or above it, or else the library's function that the loop calls."""
    return next((frame for frame in frames[at:] if frame.is_own and frame.function not in PASSING), frames[at])


def _key(frame: StackFrame) -> Key:
    return frame.function, frame.file


def _add(found: _Found, stack: Stack, frame: StackFrame, seconds: float) -> None:
    if stack.after_optimizer:
        found.after_s += seconds
    else:
        found.before_s += seconds
    at = stack.frames.index(frame)
    place = next((one for one in reversed(stack.frames[: at + 1]) if one.is_own), frame)
    found.lines[place.file, place.line] += stack.count


def _function(found: _Found, scale: float) -> ScriptFunction:
    (file, line), _ = found.lines.most_common(1)[0]
    return ScriptFunction(found.name, file, line, scale * (found.before_s + found.after_s), found.after_s >= found.before_s)
