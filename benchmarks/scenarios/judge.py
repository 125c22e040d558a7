"""The scenarios, the verdict that each should get, and the score of kept runs by the rules of today.

A run folder is `NAME-REPEAT` with the session `plain`, where a fix was tried the session `fixed`, and `run.json`.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.kinds import KINDS
from headrace.diagnosis.result.model import Diagnosis
from headrace.diagnosis.rules.standstill import open_standstill
from headrace.session.model import Session

from scenarios import baselines

NOISE_LIMIT = 0.10


HEALTHY = "healthy"
"""Kind of the jobs that look for minutes as if they stood still."""


@dataclass(frozen=True)
class Expected:
    """One scenario. Several jobs may share one `number`.

    `verdicts` are accepted; those in `never` must not be named with a share of 10 % or more; `evidence` must stand in the
    verdict's evidence; `also` must be among the other findings. `fix`: id (or its beginning) of the fix that is tried, by
    the job's own `arguments`; `after`: the verdict then. `kind`: the coarse class, for tools that know only such.
    `emulated`: what `sampler.py` emulates; `burners`: other programs started beside the job. `offered`, `withheld`: fix ids
    (or their beginnings) that must and must not be proposed. `provisional`: the verdict must be marked so, with a confidence of
    at most a half. `seconds`: the command is ended after so many. `end`: kind of the command's end. `said`: words that must
    stand in the summary, or in the end's text.
    """

    number: int
    kind: str
    verdicts: tuple[str, ...]
    never: tuple[str, ...] = ()
    fix: str | None = None
    arguments: tuple[str, ...] = ()
    after: str = ""
    ranks: int = 1
    evidence: str = ""
    also: str = ""
    burners: int = 0
    emulated: str = ""
    offered: str = ""
    withheld: str = ""
    provisional: bool = False
    seconds: int | None = None
    end: str = ""
    said: str = ""

    @property
    def stands_noise(self) -> bool:
        """Whether the answer must be right whatever other programs take."""
        return bool(self.burners) or self.kind in ("hang", "end", HEALTHY)


INPUT = ("STORAGE_LATENCY", "STORAGE_BANDWIDTH", "NETWORK", "CPU_PREP", "CPU_SATURATED", "NO_OVERLAP", "COLLATE_IPC")
STORAGE = ("STORAGE_LATENCY", "STORAGE_BANDWIDTH", "NETWORK")
CPU = ("CPU_PREP", "CPU_SATURATED", "CPU_UNEVEN", "CPU_OVERSUBSCRIBED")
WORKERS = ("--num-workers", "{n}")

ANY = tuple(kind.name for kind in KINDS.values() if kind.name != "HANG")

EXPECTED: dict[str, Expected] = {
    "healthy": Expected(1, "compute", ("COMPUTE_BOUND",), INPUT, "num_workers=", WORKERS),
    "near_the_knee": Expected(2, "compute", ("COMPUTE_BOUND",), INPUT, evidence="faster than the model takes it"),
    "storage_latency": Expected(3, "input", ("STORAGE_LATENCY",), CPU, "num_workers=", WORKERS),
    "storage_bandwidth": Expected(4, "input", ("STORAGE_BANDWIDTH",), CPU, "num_workers=", WORKERS),
    "cold_files": Expected(5, "input", ("STORAGE_LATENCY", "STORAGE_BANDWIDTH"), CPU, "num_workers=", WORKERS),
    "no_workers": Expected(6, "input", ("NO_OVERLAP",), STORAGE, "num_workers=", WORKERS),
    "too_few_workers": Expected(7, "input", ("CPU_PREP",), STORAGE, "num_workers=", WORKERS),
    "slow_transform": Expected(7, "input", ("CPU_PREP",), STORAGE, evidence="GaussianBlur takes"),
    "heavy_augmentation": Expected(8, "input", ("CPU_SATURATED",), STORAGE, "num_workers=", WORKERS),
    "oversubscribed": Expected(9, "cpu", ("CPU_OVERSUBSCRIBED",), STORAGE, "num_workers=", WORKERS),
    "big_batches": Expected(10, "input", ("COLLATE_IPC",), (*STORAGE, "CPU_PREP")),
    "small_batches": Expected(11, "overhead", ("OVERHEAD_BOUND",), INPUT, "batch_size=", ("--batch-size", "{n}")),
    "syncing": Expected(12, "sync", ("SYNC_BOUND",), ("COMPUTE_BOUND",), "remove_sync", ("--fixed",)),
    "checkpoints": Expected(
        13, "pause", ("PERIODIC_STALL",), INPUT, "async_checkpoint", ("--fixed",), evidence="every 40 steps"
    ),
    "garbage": Expected(14, "pause", ("GC_PAUSE",), (*INPUT, "RANK_STRAGGLER"), "remove_gc_collect", ("--fixed",)),
    "straggler_loader": Expected(
        15, "rank", ("RANK_STRAGGLER",), ("COMPUTE_BOUND",), ranks=2, evidence="slow in the loader"
    ),
    "straggler_forward": Expected(15, "rank", ("RANK_STRAGGLER",), ("COMPUTE_BOUND",), ranks=2, evidence="slow in forward"),
    "straggler_backward": Expected(15, "rank", ("RANK_STRAGGLER",), ("COMPUTE_BOUND",), ranks=2, evidence="slow in backward"),
    "hot_device": Expected(16, "machine", ("THERMAL_THROTTLE",), ("COMPUTE_BOUND", *INPUT), emulated="heat"),
    "neighbours": Expected(16, "machine", ("EXTERNAL_CPU",), ("COMPUTE_BOUND", *INPUT), burners=2),
    "quota": Expected(16, "machine", ("CPU_QUOTA",), ("COMPUTE_BOUND", *INPUT), emulated="quota"),
    "leak": Expected(17, "memory", ("MEMORY_GROWTH",), INPUT),
    "slow_epochs": Expected(18, "start", ("STARTUP",), ("COMPUTE_BOUND",)),
    "slow_start": Expected(19, "start", ("STARTUP",), INPUT, evidence="downloading"),
    "mixed": Expected(
        20, "input", ("STORAGE_BANDWIDTH",), CPU, "", ("--fixed",), after="GC_PAUSE", also="GC_PAUSE"
    ),
    "network": Expected(21, "input", ("NETWORK",), CPU),
    "uneven": Expected(22, "cpu", ("CPU_UNEVEN",), STORAGE),
    "communication": Expected(23, "rank", ("COMMUNICATION",), ("COMPUTE_BOUND", "RANK_STRAGGLER"), ranks=2),
    "pool_contention": Expected(
        24, "cpu", ("CPU_OVERSUBSCRIBED",), STORAGE, "threads=", ("--threads", "{n}"),
        evidence="threads without a core", burners=2,
    ),
    "pool_of_one": Expected(25, "machine", ("EXTERNAL_CPU", "NO_OVERLAP"), ("CPU_OVERSUBSCRIBED", *STORAGE), burners=2),
    "sleeping_source": Expected(24, "input", ("NO_OVERLAP",), (*STORAGE, "EXTERNAL_CPU"), evidence="cause not seen"),
    "sleeping_source_busy": Expected(
        24, "input", ("NO_OVERLAP", "EXTERNAL_CPU"), (*STORAGE, "COMPUTE_BOUND"), also="NO_OVERLAP", burners=2
    ),
    "hog": Expected(25, "machine", ("EXTERNAL_CPU",), INPUT, evidence="python", burners=2),
    "few_steps": Expected(26, "input", ("NO_OVERLAP",), STORAGE, withheld="headrace_run", provisional=True),
    "refused_images": Expected(
        27, "input", ("NO_OVERLAP", "CPU_PREP"), STORAGE, offered="num_workers=", withheld="headrace_run"
    ),
    "folder_images": Expected(27, "input", ("NO_OVERLAP", "CPU_PREP"), STORAGE, offered="headrace_run"),
    "hang_lock": Expected(28, "hang", ("HANG",), seconds=70, said="waits for the lock cache_lock"),
    "hang_store": Expected(28, "hang", ("HANG",), seconds=70, said="waits for an answer from the network"),
    "hang_queue": Expected(28, "hang", ("HANG",), seconds=70, said="waits for room in a queue"),
    "hang_rank": Expected(28, "hang", ("HANG",), ranks=2, seconds=70, said="waits in"),
    "killed_worker": Expected(29, "end", ANY, ("HANG",), end="worker_killed", said="SIGKILL"),
    "bad_record": Expected(29, "end", ANY, ("HANG",), end="worker_error", said="record 400 has no label"),
    "nan_loss": Expected(29, "end", ANY, ("HANG",), end="nan"),
    "long_validation": Expected(30, HEALTHY, ANY, ("HANG",)),
    "long_first_step": Expected(30, HEALTHY, ANY, ("HANG",)),
    "slow_checkpoint": Expected(30, HEALTHY, ANY, ("HANG",)),
    "cold_store": Expected(30, HEALTHY, ANY, ("HANG",)),
    "slow_sampler": Expected(
        31, "input", ("IN_NEXT",), (*STORAGE, *CPU, "COLLATE_IPC"), "shorter_next", ("--fixed",), evidence="Draws.draw"
    ),
    "slow_sampler_no_workers": Expected(31, "input", ("IN_NEXT",), STORAGE, evidence="Draws.draw"),
    "slow_collate": Expected(32, "input", ("COLLATE_IPC",), (*STORAGE, *CPU), evidence="gather"),
    "slow_collate_no_workers": Expected(
        32, "input", ("NO_OVERLAP",), (*STORAGE, *CPU), "num_workers=", WORKERS, evidence="gather"
    ),
    "odd_batches": Expected(33, "input", ("COLLATE_IPC",), STORAGE),
    "held_lock": Expected(34, "input", ("GIL_HELD",), (*STORAGE, *CPU, "COLLATE_IPC"), evidence="keep_statistics"),
    "released_lock": Expected(35, "compute", ("COMPUTE_BOUND",), ("GIL_HELD", *INPUT)),
    "new_iterators": Expected(36, "input", ("NEW_ITERATORS",), (*STORAGE, *CPU), "keep_iterator", ("--fixed",)),
    "tracker": Expected(
        37, "script", ("SCRIPT_BOUND",), ("COMPUTE_BOUND", *INPUT), "less_often", ("--fixed",), said="post_metrics"
    ),
    "pictures": Expected(37, "script", ("SCRIPT_BOUND",), ("OVERHEAD_BOUND", *INPUT), said="draw_picture"),
    "validation": Expected(
        37, "script", ("SCRIPT_BOUND", "PERIODIC_STALL"), ("COMPUTE_BOUND", *INPUT), evidence="every 40 steps"
    ),
    "collects": Expected(
        38, "pause", ("GC_PAUSE",), ("SCRIPT_BOUND", *INPUT), "remove_gc_collect", ("--fixed",), said="beside.py"
    ),
    "waits_in_the_loop": Expected(39, "compute", ("COMPUTE_BOUND",), ("SCRIPT_BOUND", *INPUT)),
    "rare_log": Expected(39, "compute", ("COMPUTE_BOUND",), ("SCRIPT_BOUND", *INPUT)),
    "copied_labels": Expected(40, "memory", STORAGE, CPU, also="MEMORY_GROWTH", withheld="num_workers="),
    "labels_in_an_array": Expected(40, "input", STORAGE, ("MEMORY_GROWTH",), offered="num_workers="),
    "held_lock_in_steps": Expected(
        41, "script", ("GIL_IN_STEP",), (*STORAGE, *CPU), "own_process", ("--fixed",), said="keep_statistics"
    ),
    "released_lock_in_steps": Expected(41, "compute", ("COMPUTE_BOUND", "OVERHEAD_BOUND"), ("GIL_IN_STEP", "GIL_HELD", *INPUT)),
    "growing_bank": Expected(42, "script", ("GROWING_STEP",), INPUT, said="longer and longer"),
    "bounded_bank": Expected(42, "compute", ("COMPUTE_BOUND",), ("GROWING_STEP", *INPUT)),
    "compressed": Expected(43, "input", ("NO_OVERLAP",), STORAGE, evidence="decompressing", withheld="headrace_run"),
    "single_numbers": Expected(44, "input", ("NO_OVERLAP",), STORAGE, evidence="single Python numbers"),
}  # fmt: skip

STRETCH = 17
"""The scenarios from this number on are the stretch part."""

TRACEML_KINDS = {
    "INPUT-BOUND": "input", "INPUT STRAGGLER": "rank", "COMPUTE STRAGGLER": "rank", "COMPUTE-BOUND": "compute",
    "RESIDUAL-HEAVY": "overhead", "MEMORY CREEP": "memory", "BALANCED": "compute", "NORMAL": "compute",
}  # fmt: skip
"""The coarse class that each of TraceML's answers counts as."""


