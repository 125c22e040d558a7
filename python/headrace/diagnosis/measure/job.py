"""The measured job: everything that the rules and the fixes look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.diagnosis.measure import Machine, Rank
from headrace.diagnosis.measure.script_time import ScriptTime
from headrace.diagnosis.measure.stats import median
from headrace.diagnosis.measure.step_model import StepModel
from headrace.session.model import Event, Session

__all__ = ["MeasuredJob"]


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """One session with its measurements.

    session: what the run recorded.
    ranks: all ranks of the job, in order of their number.
    rank: the rank that sets the pace. All rules speak of this rank.
    machine: means over the samples taken while the steps ran.
    model: the step model of `rank`, or None when no batch was seen being made.
    script: the part of the step that the script itself takes beside forward, backward and the optimizer's step.
    """

    session: Session
    ranks: tuple[Rank, ...]
    rank: Rank
    machine: Machine
    model: StepModel | None
    script: ScriptTime = field(default_factory=ScriptTime)

    def share(self, seconds: float) -> float:
        """Return a time per step as a share of the step, 0 to 1."""
        return max(0.0, min(1.0, seconds / self.rank.step_s)) if self.rank.step_s > 0 else 0.0

    @property
    def unknown_pause_s(self) -> float:
        """Seconds per step of pauses whose cause is not known, without what functions of the script may explain."""
        return self.rank.pauses.unknown_s - self.script_pause_s

    @property
    def recompilations(self) -> tuple[Event, ...]:
        """The compilations in steady steps, each with the reason that `torch.compile` gave."""
        begin_s, pid = self.rank.steps[0].start_s, self.rank.process.pid
        events = self.session.events
        return tuple(one for one in events if one.name == "compile" and one.pid == pid and one.start_s >= begin_s)

    @property
    def recompile_s(self) -> float:
        """Seconds per steady step in which `torch.compile` compiles again."""
        return min(self.rank.compute_s, sum(event.duration_s for event in self.recompilations) / len(self.rank.steps))

    @property
    def script_pause_s(self) -> float:
        """Seconds per step of single long steps that functions of the script may explain."""
        return min(self.rank.pauses.unknown_s, self.script.uneven_s)

    @property
    def traceback_s(self) -> float:
        """Seconds per step in which stacks are written down, as anomaly detection does for each operation."""
        stacks = [one for one in self.session.stacks if one.role == "step" and one.pid == self.rank.process.pid]
        taken = sum(one.count for one in stacks if any(frame.file == "traceback.py" for frame in one.frames))
        return self.rank.compute_s * taken / max(1, sum(one.count for one in stacks))

    @property
    def operator_share(self) -> float | None:
        """Share of the compute time spent in PyTorch operators, from a profile of a few steps; None without a profile."""
        pid = self.rank.process.pid
        return median([event.duration_s for event in self.session.events if event.name == "operators" and event.pid == pid])

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the training process reported of its model and software; empty when it did not report."""
        return self.session.facts.get("configuration") or {}

    @property
    def replay_s(self) -> Mapping[str, float]:
        """Seconds per step of one replayed batch, by variant (`headrace.attach.experiments.replay`); empty without a replay."""
        seconds = dict((self.session.facts.get("replay") or {}).get("seconds") or {})
        if "base_again" in seconds:
            seconds["base"] = 0.5 * (seconds["base"] + seconds.pop("base_again"))
        return seconds
