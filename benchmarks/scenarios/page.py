"""The scenarios: what each should be called; and the page that sets kept runs against that, with the rules of today.

A run folder is `NAME-REPEAT` with the session `plain`, where a fix was tried the session `fixed`, and `run.json`.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.model import Diagnosis
from headrace.session.model import Session

from scenarios import baselines

NOISE_LIMIT = 0.10


@dataclass(frozen=True)
class Expected:
    """One scenario. `number` is that of the list in the page's text; several jobs may share one.

    `verdicts` are accepted; those in `never` must not be named with a share of 10 % or more; `evidence` must be said by
    the verdict; `also` must be among the other findings. `fix`: id (or its beginning) of the fix that is tried, by
    the job's own `arguments`; `after`: the verdict then. `kind`: the coarse class, for tools that know only such.
    `emulated`: what `sampler.py` plays; `burners`: other programs started beside the job.
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


INPUT = ("STORAGE_LATENCY", "STORAGE_BANDWIDTH", "NETWORK", "CPU_PREP", "CPU_SATURATED", "NO_OVERLAP", "COLLATE_IPC")
STORAGE = ("STORAGE_LATENCY", "STORAGE_BANDWIDTH", "NETWORK")
CPU = ("CPU_PREP", "CPU_SATURATED", "CPU_UNEVEN", "CPU_OVERSUBSCRIBED")
WORKERS = ("--num-workers", "{n}")

EXPECTED: dict[str, Expected] = {
    "healthy": Expected(1, "compute", ("COMPUTE_BOUND",), INPUT, "num_workers=", WORKERS),
    "near_the_knee": Expected(2, "compute", ("COMPUTE_BOUND",), INPUT, evidence="faster than the model takes it"),
    "storage_latency": Expected(3, "input", ("STORAGE_LATENCY",), CPU, "num_workers=", WORKERS),
    "storage_bandwidth": Expected(4, "input", ("STORAGE_BANDWIDTH",), CPU, "num_workers=", WORKERS),
    "cold_files": Expected(5, "input", ("STORAGE_LATENCY", "STORAGE_BANDWIDTH"), CPU, "num_workers=", WORKERS),
    "no_workers": Expected(6, "input", ("NO_OVERLAP",), STORAGE, "num_workers=", WORKERS),
    "too_few_workers": Expected(7, "input", ("CPU_PREP",), STORAGE, "num_workers=", WORKERS),
    "heavy_augmentation": Expected(8, "input", ("CPU_SATURATED",), STORAGE, "num_workers=", WORKERS),
    "oversubscribed": Expected(9, "cpu", ("CPU_OVERSUBSCRIBED",), STORAGE, "num_workers=", WORKERS),
    "big_batches": Expected(10, "input", ("COLLATE_IPC",), (*STORAGE, "CPU_PREP")),
    "small_batches": Expected(11, "overhead", ("OVERHEAD_BOUND",), INPUT, "batch_size=", ("--batch-size", "{n}")),
    "syncing": Expected(12, "sync", ("SYNC_BOUND",), ("COMPUTE_BOUND",), "remove_sync", ("--fixed",)),
    "checkpoints": Expected(
        13, "pause", ("PERIODIC_STALL",), INPUT, "async_checkpoint", ("--fixed",), evidence="every 40 steps"
    ),
    "garbage": Expected(14, "pause", ("GC_PAUSE",), (*INPUT, "RANK_STRAGGLER"), "gc_freeze", ("--fixed",)),
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
}  # fmt: skip

STRETCH = 17
"""From this number on the list is the stretch part."""

TRACEML_KINDS = {
    "INPUT-BOUND": "input", "INPUT STRAGGLER": "rank", "COMPUTE STRAGGLER": "rank", "COMPUTE-BOUND": "compute",
    "RESIDUAL-HEAVY": "overhead", "MEMORY CREEP": "memory", "BALANCED": "compute", "NORMAL": "compute",
}  # fmt: skip
"""TraceML's words and the coarse class that they are taken for."""


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
    verdict_after_s: float | None = None
    beside: dict[str, str] = field(default_factory=dict)

    @property
    def void(self) -> bool:
        """Whether other programs took so much that the run says nothing; those of the scenario itself are meant to."""
        return self.noise > NOISE_LIMIT and not EXPECTED[self.name].burners

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1 if self.predicted and self.measured else None

    @property
    def covered(self) -> bool | None:
        """Whether the measured rate lies in the interval."""
        return None if not self.measured or not self.interval else self.interval[0] <= self.measured <= self.interval[1]


def noise_of(diagnosis: Diagnosis) -> float:
    """Share of the CPU that other programs took."""
    text = diagnosis.noise or ""
    return float(text.rpartition("used ")[2].partition("%")[0]) / 100 if "used" in text else 0.0


def judge(name: str, repeat: int, diagnosis: Diagnosis) -> Row:
    """Set a diagnosis against what it should have been."""
    expected = EXPECTED[name]
    strong = [found.kind for found in diagnosis.findings if (found.share or 0) >= 0.10]
    evidence = " ".join(words for found in diagnosis.findings[:1] for words in found.evidence)
    missing = [expected.evidence] if expected.evidence not in evidence else []
    if expected.also and expected.also not in [found.kind for found in diagnosis.findings]:
        missing.append(expected.also)
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
    """A kept run by today's rules; None where it is not complete."""
    if not (folder / "run.json").exists():
        return None
    run: dict[str, Any] = json.loads((folder / "run.json").read_text())
    session = Session.load(folder / "plain")
    row = judge(run["name"], run["repeat"], diagnose(session))
    row = replace(row, verdict_after_s=run["time_to_verdict_s"])
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


