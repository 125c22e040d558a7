"""Functions that take the time of making a batch and of the training step, and their flame charts, from sampled stacks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from headrace.diagnosis.result.model import FlameBar, FlameChart, HotFunction
from headrace.session.model import Session
from headrace.session.stacks import Stack, StackFrame
from headrace.system.text.sizes import percent_text

__all__ = [
    "LEAST_SAMPLES",
    "PASSING",
    "flame_charts",
    "hot_functions",
    "hot_words",
    "late_resize_words",
    "lock_words",
    "name_of",
    "opens_images",
    "place_words",
    "training_stacks",
    "work_words",
]

LEAST_SAMPLES = 30
"""Name functions from this many samples of one kind of work: a share of 50 % is then known within 18 points."""

LEADING_SHARE = 0.30
"""Name a function in the evidence when it takes at least this share of the work."""

LISTED_SHARE = 0.02
"""List functions with at least this share of the work."""

SECOND_SHARE = 0.08
"""Name a second function in the evidence when it takes at least this share of the work. Larger names fewer."""

MOST_LISTED = 8
"""List at most this many functions of one role."""

LEAST_BAR = 0.004
"""Draw a function in the flame chart when it takes at least this share of the chart's samples."""

DEEPEST_BAR = 24
MOST_BARS = 400

IMAGE_FILES = ("PIL/", "cv2/", "torchvision/io/", "imageio/", "skimage/")
"""Libraries that decode images."""

UNPACKING = ("gzip.py", "_compression.py", "bz2.py", "lzma.py", "zipfile.py", "zipfile/", "compression/")
"""Files of Python that decompress."""

SHARED_LOCKS = ("multiprocessing/synchronize.py", "filelock/", "fasteners/", "portalocker/")
"""Files whose functions wait for a lock that processes share."""

SHRINKS = ("Resize", "RandomResizedCrop", "RandomCrop", "CenterCrop", "FiveCrop", "TenCrop")
"""Transforms after which an image has fewer pixels."""

SINGLE_NUMBERS = ("collate_float_fn", "collate_int_fn")
"""Functions of PyTorch's collation that make a tensor of Python's numbers."""

WORK = {"batch": "making a batch", "collate": "making a batch", "step": "the training step"}

CALL_NAMES = ("__call__", "forward", "transform", "apply")
"""Methods by which a transform or a model is called. The name of its class says more."""

CONTAINERS = frozenset(
    {
        "Compose", "Sequential", "Transform", "RandomApply", "RandomChoice", "RandomOrder", "Lambda", "Module", "ModuleList",
        "Subset", "ConcatDataset", "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel",
    }
)  # fmt: skip
"""Classes that only call others."""

_CALLED = re.compile(r"\b([A-Za-z_]\w*+)\(")  # a very long name takes linear time

PASSING = ("<module>", "<listcomp>", "<genexpr>", "<dictcomp>", "<lambda>", "wrapper", "inner", "wrapped", "decorate_context")
"""Functions that only pass a call on, or have no name."""

READERS = ("__getitem__", "__getitems__", "__next__", "__iter__")
"""Dataset methods that are named as slow only if no function that they call takes the time."""


def name_of(frame: StackFrame) -> str:
    """Return the name of a function: `GaussianBlur` for its `forward`, else the qualified name."""
    owner, _, method = frame.function.rpartition(".")
    if owner and (method in CALL_NAMES or (method == "filter" and frame.file == "PIL/ImageFilter.py")):
        return owner.rpartition(".")[2]
    return frame.function


def _is_named(frame: StackFrame) -> bool:
    """Return whether the function is one that a user knows: a transform, a model, or a function of the script."""
    name, method = name_of(frame), frame.function.rpartition(".")[2]
    if name in CONTAINERS or method in PASSING or method in READERS:
        return False
    return frame.is_own or name != frame.function


