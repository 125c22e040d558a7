"""The result of a diagnosis as plain data: verdict, findings, fixes, and the series that a report draws.

The fields are those of `headrace diagnose --json`. A value that was not measured is None, never 0.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.session.machine import ForeignProgram

__all__ = [
    "ENDINGS",
    "NOTES",
    "SHARES",
    "Diagnosis",
    "End",
    "Finding",
    "Fix",
    "FlameBar",
    "FlameChart",
    "HeatMap",
    "HotFunction",
    "Note",
    "Percentiles",
    "RankRow",
    "StageRow",
    "Timeline",
    "TimelineEvent",
    "command_ended",
    "ending_words",
]

SHARES: Mapping[str, str] = {
    "input_storage": "waiting for input: storage",
    "input_cpu": "waiting for input: decode and augment",
    "input_queue": "waiting for input: queueing for a core",
    "input_quota": "waiting for input: workers stopped by the CPU quota",
    "input_collate": "waiting for input: collate and transport",
    "input_next": "waiting for input: in next() itself (sampler, pinning, new iterators)",
    "h2d": "copy to the GPU",
    "compute": "compute",
    "script": "the script beside the model (logging, metrics, validation)",
    "core_wait": "training thread waits for a core, outside the input",
    "quota": "training thread stopped by the CPU quota, outside the input",
    "communication": "gradient exchange",
    "sync": "waiting for the device",
    "periodic": "pauses (checkpoint, validation, gc)",
    "standstill": "no step: the job stands still",
    "other": "other",
}
"""Parts of the step in words, in the order of the bar. The values of `Diagnosis.share_of_step` sum to 1."""


@dataclass(frozen=True, slots=True)
class Fix:
    """One change that a user can make, with its predicted and its measured gain.

    id: one of the closed list of fix ids (`num_workers=8`, `pin_memory`, `headrace_run`, …).
    change: the change in words. Begins with "≈ 0" when it will not help.
    predicted_img_s, interval: predicted images/s of the job, and their 80 % interval; None when not predicted.
    verified_img_s, verified_change: images/s now times the measured gain, and that gain: the rate of a re-run with the fix over
        that of re-runs without it.
    verified_basis: the rates of the re-runs, and how they were scaled, in words.
    command: what to type or write, if one line says it.
    gain: predicted rate over the present rate.
    next_bottleneck: what sets the pace after the fix.
    basis: what the prediction rests on.
    effort: how much the user has to edit.
    """

    id: str
    change: str
    predicted_img_s: float | None = None
    interval: tuple[float, float] | None = None
    verified_img_s: float | None = None
    command: str | None = None
    gain: float | None = None
    next_bottleneck: str | None = None
    basis: str | None = None
    effort: str | None = None
    verified_change: float | None = None
    verified_basis: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause of slow steps, with its share, evidence and fixes.

    kind: a name in `headrace.diagnosis.result.kinds`.
    share: how much of the step the cause accounts for, 0 to 1; of the whole run when `share_of` is "run".
    evidence: sentences with the measured numbers.
    summary: the cause in a clause.
    cause_seen: False when batches are blocked and nothing was seen that blocks them: no file or socket was read meanwhile;
        of COMPUTE_BOUND when the GPU idles for much of the step and it was not seen why.
    """

    kind: str
    share: float | None
    evidence: tuple[str, ...]
    fixes: tuple[Fix, ...] = ()
    confidence: float | None = None
    summary: str = ""
    share_of: str = "step"
    cause_seen: bool = True


ENDINGS: Mapping[str, bool] = {
    "finished": False,
    "time_limit": False,
    "stopped": True,
    "memory": True,
    "shared_memory": True,
    "worker_killed": True,
    "worker_error": True,
    "rank_lost": True,
    "exception": True,
    "nan": True,
    "crashed": True,
    "killed": True,
    "exit": True,
}
"""Kinds of ends, and whether the first line of a screen says it: an end that nobody wanted does, `finished` does not."""


@dataclass(frozen=True, slots=True)
class End:
    """How the command ended.

    kind: a name in `ENDINGS`.
    text: the end in one clause, with process, cause and number of steps.
    evidence: sentences with what shows it.
    pid: the process that it began with.
    advice: what to do, if there is a rule.
    """

    kind: str
    text: str
    evidence: tuple[str, ...] = ()
    pid: int | None = None
    advice: str | None = None

    @property
    def is_failure(self) -> bool:
        """Whether the end comes first on a screen."""
        return ENDINGS.get(self.kind, True)


