"""All fixes by name, the choice of fixes for a finding, and how each is applied in a re-run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.diagnosis.fixes import tensorflow
from headrace.diagnosis.fixes.batches import BATCH_SIZE, KEEP_ITERATOR, OWN_PROCESS, PIN_MEMORY, SHORTER_NEXT, UINT8_BATCHES
from headrace.diagnosis.fixes.fix_kind import FixKind, Rerun
from headrace.diagnosis.fixes.gpu_decode import GPU_DECODE
from headrace.diagnosis.fixes.images import CACHE, HEADRACE_RUN, PACK, PRE_RESIZE
from headrace.diagnosis.fixes.model import AMP, CHANNELS_LAST, COMPILE, FLUSH_DENORMAL, MODES, MORE_GPUS
from headrace.diagnosis.fixes.native_loader import add_native_fixes, is_native_input
from headrace.diagnosis.fixes.take_over import add_refusal
from headrace.diagnosis.fixes.training_process import (
    ASYNC_CHECKPOINT,
    GC_FREEZE,
    LESS_OFTEN,
    REMOVE_GC_COLLECT,
    REMOVE_SYNC,
    THREADS,
)
from headrace.diagnosis.fixes.worker_limits import add_worker_limit
from headrace.diagnosis.fixes.workers import NUM_WORKERS, PERSISTENT_WORKERS, PREFETCH, SPREAD_WORKERS
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.result.kinds import BLINDLY, KINDS, WHERE_REFUSED
from headrace.diagnosis.result.model import Finding, Fix
from headrace.diagnosis.rules.input import is_cause_unseen
from headrace.diagnosis.rules.ranks import straggler_input
from headrace.session.model import ObservedLoader

__all__ = ["FIXES", "add_fixes", "needs_replay", "propose_fixes", "rerun_with"]

MOST_FIXES = 5
"""Show at most this many fixes per finding."""

LEAST_GAIN = 0.97
"""Offer no change that is predicted to make the job slower than this: it is no fix."""

_ALL = (
    NUM_WORKERS,
    PREFETCH,
    PERSISTENT_WORKERS,
    SPREAD_WORKERS,
    HEADRACE_RUN,
    PRE_RESIZE,
    PACK,
    CACHE,
    GPU_DECODE,
    BATCH_SIZE,
    UINT8_BATCHES,
    PIN_MEMORY,
    SHORTER_NEXT,
    OWN_PROCESS,
    KEEP_ITERATOR,
    THREADS,
    REMOVE_SYNC,
    ASYNC_CHECKPOINT,
    LESS_OFTEN,
    REMOVE_GC_COLLECT,
    GC_FREEZE,
    AMP,
    CHANNELS_LAST,
    COMPILE,
    MORE_GPUS,
    *MODES,
    FLUSH_DENORMAL,
)

FIXES: Mapping[str, FixKind] = {fix.name: fix for fix in _ALL}
"""All fixes by name."""


def add_fixes(job: MeasuredJob, found: Finding) -> Finding:
    """Return the finding with its fixes, the largest predicted gain first.

    A rank that is slow in its loader gets the fixes of its input. A finding about a TensorFlow job gets TensorFlow's fixes,
    and one about headrace's own loader gets that loader's.
    """
    if tensorflow.has_tensorflow_fixes(job, found):
        return tensorflow.add_tensorflow_fixes(job, found)
    if is_native_input(job, found):
        return add_native_fixes(job, found)
    late = straggler_input(job) if found.kind == "RANK_STRAGGLER" else None
    kind = found.kind if late is None else late[0]
    is_unseen = (not found.cause_seen and KINDS[kind].is_input) or (late is not None and is_cause_unseen(job, kind))
    names = BLINDLY if is_unseen else WHERE_REFUSED if _is_refused(job, kind) else KINDS[kind].fixes
    fixes = sorted(propose_fixes(job, kind, names), key=lambda fix: -(1.0 if fix.gain is None else fix.gain))
    found = add_refusal(job, found) if HEADRACE_RUN.name in names else found
    found = add_worker_limit(job, found) if NUM_WORKERS.name in names and kind != "CPU_OVERSUBSCRIBED" else found
    return replace(found, fixes=tuple(fixes[:MOST_FIXES]))


def _is_refused(job: MeasuredJob, kind: str) -> bool:
    """Return whether a wait for storage is one for a store that refuses requests."""
    cost = job.rank.batch_cost
    return KINDS[kind].is_blocked and cost is not None and cost.is_refused


def propose_fixes(job: MeasuredJob, kind: str, names: tuple[str, ...]) -> list[Fix]:
    """Return the fixes of these names that apply to the job and are not predicted to make it slower, in the same order."""
    found = [fix for name in names if (fix := FIXES[name].propose(job, kind)) is not None]
    return [fix for fix in found if fix.gain is None or fix.gain >= LEAST_GAIN]


def needs_replay(fix_ids: list[str], verdict: str) -> bool:
    """Return whether replaying a batch would improve a prediction: of one of these fixes, or a fix of the verdict's kind."""
    names = {fix_id.partition("=")[0] for fix_id in fix_ids}.union(KINDS[verdict].fixes)
    return any(FIXES[name].is_replayed for name in names if name in FIXES)


def rerun_with(fix_id: str, loader: ObservedLoader) -> Rerun | None:
    """Return how a re-run of the job applies a fix, or None when only an edit of the script can apply it."""
    name, _, number = fix_id.partition("=")
    kind = FIXES.get(name)
    return None if kind is None else kind.rerun(int(number) if number.isdigit() else None, loader)