def _known(frames: Sequence[StackFrame]) -> Iterator[int]:
    """Yield the places on a stack that may be named: known functions, and what the script calls in a library."""
    last_own = max((at for at, frame in enumerate(frames) if frame.is_own), default=-1)
    calls = [at for at in range(last_own + 1, len(frames)) if _calls_on(frames[at])]
    called = next(iter(calls), None)
    if called is not None and frames[called].function.rpartition(".")[2] in READERS:  # a dataset of a library reads images
        decode = next((at for at in calls if frames[at].file.startswith(IMAGE_FILES)), None)
        called = called if decode is None else decode
    named = [at for at, frame in enumerate(frames) if _is_named(frame)]
    if called is not None and not any(at > last_own for at in named):
        named.append(called)
    yield from named or ([last_own] if last_own >= 0 else [])


def _calls_on(frame: StackFrame) -> bool:
    return frame.function.rpartition(".")[2] not in PASSING and name_of(frame) not in CONTAINERS


@dataclass(slots=True)
class _Function:
    """The samples of one function: all, innermost, and by the line of the script that leads to it."""

    role: str
    name: str
    samples: int = 0
    own_samples: int = 0
    lines: Counter[tuple[str, int]] = field(default_factory=Counter)
    stacks: set[int] = field(default_factory=set)


def training_stacks(session: Session, loader: int) -> Session:
    """Return the session with the stacks of training alone, without those of other loaders, such as validation's.

    loader: number of the loader whose batches count. Steps count that belong to any loader with optimizer steps: a step that
    takes batches of several loaders belongs to the last one.
    """
    trained = {loader, *(step.loader for step in session.steps if step.optimizer_steps)}
    kept = tuple(
        stack
        for stack in session.stacks
        if stack.loader is None or (stack.loader in trained if stack.role == "step" else stack.loader == loader)
    )
    return replace(session, stacks=kept)


def _of_role(session: Session, role: str) -> list[Stack]:
    """Return the stacks of one kind of work, without those beyond the most kept. Making a batch includes collating."""
    roles = ("step",) if role == "step" else ("batch", "collate")
    return [stack for stack in session.stacks if stack.frames and stack.role in roles]


def _functions(stacks: Sequence[Stack]) -> list[_Function]:
    """Return the known functions of the stacks, the largest first."""
    found: dict[tuple[str, str, str], _Function] = {}
    for number, stack in enumerate(stacks):
        if stack.waits:
            continue
        own: StackFrame | None = None
        known, seen = set(_known(stack.frames)), set()
        for at, frame in enumerate(stack.frames):
            own = frame if frame.is_own else own
            key = (stack.role, name_of(frame), frame.file)
            if at not in known or key in seen:
                continue
            seen.add(key)
            function = found.setdefault(key, _Function(stack.role, key[1]))
            function.samples += stack.count
            function.own_samples += stack.count if at == len(stack.frames) - 1 else 0
            place = own or frame
            function.lines[place.file, place.line] += stack.count
            function.stacks.add(number)
    return sorted(found.values(), key=lambda function: (-function.samples, function.name))


def hot_functions(session: Session) -> tuple[HotFunction, ...]:
    """Return the functions that take the time, by role, the largest first; none from too few samples.

    Example: `hot_functions(session)[0].function`
    """
    rows = []
    for work in ("batch", "step"):
        stacks = _of_role(session, work)
        total = sum(stack.count for stack in stacks)
        if total < LEAST_SAMPLES:
            continue
        found = [one for one in _functions(stacks) if one.samples >= LISTED_SHARE * total]
        for role in ("batch", "collate") if work == "batch" else ("step",):
            rows += [_hot(one, total) for one in found if one.role == role][:MOST_LISTED]
    return tuple(rows)


def _hot(function: _Function, total: int) -> HotFunction:
    file, line = function.lines.most_common(1)[0][0]
    share, self_share = round(function.samples / total, 4), round(function.own_samples / total, 4)
    return HotFunction(function.role, function.name, file, line, share, self_share)


