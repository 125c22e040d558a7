"""The record of one fix, and how `diagnose --verify` applies a fix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.result.model import Fix
from headrace.session.model import ObservedLoader

__all__ = ["FixKind", "Rerun"]


@dataclass(frozen=True, slots=True)
class Rerun:
    """How a re-run of the job applies a fix from outside the script.

    loader_arguments: arguments of the training DataLoader to replace, by name.
    environment: variables to set, by name.
    threads: most threads that PyTorch, OpenCV and Numba may use, whatever the script sets.
    flush_denormal: whether PyTorch takes denormal numbers for 0.
    headrace_run: whether the job runs under `headrace run`.
    """

    loader_arguments: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    headrace_run: bool = False
    threads: int | None = None
    flush_denormal: bool = False


def _not_rerun(number: int | None, loader: ObservedLoader) -> Rerun | None:
    """Return None: the fix needs an edit of the script, so no re-run can apply it."""
    return None


@dataclass(frozen=True, slots=True)
class FixKind:
    """The record of one fix id: when it is proposed, and how a re-run applies it.

    name: the id, or its part before "=" (`num_workers` of `num_workers=8`).
    propose: returns the fix for a job and a kind of finding, or None when the fix does not apply.
    rerun: returns how a re-run applies the fix, given the number after "=" and the training loader; None when only an edit
        of the script can apply it.
    is_replayed: whether `diagnose --verify` predicts the fix from a batch that is replayed in the job.
    """

    name: str
    propose: Callable[[MeasuredJob, str], Fix | None]
    rerun: Callable[[int | None, ObservedLoader], Rerun | None] = _not_rerun
    is_replayed: bool = False