def judge_all(folder: Path) -> list[Row]:
    """All complete runs, in the order of the list."""
    rows = [row for path in sorted(folder.iterdir()) if path.is_dir() and (row := judge_run(path))]
    return sorted(rows, key=lambda row: (list(EXPECTED).index(row.name), row.repeat))


def page(rows: list[Row]) -> str:
    """Scores, the table of runs, and what the other tools said."""
    return "\n\n".join([score(rows), "## Every run\n\n" + table(rows), "## Other tools on the same jobs\n\n" + beside(rows)])


def score(rows: list[Row]) -> str:
    """The figures that the runs are made for."""
    valid = [row for row in rows if not row.void]
    lines = [f"- right: {sum(row.right for row in valid)} of {len(valid)} valid runs ({len(rows) - len(valid)} void)"]
    for repeat in sorted({row.repeat for row in rows}):
        wrong = {EXPECTED[row.name].number for row in valid if row.repeat == repeat and not row.right}
        seen = {EXPECTED[row.name].number for row in valid if row.repeat == repeat}
        first, stretch = ({n for n in seen if (n >= STRETCH) == late} for late in (False, True))
        lines.append(
            f"- repeat {repeat}: scenarios 1 to 16: {len(first - wrong)} of {len(first)} right; from 17 on: "
            f"{len(stretch - wrong)} of {len(stretch)}"
        )
    controls = [row for row in valid if row.name in ("healthy", "near_the_knee")]
    alarms = sum(len(row.diagnosis.findings) > 1 or not row.right for row in controls)
    lines.append(f"- false alarms on the two controls: {alarms} in {len(controls)} runs")
    lines.append(f"- must-not verdicts: {sum(bool(row.violations) for row in valid)}")
    errors = sorted(abs(row.error) for row in valid if row.error is not None)
    covers = [row.covered for row in valid if row.covered is not None]
    if errors:
        p90 = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
        lines.append(
            f"- prediction error: median {statistics.median(errors):.0%}, p90 {p90:.0%} over {len(errors)} fixes that were "
            f"tried; the interval covers {sum(map(bool, covers))} of {len(covers)}"
        )
    times = sorted(row.verdict_after_s for row in valid if row.verdict_after_s is not None)
    if times:
        lines.append(
            f"- first verdict while the job runs: median {statistics.median(times):.0f} s after the command was started, "
            f"longest {times[-1]:.0f} s ({len(times)} of {len(valid)} runs were long enough for one)"
        )
    return "\n".join(lines)


def table(rows: list[Row]) -> str:
    """One line for each run, as Markdown."""
    head = "job | verdict | conf. | also | must not | fix | predicted | measured | error | in interval | first verdict | noise"
    lines = [f"| # | {head} |", "|" + "---|" * 13]
    for row in rows:
        mark = " void" if row.void else "" if row.right else " **wrong**"
        cells = (
            str(EXPECTED[row.name].number), row.name, f"{row.diagnosis.verdict}{mark}{row.missing}",
            f"{row.diagnosis.confidence:.2f}", " ".join(found.kind for found in row.diagnosis.findings[1:3]),
            " ".join(row.violations), row.fix, f"{row.predicted:,.0f}" if row.predicted else "",
            f"{row.measured:,.0f}" if row.measured else "", f"{row.error:+.0%}" if row.error is not None else "",
            {True: "yes", False: "no", None: ""}[row.covered],
            f"{row.verdict_after_s:.0f} s" if row.verdict_after_s is not None else "", f"{row.noise:.0%}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def beside(rows: list[Row]) -> str:
    """The confusion matrix: job by job what each tool said, and how often that was the class and the cause."""
    chosen = {row.name: row for row in reversed([row for row in rows if not row.void])}
    lines = ["| job | class | headrace | TraceML | TensorBoard plugin | SageMaker's rules | PyTorch, Lightning |"]
    lines.append("|" + "---|" * 7)
    marked = asked = 0
    spoke: dict[str, int] = {}
    for name, expected in EXPECTED.items():
        if name not in chosen:
            continue
        row = chosen[name]
        said = row.beside.get("TraceML", "not run")
        if "TraceML" in row.beside:
            asked += 1
            marked += TRACEML_KINDS.get(said, "") == expected.kind
        for tool in ("TensorBoard", "SageMaker", "warnings"):
            spoke[tool] = spoke.get(tool, 0) + (row.beside[tool] != "nothing")
        verdict = row.diagnosis.verdict + ("" if row.right else " **wrong**")
        others = (row.beside["TensorBoard"], row.beside["SageMaker"], row.beside["warnings"])
        lines.append("| " + " | ".join((name, expected.kind, verdict, said, *others)) + " |")
    right = sum(row.right for row in chosen.values())
    lines += [
        "",
        f"headrace names the cause in {right} of {len(chosen)} jobs. TraceML names the class (not the cause within it) in "
        f"{marked} of the {asked} jobs it ran on. Of {len(chosen)} jobs, the TensorBoard rule speaks in "
        f"{spoke.get('TensorBoard', 0)}, SageMaker's rules in {spoke.get('SageMaker', 0)}, the warnings in "
        f"{spoke.get('warnings', 0)}; none of the three names a cause.",
    ]
    return "\n".join(lines)