@dataclass
class Row:
    """One run, judged."""

    name: str
    repeat: int
    diagnosis: Diagnosis
    noise: float
    right: bool
    violations: list[str]
    missing: str = ""
    fix: str = ""
    predicted: float | None = None
    interval: tuple[float, float] | None = None
    measured: float | None = None
    duration_s: float = 0.0
    verdict_after_s: float | None = None
    beside: dict[str, str] = field(default_factory=dict)

    @property
    def void(self) -> bool:
        """Whether other programs, which the scenario did not start itself, took so much CPU that the run is void."""
        return self.noise > NOISE_LIMIT and not EXPECTED[self.name].stands_noise

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1 if self.predicted and self.measured else None

    @property
    def covered(self) -> bool | None:
        """Whether the measured rate lies in the interval."""
        return None if not self.measured or not self.interval else self.interval[0] <= self.measured <= self.interval[1]


def noise_of(diagnosis: Diagnosis) -> float:
    """Return the share of the CPU that other programs took."""
    text = diagnosis.noise or ""
    return float(text.rpartition("used ")[2].partition("%")[0].strip(" <")) / 100 if "used" in text else 0.0


def judge(name: str, repeat: int, diagnosis: Diagnosis) -> Row:
    """Compare a diagnosis with the expected one."""
    expected = EXPECTED[name]
    strong = [found.kind for found in diagnosis.findings if (found.share or 0) >= 0.10]
    evidence = " ".join(words for found in diagnosis.findings[:1] for words in found.evidence)
    missing = [expected.evidence] if expected.evidence not in evidence else []
    if expected.also and expected.also not in [found.kind for found in diagnosis.findings]:
        missing.append(expected.also)
    fixes = [fix.id for fix in diagnosis.fixes]
    if expected.offered and not any(fix.startswith(expected.offered) for fix in fixes):
        missing.append(expected.offered)
    if expected.withheld and any(fix.startswith(expected.withheld) for fix in fixes):
        missing.append(f"without {expected.withheld}")
    end = diagnosis.end
    if expected.end and (end is None or end.kind != expected.end):
        missing.append(f"end {expected.end}")
    if expected.said and expected.said not in f"{diagnosis.summary} {end.text if end is not None else ''}":
        missing.append(expected.said)
    if expected.provisional and not (diagnosis.provisional and diagnosis.confidence <= 0.5):
        missing.append("provisional")
    return Row(
        name,
        repeat,
        diagnosis,
        noise_of(diagnosis),
        right=diagnosis.verdict in expected.verdicts and not missing,
        violations=[kind for kind in expected.never if kind in strong],
        missing="".join(f" (no {words!r})" for words in missing),
    )