NOTES: Mapping[str, bool] = {
    "loss_not_finite": False,
    "loss_still": False,
    "larger_batch": False,
    "standstill": False,
    "finding": False,
    "setting": False,
    "changed_limits": False,
    "more_gpus": False,
    "learning_rate": False,
    "finished_job": False,
    "not_finite": True,
    "zero_images": True,
    "equal_images": True,
    "same_records": True,
    "one_label": True,
    "one_label_a_batch": True,
    "same_labels": True,
    "workers_repeat": True,
    "ranks_repeat": True,
    "same_order": True,
    "same_draws": True,
    "values_to_255": True,
}
"""Kinds of notes, and whether they tell what is in the batches: such notes stand below the verdict."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the session shows beside the causes of lost time, such as a loss that does not move.

    kind: a name in `NOTES`.
    text: the note in one sentence.
    evidence: sentences with what shows it, and what looks alike.
    """

    kind: str
    text: str
    evidence: tuple[str, ...] = ()

    @property
    def is_in_batches(self) -> bool:
        """Whether the note tells what is in the batches."""
        return NOTES.get(self.kind, False)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Minimum, percentiles and maximum of one series. `unit` is s, % or bytes."""

    name: str
    unit: str
    count: int
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The use of CPU cores and GPUs over time. `cores[c][t]` and `gpus[g][t]` are 0 to 1; None means not measured.

    mean_of_cores: how many cores the one row of `cores` is the mean of; None where each core has its row.
    """

    time_s: tuple[float, ...]
    cores: tuple[tuple[float | None, ...], ...]
    gpus: tuple[tuple[float | None, ...], ...]
    gpu_names: tuple[str, ...] = ()
    mean_of_cores: int | None = None


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """A named pause to mark on the timeline."""

    name: str
    start_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The steps of the slowest rank in order. Each entry is the mean of `stride` neighbouring steps."""

    start_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    compute_s: tuple[float, ...]
    events: tuple[TimelineEvent, ...] = ()
    stride: int = 1


@dataclass(frozen=True, slots=True)
class StageRow:
    """Where the time of one worker goes, mean seconds per batch. None means not measured."""

    name: str
    pid: int
    batches: int
    wall_s: float
    cpu_s: float | None
    queue_s: float | None
    blocked_s: float | None
    collate_s: float | None
    idle_s: float | None
    bytes_per_batch: float | None
    items_per_s: float | None


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank: median seconds per step, and the phase that it is slow in."""

    rank: int
    pid: int
    steps: int
    step_s: float
    wait_s: float
    compute_s: float
    own_s: float | None
    collective_s: float | None
    slow_in: str | None = None


@dataclass(frozen=True, slots=True)
class HotFunction:
    """One function that takes time, from sampled stacks.

    role: "batch" (making a batch), "collate", or "step" (the training loop between two batches).
    function: its name; a transform or model has the name of its class.
    file, line: the line of the script that runs it or leads to it; the function's own first line where no script is seen.
    share: of the samples of making a batch (also for "collate") or of the step, 0 to 1, functions that it calls included.
    self_share: the same without the functions that it calls. Native code counts for the function that calls it.
    """

    role: str
    function: str
    file: str
    line: int
    share: float
    self_share: float


@dataclass(frozen=True, slots=True)
class FlameBar:
    """One bar of a flame chart. `depth`: callers above it. `left`, `share`: its place and width, 0 to 1 of the chart."""

    function: str
    file: str
    line: int
    depth: int
    left: float
    share: float
    role: str


@dataclass(frozen=True, slots=True)
class FlameChart:
    """The sampled stacks of one kind of work, callers above the functions that they call. `name`: "batch" or "step"."""

    name: str
    samples: int
    bars: tuple[FlameBar, ...]


def ending_words(code: int) -> str:
    """Return how a command ended, without a subject: "failed with exit code 1" or "stopped by SIGKILL" (code -9)."""
    if code > 0:
        return f"failed with exit code {code}"
    known = {one.value: one.name for one in signal.Signals}
    return f"stopped by {known.get(-code) or f'signal {-code}'}"


