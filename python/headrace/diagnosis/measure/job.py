"""The measured job: everything that the rules and the fixes look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.diagnosis.measure import Machine, Rank
from headrace.diagnosis.measure.script_time import ScriptTime
from headrace.diagnosis.measure.stats import median
from headrace.diagnosis.measure.step_model import StepModel, kept_iterator
from headrace.session.inside_next import read_step_holder
from headrace.session.model import Event, Session
from headrace.session.stacks import StackFrame

__all__ = ["MeasuredJob"]

DRAINED_SHARE = 0.8
"""Count the GPU as starved when it had finished all work before more than this share of the steps."""

ONE_WAIT = 0.9
"""Count from this mean number of waits for the device on as one in each step."""


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
    def exposed_next_s(self) -> float:
        """Seconds per step that `next()` itself delays the device (`Rank.exposed_next_s`).

        Of new iterators with workers, what a kept iterator, whose workers make batches ahead, would save of the wait.
        """
        rank, model = self.rank, self.model
        if not rank.loader.passes or not rank.workers or model is None or not rank.net_wait_s:
            return rank.exposed_next_s
        saved_s = rank.step_s * (1 - kept_iterator(model).step_s / model.step_s)
        return rank.exposed_net_wait_s * min(1.0, saved_s / rank.net_wait_s)

    @property
    def late_s(self) -> float:
        """Seconds per step that the device waits for a batch to be made: without its hand-over and `exposed_next_s`."""
        rank = self.rank
        exposed_s = rank.exposed_wait_s if rank.makes_batches else rank.exposed_net_wait_s
        return max(0.0, exposed_s - self.exposed_next_s - rank.exposed_handover_s)

    @property
    def unknown_pause_s(self) -> float:
        """Seconds per step of pauses whose cause is not known, without what functions of the script may explain."""
        return self.rank.pauses.unknown_s - self.script_pause_s

    @property
    def is_drained(self) -> bool:
        """Whether the GPU has finished all work before nearly each step."""
        return self.rank.drained_share is not None and self.rank.drained_share > DRAINED_SHARE

    @property
    def sync_idle_s(self) -> float:
        """Seconds per step that the script's waits for the device cost: without them script and device would run side by side.

        One wait per step costs nothing while the device has more work; where it was seen to drain and to idle, it counts too.
        """
        rank, busy = self.rank, self.machine.gpu_busy
        least = ONE_WAIT if self.is_drained and busy is not None else 2
        if rank.sync_s is None or (rank.sync_count or 0.0) < least:
            return 0.0
        idle_s = min(rank.sync_s, rank.host_work_s - self.script.seconds)
        if busy is not None:
            idle_s = min(idle_s, (1 - busy) * rank.step_s - rank.exposed_wait_s - (rank.h2d_s or 0.0) - self.script.seconds)
        return max(0.0, idle_s)

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
    def held_step(self) -> tuple[float, StackFrame] | None:
        """Seconds per step outside `next()` for which another thread keeps the training thread from the interpreter, and its
        function; None where none was seen. The thread is then blocked: not on a core, and not waiting for one."""
        rank = self.rank
        found = read_step_holder(self.session.stacks, rank.process.pid)
        if found is None or rank.main_cpu_s is None or rank.elsewhere:
            return None
        waits_s = (rank.compute_queue_s or 0.0) + (rank.sync_s or 0.0) + (rank.collective_s or 0.0)
        blocked_s = rank.compute_s - rank.main_cpu_s - waits_s
        rest_s = rank.compute_s - waits_s - self.script.seconds - rank.pauses.gc_s - rank.pauses.save_s
        return max(0.0, min(blocked_s, rest_s, found[0] * rank.compute_s)), found[1]

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
