"""What the training thread did inside `next()`, by its sampled stacks, and who kept it from Python's lock there.

PyTorch's `next()` does five things in the training process: it waits for a worker (or makes the batch itself), takes the
batch over, draws the indices of a later batch from the sampler, pins memory, and runs what a subclass adds. Only the first is
a worker's work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.session.model import ObservedLoader
from headrace.session.stacks import Stack, StackFrame

__all__ = ["LEAST_NEXT_SAMPLES", "OWN_PARTS", "InsideNext", "read_inside_next", "read_step_holder"]

LEAST_NEXT_SAMPLES = 20
"""Divide the time in `next()` from this many samples on: a share of 50 % is then known within 22 points."""

CERTAIN_SHARE = 0.8
"""From `LEAST_HELD_SAMPLES` on, divide the time where one part takes at least this share: half of it is then certain."""

LEAST_HELD_SAMPLES = 10
"""Say from this many samples on whether another thread holds the interpreter: at 11 of 12, half of the time is certain."""

OWN_PARTS: Mapping[str, str] = {
    "sampler": "the sampler, which draws the indices of a batch",
    "pinning": "copying batches into pinned memory",
    "script": "code of the script that runs in next()",
}
"""The parts that are neither a worker's work nor the hand-over of its batch, in words."""

HOLDERS: Mapping[str, str] = {"holder": "next", "step holder": "step"}
"""The work that a thread is kept from by one with this role."""

LEAST_STEP_SHARE = 0.3
"""Another thread holds the interpreter while steps run when it does in this share of their samples."""

_LOADER = "torch/utils/data/dataloader.py"
_PINNING = "torch/utils/data/_utils/pin_memory.py"
_QUEUES = "multiprocessing/queues.py"
HELD_SHARE = 0.5
"""Another thread holds the interpreter when it did so in this share of the samples: the median of the delays is then long."""


@dataclass(frozen=True, slots=True)
class InsideNext:
    """Shares of the time in `next()`, 0 to 1.

    samples: how many stacks were sampled.
    shares: by part (`OWN_PARTS`).
    places: for each of these parts, the function of the script that took most of it, else of the library.
    held_share: share of the samples in which another thread kept the sampling thread from the interpreter.
    holder: the function of that thread which did so most often.
    """

    samples: int
    shares: Mapping[str, float]
    places: Mapping[str, StackFrame]
    held_share: float
    holder: StackFrame | None

    @property
    def own_share(self) -> float:
        """The share that neither a worker nor the hand-over explains."""
        return sum(self.shares.values())

    @property
    def is_held(self) -> bool:
        """Whether another thread kept the training thread from the interpreter."""
        return self.holder is not None and self.held_share >= HELD_SHARE


def read_inside_next(stacks: Sequence[Stack], pid: int, loader: ObservedLoader) -> InsideNext | None:
    """Return the parts of `next()` of a PyTorch loader in the process `pid`, or None from too few samples."""
    if loader.family not in ("torch", "fastai"):
        return None
    mine = [stack for stack in stacks if stack.pid == pid and stack.loader == loader.loader]
    inside = [stack for stack in mine if stack.role in ("next", *(() if loader.num_workers else ("batch", "collate")))]
    samples = sum(stack.count for stack in inside)
    if samples < LEAST_HELD_SAMPLES:
        return None
    parts: dict[str, Counter[StackFrame]] = {}
    for stack in inside:
        part, frames = _part(stack) if stack.role == "next" else ("", ())
        if part:
            parts.setdefault(part, Counter())[_named(frames)] += stack.count
    largest = max((counts.total() for counts in parts.values()), default=0)
    if samples < LEAST_NEXT_SAMPLES and largest < CERTAIN_SHARE * samples:
        parts = {}
    held: Counter[StackFrame] = Counter()
    for stack in mine:
        if stack.role == "holder" and stack.frames:
            held[_named(stack.frames)] += stack.count
    return InsideNext(
        samples=samples,
        shares={part: counts.total() / samples for part, counts in parts.items()},
        places={part: _largest(counts) for part, counts in parts.items()},
        held_share=min(1.0, held.total() / samples),
        holder=_largest(held) if held else None,
    )


def read_step_holder(stacks: Sequence[Stack], pid: int) -> tuple[float, StackFrame] | None:
    """Return the share of a process's steps in which another thread kept the training thread from the interpreter, and the
    function of that thread. None from too few samples, or where it is less than `LEAST_STEP_SHARE` of the steps, or less than
    `HELD_SHARE` of the steps and the time in `next()` together."""
    held: dict[str, Counter[StackFrame]] = {"step": Counter(), "next": Counter()}
    samples = dict.fromkeys(held, 0)
    for stack in stacks:
        if stack.pid == pid and stack.role in samples:
            samples[stack.role] += stack.count
        elif stack.pid == pid and stack.frames and stack.role in HOLDERS:
            held[HOLDERS[stack.role]][_named(stack.frames)] += stack.count
    both, seen = held["step"].total() + held["next"].total(), samples["step"] + samples["next"]
    if seen < LEAST_HELD_SAMPLES or not samples["step"]:
        return None
    share = min(1.0, held["step"].total() / samples["step"])
    return (share, _largest(held["step"])) if share >= LEAST_STEP_SHARE and both >= HELD_SHARE * seen else None


def _part(stack: Stack) -> tuple[str, Sequence[StackFrame]]:
    """Return the part that a stack inside `next()` belongs to, and its frames there; "": waiting, or taking a batch over."""
    frames = stack.frames
    drawn = next((at for at, frame in enumerate(frames) if _is(frame, "_next_index", _LOADER)), None)
    if drawn is not None:
        return "sampler", frames[drawn + 1 :] or frames[drawn:]
    if stack.waits or any(frame.file.endswith(_QUEUES) for frame in frames):
        return "", ()
    if any(_is(frame, "pin_memory", _PINNING) for frame in frames):
        return "pinning", frames
    if any(frame.is_own for frame in frames):
        return "script", frames
    return "", ()


def _is(frame: StackFrame, function: str, file: str) -> bool:
    return frame.file.endswith(file) and frame.function.rpartition(".")[2] == function


def _named(frames: Sequence[StackFrame]) -> StackFrame:
    """Return the innermost method of a class of the script, else its innermost function, else the innermost function."""
    own = [frame for frame in frames if frame.is_own]
    return next((frame for frame in reversed(own) if "." in frame.function), (own or frames)[-1])


def _largest(counts: Counter[StackFrame]) -> StackFrame:
    """Return the function with most samples, at the line with most of them."""
    functions: Counter[tuple[str, str]] = Counter()
    for frame, count in counts.items():
        functions[frame.function, frame.file] += count
    function = functions.most_common(1)[0][0]
    return max((frame for frame in counts if (frame.function, frame.file) == function), key=lambda frame: counts[frame])