def judge_run(folder: Path) -> Row | None:
    """Judge a kept run by today's rules. Return None where it is not complete."""
    if not (folder / "run.json").exists():
        return None
    run: dict[str, Any] = json.loads((folder / "run.json").read_text())
    session = Session.load(folder / "plain")
    row = judge(run["name"], run["repeat"], diagnose(session))
    row = replace(row, verdict_after_s=run["time_to_verdict_s"], duration_s=session.duration_s or 0.0)
    if EXPECTED[row.name].kind == HEALTHY and was_hang(session):
        row.violations.append("HANG while it ran")
    row.beside = {
        "TensorBoard": baselines.tensorboard(session),
        "SageMaker": baselines.sagemaker(session),
        "warnings": baselines.warnings(session),
        **({"TraceML": run["traceml"]} if run.get("traceml") else {}),
    }
    if (folder / "fixed").exists():
        expected = EXPECTED[row.name]
        after = diagnose(Session.load(folder / "fixed"))
        fix = next((fix for fix in row.diagnosis.fixes if fix.id == run["fix"]), None)
        if fix is not None:
            row.fix, row.predicted, row.interval, row.measured = fix.id, fix.predicted_img_s, fix.interval, after.img_s
        if expected.after and after.verdict != expected.after:
            row.right, row.missing = False, f"{row.missing} (then {after.verdict}, not {expected.after})"
    return row