def command_ended(code: int) -> str:
    """Return how a command ended, with its subject: "the command failed with exit code 1". code: not 0; -9 is SIGKILL."""
    return f"the command {'was ' if code < 0 else ''}{ending_words(code)}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The whole result for one session.

    verdict, confidence, summary: kind of the leading finding, 0 to 1, and the cause in a clause.
    provisional: whether more steps may still change the verdict (`headrace.diagnosis.measure.enough_steps`).
    share_of_step: parts of the step by the names in `SHARES`, each 0 to 1.
    findings, configuration: causes, the verdict first; and findings about settings.
    img_s, ceiling_img_s: images/s of all ranks now, and without any wait for input. A fix that changes more than the input
        (`threads=N`, `batch_size=N`, `more_gpus`) can exceed the ceiling.
    wait_share: share of the step that waits for input.
    gpu_scaling: rate that twice the GPUs on the same cores and storage would reach, over twice today's; None without a GPU.
    wasted_gpu_hours_per_100: GPU-hours lost of each 100, whether or not a fix is known.
    reachable_img_s, reachable_fix, recoverable_gpu_hours_per_100: images/s with the best fix, measured or else predicted, its
        id, and the GPU-hours of each 100 that it saves; None when no fix with a known rate helps.
    foreign_programs: the largest programs outside the job while it trained; None where they were not read.
    fix_order_established: False when the intervals of all fixes that help overlap; None with fewer than two.
    terms_s, startup_s: terms of the step model, and parts of the start, in seconds.
    hot_functions, flame_charts: functions that take the time of making batches and of the step, from sampled stacks.
    notes: what is no cause of lost time: what is in the batches, a loss that does not move.
    hook_cost_share: share of the step that measuring costs.
    end: how the command ended; None while it runs.
    report, session: paths, which the command fills in.
    """

    verdict: str
    confidence: float
    share_of_step: Mapping[str, float]
    findings: tuple[Finding, ...]
    img_s: float | None
    ceiling_img_s: float | None
    not_measured: tuple[str, ...]
    report: str | None = None
    session: str | None = None
    summary: str = ""
    steps: int = 0
    ranks: int = 0
    step_s: float | None = None
    step_p95_s: float | None = None
    wait_share: float | None = None
    wasted_gpu_hours_per_100: float | None = None
    noise: str | None = None
    hook_cost_share: float | None = None
    time_to_verdict_s: float | None = None
    command: tuple[str, ...] = ()
    exit_code: int | None = None
    time_limit_s: float | None = None
    duration_s: float | None = None
    terms_s: Mapping[str, float] = field(default_factory=dict)
    startup_s: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    percentiles: tuple[Percentiles, ...] = ()
    heat_map: HeatMap | None = None
    timeline: Timeline | None = None
    stages: tuple[StageRow, ...] = ()
    rank_rows: tuple[RankRow, ...] = ()
    configuration: tuple[Finding, ...] = ()
    provisional: bool = False
    reachable_img_s: float | None = None
    reachable_fix: str | None = None
    recoverable_gpu_hours_per_100: float | None = None
    fix_order_established: bool | None = None
    foreign_programs: tuple[ForeignProgram, ...] | None = None
    hot_functions: tuple[HotFunction, ...] = ()
    flame_charts: tuple[FlameChart, ...] = ()
    notes: tuple[Note, ...] = ()
    end: End | None = None
    gpu_scaling: float | None = None

    @property
    def primary(self) -> Finding | None:
        """The finding of the verdict, or None when no finding has its kind."""
        return next((finding for finding in self.findings if finding.kind == self.verdict), None)

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """The fixes of all findings and settings, each id once; the largest gain first, measured or else predicted, and fixes
        without one last."""
        first: dict[str, Fix] = {}
        for finding in (*self.findings, *self.configuration):
            for fix in finding.fixes:
                first.setdefault(fix.id, fix)
        return tuple(sorted(first.values(), key=lambda fix: -(fix.verified_change or fix.gain or 0.0)))

    @property
    def confidence_word(self) -> str:
        """The confidence in words: "high", "medium", "low", or "low, provisional"."""
        if self.provisional:
            return "low, provisional"
        return "high" if self.confidence >= 0.75 else "medium" if self.confidence >= 0.5 else "low"

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as a JSON-serialisable document."""
        return asdict(self)
