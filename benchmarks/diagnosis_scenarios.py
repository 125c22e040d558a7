"""Run `headrace diagnose` on jobs with one known fault each, and print what it said against what it should have said.

    python benchmarks/diagnosis_scenarios.py [--only NAME …] [--repeat N] [--cores-per-job 2] [--jobs 1] [--out page.md]

Each job runs on two cores of its own (taskset). A run on whose cores other programs took more than 10 % is void and
repeated, at most twice. Where a fix is predicted and can be tried, the job is run again with it, and the prediction is
set against the measured rate; error is predicted / measured - 1. With KEEP_SESSIONS=FOLDER in the environment the
sessions are kept there, and `--judge FOLDER` diagnoses them again after the rules have changed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

from headrace.diagnose import diagnose as diagnose_session
from headrace.session import Session

JOBS = Path(__file__).parent / "scenario_jobs.py"
NOISE_LIMIT = 0.10


@dataclass(frozen=True)
class Expected:
    """Accepted verdicts, verdicts that must not appear at all, and the fix to try: (id of the fix, job arguments)."""

    verdicts: tuple[str, ...]
    never: tuple[str, ...] = ()
    fix: str | None = None
    arguments: tuple[str, ...] = ()
    ranks: int = 1
    evidence: str = ""
    burners: int = 0


INPUT = ("STORAGE_LATENCY", "STORAGE_BANDWIDTH", "NETWORK", "CPU_PREP", "CPU_SATURATED", "NO_OVERLAP", "COLLATE_IPC")
STORAGE = ("STORAGE_LATENCY", "STORAGE_BANDWIDTH", "NETWORK")
CPU = ("CPU_PREP", "CPU_SATURATED", "CPU_UNEVEN", "CPU_OVERSUBSCRIBED")

EXPECTED: dict[str, Expected] = {
    "healthy": Expected(("COMPUTE_BOUND",), INPUT, "num_workers=", ("--num-workers", "{n}")),
    "near_the_knee": Expected(("COMPUTE_BOUND",), INPUT, evidence="faster than the model takes it"),
    "storage_latency": Expected(("STORAGE_LATENCY",), CPU, "num_workers=", ("--num-workers", "{n}")),
    "storage_bandwidth": Expected(("STORAGE_BANDWIDTH",), CPU, "num_workers=", ("--num-workers", "{n}")),
    "cold_files": Expected(("STORAGE_LATENCY", "STORAGE_BANDWIDTH"), CPU, "num_workers=", ("--num-workers", "{n}")),
    "no_workers": Expected(("NO_OVERLAP",), STORAGE, "num_workers=", ("--num-workers", "{n}")),
    "too_few_workers": Expected(("CPU_PREP",), STORAGE, "num_workers=", ("--num-workers", "{n}")),
    "heavy_augmentation": Expected(("CPU_SATURATED",), STORAGE, "num_workers=", ("--num-workers", "{n}")),
    "oversubscribed": Expected(("CPU_OVERSUBSCRIBED",), STORAGE, "num_workers=", ("--num-workers", "{n}")),
    "big_batches": Expected(("COLLATE_IPC",), (*STORAGE, "CPU_PREP")),
    "small_batches": Expected(("OVERHEAD_BOUND",), INPUT, "batch_size=", ("--batch-size", "{n}")),
    "syncing": Expected(("SYNC_BOUND",), ("COMPUTE_BOUND",), "remove_sync", ("--fixed",)),
    "checkpoints": Expected(("PERIODIC_STALL",), INPUT, "async_checkpoint", ("--fixed",), evidence="every 40 steps"),
    "garbage": Expected(("GC_PAUSE",), (*INPUT, "RANK_STRAGGLER"), "gc_freeze", ("--fixed",)),
    "straggler_loader": Expected(("RANK_STRAGGLER",), ("COMPUTE_BOUND",), ranks=2, evidence="slow in the loader"),
    "straggler_forward": Expected(("RANK_STRAGGLER",), ("COMPUTE_BOUND",), ranks=2, evidence="slow in forward"),
    "straggler_backward": Expected(("RANK_STRAGGLER",), ("COMPUTE_BOUND",), ranks=2, evidence="slow in backward"),
    "neighbours": Expected(("EXTERNAL_CPU",), ("COMPUTE_BOUND", *INPUT), burners=2),
    "leak": Expected(("MEMORY_GROWTH",), INPUT),
    "slow_epochs": Expected(("STARTUP",), ("COMPUTE_BOUND",)),
    "network": Expected(("NETWORK",), CPU),
}


@dataclass
class Row:
    """One run."""

    name: str
    verdict: str
    confidence: float
    right: bool
    violations: list[str]
    img_s: float | None
    fix: str = ""
    predicted: float | None = None
    interval: tuple[float, float] | None = None
    measured: float | None = None
    noise: str = ""
    void: bool = False
    missing: str = ""
    findings: list[str] = field(default_factory=list)

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1 if self.predicted and self.measured else None

    @property
    def covered(self) -> bool | None:
        """Whether the measured rate lies in the interval."""
        return None if not self.measured or not self.interval else self.interval[0] <= self.measured <= self.interval[1]


def command(name: str, expected: Expected, *arguments: str) -> list[str]:
    """The job as a person would start it."""
    if expected.ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(expected.ranks)]
        return [sys.executable, *launcher, str(JOBS), name, *arguments]
    return [sys.executable, str(JOBS), name, *arguments]


def diagnose(words: list[str], cores: list[int]) -> dict[str, Any]:
    """The JSON of one diagnosis on the given cores."""
    with tempfile.TemporaryDirectory() as folder:
        program = "import sys; from headrace.cli.main import main; sys.exit(main(sys.argv[1:]))"
        full = [sys.executable, "-c", program, "diagnose", "--json", "--no-report", "--out", f"{folder}/s", "--", *words]
        taskset = ["taskset", "-c", ",".join(map(str, cores))]
        done = subprocess.run([*taskset, *full], capture_output=True, text=True)
        if os.environ.get("KEEP_SESSIONS"):
            kept = Path(os.environ["KEEP_SESSIONS"]) / f"{words[-1]}-{time.time_ns()}"
            Path(f"{folder}/s").rename(kept)
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"{' '.join(words)}: no JSON\n{done.stderr[-2000:]}") from None
    return result


def run_once(name: str, cores: list[int], *, with_fix: bool) -> Row:
    """One diagnosis, and the job once more with the fix."""
    expected = EXPECTED[name]
    taskset = ["taskset", "-c", ",".join(map(str, cores))]
    loop = [*taskset, sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(loop) for _ in range(expected.burners)]
    try:
        result = diagnose(command(name, expected), cores)
    finally:
        for process in burners:
            process.kill()
            process.wait()
    row = judge(name, expected, result)
    fixes = [fix for found in result["findings"] for fix in found["fixes"]]
    fix = next((fix for fix in fixes if expected.fix and fix["id"].startswith(expected.fix)), None)
    if fix is not None and fix["predicted_img_s"] is not None and with_fix and row.right:
        number = fix["id"].partition("=")[2]
        after = diagnose(command(name, expected, *(word.format(n=number) for word in expected.arguments)), cores)
        row.fix, row.predicted, row.measured = fix["id"], fix["predicted_img_s"], after["img_s"]
        row.interval = tuple(fix["interval"])
    return row


def judge(name: str, expected: Expected, result: dict[str, Any]) -> Row:
    """Set a diagnosis against what it should have been."""
    kinds = [found["kind"] for found in result["findings"]]
    # A wrong cause may be named below the right one only when it explains little.
    strong = [found["kind"] for found in result["findings"] if (found["share"] or 0) >= 0.10]
    evidence = " ".join(words for found in result["findings"][:1] for words in found["evidence"])
    noise = result["noise"] or ""
    share = float(noise.rpartition("used ")[2].partition("%")[0]) / 100 if "used" in noise else 0.0
    return Row(
        name=name,
        verdict=result["verdict"],
        confidence=result["confidence"],
        right=result["verdict"] in expected.verdicts,
        violations=[kind for kind in expected.never if kind in strong],
        img_s=result["img_s"],
        noise=f"{share:.0%}",
        void=share > NOISE_LIMIT and not expected.burners,
        missing="" if expected.evidence in evidence else f"no {expected.evidence!r}",
        findings=kinds,
    )


def judge_saved(folder: Path) -> list[Row]:
    """Diagnose again the sessions that a run with KEEP_SESSIONS=FOLDER left, as the rules are today."""
    plain: dict[str, list[dict[str, Any]]] = {}
    tried: dict[tuple[str, ...], list[float | None]] = {}
    for session in sorted((Session.load(path) for path in folder.iterdir()), key=lambda item: item.started_at or 0.0):
        words = [word for word in session.command if not word.startswith("-m")]
        name = next((word for word in words if word in EXPECTED), None)
        if name is None:
            continue
        arguments = tuple(words[words.index(name) + 1 :])
        if arguments:
            tried.setdefault((name, *arguments), []).append(diagnose_session(session).img_s)
        else:
            plain.setdefault(name, []).append(diagnose_session(session).to_json())
    rows = []
    for name, results in plain.items():
        for result in results:
            row = judge(name, EXPECTED[name], result)
            fixes = [fix for found in result["findings"] for fix in found["fixes"]]
            for fix in fixes:
                number = fix["id"].partition("=")[2]
                arguments = tuple(word.format(n=number) for word in EXPECTED[name].arguments)
                measured = tried.get((name, *arguments))
                wanted = EXPECTED[name].fix
                if measured and wanted and fix["id"].startswith(wanted) and fix["predicted_img_s"]:
                    row.fix, row.predicted, row.measured = fix["id"], fix["predicted_img_s"], measured[0]
                    row.interval = tuple(fix["interval"])
                    measured.append(measured.pop(0))
            rows.append(row)
    return sorted(rows, key=lambda row: list(EXPECTED).index(row.name))


def table(rows: list[Row]) -> str:
    """The rows as Markdown, and the score."""
    lines = [
        "| job | expected | verdict | conf. | also | must not | fix | predicted | measured | error | in interval | noise |"
    ]
    lines.append("|" + "---|" * 12)
    for row in rows:
        expected = EXPECTED[row.name]
        mark = "void" if row.void else "" if row.right else "**wrong**"
        rate = f"{row.predicted:,.0f}" if row.predicted else ""
        measured = f"{row.measured:,.0f}" if row.measured else ""
        error = f"{row.error:+.0%}" if row.error is not None else ""
        covered = {True: "yes", False: "no", None: ""}[row.covered]
        also = " ".join(row.findings[1:3])
        cells = (
            row.name, " or ".join(expected.verdicts), f"{row.verdict} {mark} {row.missing}".strip(), f"{row.confidence:.2f}",
            also, " ".join(row.violations), row.fix, rate, measured, error, covered, row.noise,
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    valid = [row for row in rows if not row.void]
    errors = sorted(abs(row.error) for row in valid if row.error is not None)
    covers = [row.covered for row in valid if row.covered is not None]
    lines += ["", f"right: {sum(row.right for row in valid)} of {len(valid)} valid runs ({len(rows) - len(valid)} void)"]
    lines.append(f"must-not verdicts: {sum(bool(row.violations) for row in valid)}")
    if errors:
        p90 = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
        lines.append(
            f"prediction error: median {statistics.median(errors):.0%}, p90 {p90:.0%} over {len(errors)}; "
            f"interval covers {sum(covers)} of {len(covers)}"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the scenarios, several at a time where there are cores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=EXPECTED, default=list(EXPECTED))
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="scenarios at a time, each on its own cores")
    parser.add_argument("--cores-per-job", type=int, default=2)
    parser.add_argument("--no-fix", action="store_true", help="do not run the jobs again with the predicted fix")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="only diagnose the sessions kept there again")
    options = parser.parse_args()
    if options.judge:
        print(table(judge_saved(options.judge)))
        return
    usable = sorted(os.sched_getaffinity(0))
    free: Queue[list[int]] = Queue()
    for number in range(options.jobs):
        start = number * options.cores_per_job
        free.put(usable[start : start + options.cores_per_job] or usable)

    def one(name: str) -> Row:
        cores = free.get()
        try:
            for _ in range(3):
                row = run_once(name, cores, with_fix=not options.no_fix)
                if not row.void:
                    break
        finally:
            free.put(cores)
        print(f"{name}: {row.verdict} {'right' if row.right else 'WRONG'} {row.findings} noise {row.noise}", flush=True)
        return row

    begin_s = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(one, [name for _ in range(options.repeat) for name in options.only]))
    rows.sort(key=lambda row: list(EXPECTED).index(row.name))
    text = table(rows)
    print(text)
    print(f"{time.monotonic() - begin_s:.0f} s")
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