def was_hang(session: Session) -> bool:
    """Return whether the rule, asked after any sample of a standstill, would have called it a hang while the job ran."""
    for found in session.standstills:
        for count, sample in enumerate(found.samples, 1):
            until = replace(found, samples=found.samples[:count], over=False)
            steps = tuple(step for step in session.steps if step.start_s <= found.since_s)
            running = replace(session, standstills=(until,), steps=steps, duration_s=sample.time_s, exit_code=None)
            judged = open_standstill(running)
            if judged is not None and judged.hangs:
                return True
    return False


def judge_all(folder: Path) -> list[Row]:
    """Return all complete runs, in the order of EXPECTED."""
    rows = [row for path in sorted(folder.iterdir()) if path.is_dir() and (row := judge_run(path))]
    return sorted(rows, key=lambda row: (list(EXPECTED).index(row.name), row.repeat))


def results(rows: list[Row]) -> dict[str, Any]:
    """Return score, runs and the other tools' answers, as the page of the diagnosis reads them."""
    return {"score": score(rows), "runs": list(map(run_facts, rows)), "others": others(rows)}


def score(rows: list[Row]) -> dict[str, Any]:
    """Return the figures that the runs are made for."""
    valid = [row for row in rows if not row.void]
    controls = [row for row in valid if row.name in ("healthy", "near_the_knee")]
    return {
        "right": sum(row.right for row in valid),
        "valid": len(valid),
        "void": len(rows) - len(valid),
        "repeats": [repeat_score(valid, repeat) for repeat in sorted({row.repeat for row in rows})],
        "false_alarms": sum(len(row.diagnosis.findings) > 1 or not row.right for row in controls),
        "control_runs": len(controls),
        "healthy_minutes": sum(row.duration_s for row in valid if EXPECTED[row.name].kind == HEALTHY) / 60,
        "false_hangs": sum(bool(row.violations) for row in valid if EXPECTED[row.name].kind == HEALTHY),
        "must_not": sum(bool(row.violations) for row in valid),
        "prediction": prediction_score(valid),
        "first_verdict": first_verdict_score(valid),
    }