def hot_words(session: Session, role: str) -> tuple[str, ...]:
    """Return a sentence that names the functions in which a kind of work spends its time; empty where none stands out.

    `role`: "batch" (collating included), "collate", or "step".
    """
    stacks = _of_role(session, role)
    total = sum(stack.count for stack in stacks)
    if total < LEAST_SAMPLES:
        return ()
    functions = [one for one in _functions(stacks) if role != "collate" or one.role == "collate"]
    leading = _leading(functions, stacks, total)
    if leading is None:
        return ()
    hot = _hot(leading, total)
    words = f"{hot.function} takes {percent_text(hot.share)} of {WORK[role]} ({place_words(hot.file, hot.line, session.cwd)})"
    others: list[str] = []
    taken = set(leading.stacks)
    for one in functions:
        if one.samples >= SECOND_SHARE * total and not one.stacks & taken and len(others) < 2:
            others.append(f"{one.name} {percent_text(one.samples / total)}")
            taken |= one.stacks
    return ("; ".join([words, ", ".join(others)]) if others else words,)


def work_words(session: Session) -> tuple[str, ...]:
    """Return what is known to be dear in making a batch, whoever calls it: decompressing, tensors of single numbers."""
    stacks = _of_role(session, "batch")
    total = sum(stack.count for stack in stacks)
    if total < LEAST_SAMPLES:
        return ()
    unpacking = sum(one.count for one in stacks if any(frame.file.startswith(UNPACKING) for frame in one.frames))
    numbers = sum(one.count for one in stacks if any(frame.function in SINGLE_NUMBERS for frame in one.frames))
    words = []
    if unpacking >= LEADING_SHARE * total:
        share = percent_text(unpacking / total)
        words.append(f"{share} of making a batch is decompressing an archive, again at each jump and access: unpack it once")
    if numbers >= LEADING_SHARE * total:
        share = percent_text(numbers / total)
        words.append(f"{share} of making a batch is tensors of single Python numbers: let the dataset return tensors or arrays")
    return tuple(words)


def lock_words(session: Session) -> str | None:
    """Return that making batches waits for a lock that workers share, with the line of the script; None where it does not."""
    stacks = _of_role(session, "batch")
    total = sum(stack.count for stack in stacks)
    waiting = [one for one in stacks if any(frame.file.startswith(SHARED_LOCKS) for frame in one.frames)]
    count = sum(one.count for one in waiting)
    if total < LEAST_SAMPLES or count < LEADING_SHARE * total:
        return None
    lines: Counter[StackFrame] = Counter()
    for one in waiting:
        own = next((frame for frame in reversed(one.frames) if frame.is_own), one.frames[0])
        lines[own] += one.count
    place, _ = lines.most_common(1)[0]
    where = place_words(place.file, place.line, session.cwd)
    return f"waiting for a lock that the workers share takes {percent_text(count / total)} of making a batch ({where})"


def late_resize_words(session: Session, transform: str | None) -> tuple[str, ...]:
    """Return that dear transforms work on whole images because the one that makes them smaller comes later.

    transform: how the dataset's transforms show themselves, in order.
    """
    names = [name for name in _CALLED.findall(transform or "") if name not in CONTAINERS]
    shrink = next((name for name in names if name in SHRINKS), None)
    if shrink is None:
        return ()
    before = names[: names.index(shrink)]
    taken = {one.function: one.share for one in hot_functions(session) if one.role == "batch" and one.function in before}
    if sum(taken.values()) < LEADING_SHARE:
        return ()
    dear = ", ".join(name for name, share in taken.items() if share >= SECOND_SHARE)
    share = percent_text(sum(taken.values()))
    return (f"{dear} ({share} of making a batch) work on whole images, since {shrink} comes after them: put it first",)