def repeat_score(valid: list[Row], repeat: int) -> dict[str, int]:
    """Return how many scenarios of one repeat were right: the list's first part, and its stretch part."""
    wrong = {EXPECTED[row.name].number for row in valid if row.repeat == repeat and not row.right}
    seen = {EXPECTED[row.name].number for row in valid if row.repeat == repeat}
    first, stretch = ({n for n in seen if (n >= STRETCH) == late} for late in (False, True))
    return {
        "repeat": repeat,
        "first": len(first - wrong),
        "of_first": len(first),
        "stretch": len(stretch - wrong),
        "of_stretch": len(stretch),
    }


def prediction_score(valid: list[Row]) -> dict[str, Any] | None:
    """Return error and coverage of the predictions that were tried; None where there is none."""
    errors = sorted(abs(row.error) for row in valid if row.error is not None)
    covers = [row.covered for row in valid if row.covered is not None]
    if not errors:
        return None
    return {
        "median_error": statistics.median(errors),
        "p90_error": errors[min(len(errors) - 1, int(0.9 * len(errors)))],
        "fixes": len(errors),
        "covered": sum(map(bool, covers)),
        "intervals": len(covers),
    }


def first_verdict_score(valid: list[Row]) -> dict[str, Any] | None:
    """Return when the first verdict came; None where no run was long enough for one."""
    times = sorted(row.verdict_after_s for row in valid if row.verdict_after_s is not None)
    return {"median_s": statistics.median(times), "longest_s": times[-1], "runs": len(times)} if times else None


def run_facts(row: Row) -> dict[str, Any]:
    """Return the row of one run."""
    return {
        "number": EXPECTED[row.name].number,
        "job": row.name,
        "verdict": row.diagnosis.verdict,
        "confidence": row.diagnosis.confidence,
        "also": [found.kind for found in row.diagnosis.findings[1:3]],
        "must_not": row.violations,
        "fix": row.fix,
        "predicted_img_s": row.predicted,
        "measured_img_s": row.measured,
        "error": row.error,
        "in_interval": row.covered,
        "verdict_after_s": row.verdict_after_s,
        "noise": row.noise,
        "void": row.void,
        "right": row.right,
        "missing": row.missing,
    }


def others(rows: list[Row]) -> dict[str, Any]:
    """Return what each tool said about each job, and how often that was the class and the cause."""
    chosen = {row.name: row for row in reversed([row for row in rows if not row.void])}
    chosen = {name: chosen[name] for name in EXPECTED if name in chosen}
    answered = {name: row.beside["TraceML"] for name, row in chosen.items() if "TraceML" in row.beside}
    silent = ("TensorBoard", "SageMaker", "warnings")
    return {
        "jobs": [
            {
                "job": name,
                "class": EXPECTED[name].kind,
                "headrace": row.diagnosis.verdict,
                "right": row.right,
                "TraceML": answered.get(name),
                **{tool: row.beside[tool] for tool in silent},
            }
            for name, row in chosen.items()
        ],
        "named": sum(row.right for row in chosen.values()),
        "of": len(chosen),
        "traceml_class": sum(TRACEML_KINDS.get(said, "") == EXPECTED[name].kind for name, said in answered.items()),
        "traceml_of": len(answered),
        "spoke": {tool: sum(row.beside[tool] != "nothing" for row in chosen.values()) for tool in silent},
    }