def opens_images(session: Session) -> bool | None:
    """Return whether a library of images was seen at work while batches were made; None from too few samples.

    OpenCV leaves no function of Python: where a process has loaded it, the answer is None.
    """
    stacks = _of_role(session, "batch")
    if any(frame.file.startswith(IMAGE_FILES) for stack in stacks for frame in stack.frames):
        return True
    unknown = any("cv2" in process.thread_settings for process in session.processes)
    return None if unknown or sum(stack.count for stack in stacks) < LEAST_SAMPLES else False


def _leading(functions: Sequence[_Function], stacks: Sequence[Stack], total: int) -> _Function | None:
    """Return the innermost of the large functions that lie inside the largest one."""
    leading: _Function | None = None
    for one in functions:
        if one.samples < LEADING_SHARE * total:
            break
        if leading is None or (one.stacks <= leading.stacks and _is_inside(one, leading, stacks)):
            leading = one
    return leading


def _is_inside(inner: _Function, outer: _Function, stacks: Sequence[Stack]) -> bool:
    """Return whether the first function is called by the second."""
    names = [name_of(frame) for frame in stacks[next(iter(inner.stacks))].frames]
    return names.index(inner.name) > names.index(outer.name)


def place_words(file: str, line: int, cwd: str) -> str:
    """Return "FILE:LINE" of a function; FILE is relative to `cwd`, the command's folder, if it lies below."""
    return f"{file.removeprefix(cwd.rstrip('/') + '/') if cwd else file}:{line}"


@dataclass(slots=True)
class _Node:
    frame: StackFrame
    role: str
    count: int = 0
    lines: Counter[int] = field(default_factory=Counter)
    below: dict[tuple[str, str, str], _Node] = field(default_factory=dict)


def flame_charts(session: Session) -> tuple[FlameChart, ...]:
    """Return the flame chart of making batches and that of the training step, where enough stacks were sampled."""
    charts = []
    for name in ("batch", "step"):
        stacks = _of_role(session, name)
        total = sum(stack.count for stack in stacks)
        if total >= LEAST_SAMPLES:
            root = _tree(stacks, _common_callers(stacks) if name == "step" else 0)
            bars = sorted(_bars(root, total), key=lambda bar: -bar.share)[:MOST_BARS]
            if bars:  # none, where each function has a share too small to be drawn
                charts.append(FlameChart(name, total, tuple(sorted(bars, key=lambda bar: (bar.depth, bar.left)))))
    return tuple(charts)


def _common_callers(stacks: Sequence[Stack]) -> int:
    """Return how many outermost frames all stacks share, less the innermost of these: the training loop."""
    names = [[(frame.function, frame.file) for frame in stack.frames] for stack in stacks]
    common = 0
    for column in zip(*names, strict=False):
        if len(set(column)) > 1:
            break
        common += 1
    return max(0, common - 1)


def _tree(stacks: Iterable[Stack], skipped: int) -> _Node:
    root = _Node(StackFrame("", "", 0), "")
    for stack in stacks:
        node = root
        frames = stack.frames[skipped:]
        if stack.waits:
            frames = (*frames, StackFrame("waiting", "", 0))
        for frame in frames:
            role = "wait" if not frame.file else stack.role
            key = (role, frame.function, frame.file)
            node = node.below.setdefault(key, _Node(frame, role))
            node.count += stack.count
            node.lines[frame.line] += stack.count
    return root


def _bars(root: _Node, total: int) -> Iterator[FlameBar]:
    """Yield the bars of a tree, without those that are too narrow to see."""
    open_nodes = [(root, 0, 0.0)]
    while open_nodes:
        node, depth, left = open_nodes.pop()
        for child in sorted(node.below.values(), key=lambda one: -one.count):
            share = child.count / total
            if share < LEAST_BAR or depth >= DEEPEST_BAR:
                break
            line = child.lines.most_common(1)[0][0]
            bar = (name_of(child.frame), child.frame.file, line, depth, round(left, 5), round(share, 5), child.role)
            yield FlameBar(*bar)
            open_nodes.append((child, depth + 1, left))
            left += share
