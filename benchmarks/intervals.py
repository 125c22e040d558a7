"""Measure how often the 80 % intervals of `headrace diagnose` hold the later measurement, on a quiet machine and a busy one.

    python benchmarks/intervals.py --keep FOLDER [--repeat N] [--only JOB …] [--burners N …] [--judge] [--write]

Each job of `JOBS` runs on two cores under `headrace diagnose`, then once more with the fix that was predicted for it: N times
alone, and N times beside two busy programs on the same cores. An interval holds if the rate of the second run lies in it. A run
without busy programs is void if other programs took more than 10 % of its cores; it is then repeated, at most twice. A job
whose fix is not predicted has no interval, and counts as not held.

Every finished run is kept in FOLDER. Started again, the program continues where it was stopped. `--judge` runs nothing and
judges the kept runs by the rules of today. `--write` writes the results and the page. The 60 runs of the default take an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import record
from diagnosis_scenarios import burning, command, watched
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.measure import measure_ranks
from headrace.diagnosis.result.model import Diagnosis, Fix
from headrace.session.model import Session
from scenarios.judge import EXPECTED, NOISE_LIMIT, noise_of

JOBS = ("storage_latency", "no_workers", "too_few_workers", "garbage", "checkpoints")
"""Scenarios of different kinds whose fix an argument of the job applies (`Expected.fix`, `Expected.arguments`)."""

BURNERS = (0, 2)
WANTED = 44 / 60
"""The least share of intervals that hold: of 60 true intervals of 80 %, fewer than 44 hold by chance once in 13 times."""


def predicted(name: str, diagnosis: Diagnosis) -> Fix | None:
    """Return the fix of a job, if its rate was predicted."""
    start = EXPECTED[name].fix or ""
    return next((fix for fix in diagnosis.fixes if fix.id.startswith(start) and fix.interval is not None), None)


def steady_img_s(session: Session) -> float | None:
    """Return the images per second of the steady steps: what fixes are predicted for, whatever the verdict."""
    ranks = measure_ranks(session)
    return ranks[0].items / ranks[0].step_s if ranks and ranks[0].items else None


def run_once(name: str, burners: int, cores: list[int], folder: Path, *, last: bool) -> bool:
    """Diagnose a job, and run it again with its fix. `folder` is complete when it has run.json.

    Return False for a void run, unless it is the last try.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    expected = EXPECTED[name]
    with burning(burners, cores):
        watched(command(name, expected), cores, folder / "plain", expected)
        found = diagnose(Session.load(folder / "plain"))
        if noise_of(found) > NOISE_LIMIT and not burners and not last:
            return False
        fix = predicted(name, found)
        if fix is not None:
            arguments = [word.format(n=fix.id.partition("=")[2]) for word in expected.arguments]
            watched(command(name, expected, *arguments), cores, folder / "fixed", expected)
    run = {"job": name, "burners": burners, "fix": None if fix is None else fix.id}
    (folder / "run.json").write_text(json.dumps(run))
    return True


def judge(folder: Path) -> dict[str, Any] | None:
    """Return the row of a kept run by today's rules; None where it is not complete."""
    if not (folder / "run.json").exists():
        return None
    run: dict[str, Any] = json.loads((folder / "run.json").read_text())
    plain = Session.load(folder / "plain")
    found = diagnose(plain)
    noises, measured = [noise_of(found)], None
    if (folder / "fixed").exists():
        fixed = Session.load(folder / "fixed")
        noises.append(noise_of(diagnose(fixed)))
        measured = steady_img_s(fixed)
    fix = next((fix for fix in found.fixes if fix.id == run["fix"] and fix.interval is not None), None)
    low, high = fix.interval if fix is not None and fix.interval is not None else (None, None)
    held = measured is not None and low is not None and high is not None and low <= measured <= high
    return {
        "job": run["job"],
        "burners": run["burners"],
        "verdict": found.verdict,
        "confidence": found.confidence,
        "img_s": steady_img_s(plain),
        "fix": run["fix"],
        "predicted_img_s": None if fix is None else fix.predicted_img_s,
        "low_img_s": low,
        "high_img_s": high,
        "measured_img_s": measured,
        "held": held,
        "noise": max(noises),
        "void": not run["burners"] and max(noises) > NOISE_LIMIT,
    }


def results(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return all runs, and how many of the intervals held, in all and for each number of busy programs."""
    valid = [row for row in rows if not row["void"]]
    return {
        "runs": rows,
        "held": sum(row["held"] for row in valid),
        "valid": len(valid),
        "enough": bool(valid) and sum(row["held"] for row in valid) >= WANTED * len(valid),
        "beside": [
            {
                "burners": burners,
                "held": sum(row["held"] for row in valid if row["burners"] == burners),
                "valid": sum(row["burners"] == burners for row in valid),
            }
            for burners in sorted({row["burners"] for row in valid})
        ],
    }


def main() -> None:
    """Run the missing runs one after the other, then judge all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, required=True, metavar="FOLDER", help="where runs are kept, and looked for")
    parser.add_argument("--only", nargs="*", choices=JOBS, default=list(JOBS))
    parser.add_argument("--burners", nargs="*", type=int, default=list(BURNERS), help="busy programs beside (default: 0 2)")
    parser.add_argument("--repeat", type=int, default=6)
    parser.add_argument("--tries", type=int, default=3, help="at most, for a run that is void (default: 3)")
    parser.add_argument("--judge", action="store_true", help="run nothing")
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    options = parser.parse_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))[:2]
    runs = [(repeat, name, count) for repeat in range(options.repeat) for name in options.only for count in options.burners]
    for repeat, name, count in [] if options.judge else runs:
        folder = options.keep / f"{name}-{count}-{repeat}"
        if not (folder / "run.json").exists():
            any(run_once(name, count, cores, folder, last=attempt == options.tries - 1) for attempt in range(options.tries))
            print(time.strftime("%H:%M:%S"), folder.name, judge(folder), flush=True)
    rows = [row for path in sorted(options.keep.iterdir()) if path.is_dir() and (row := judge(path)) is not None]
    settings = {"jobs": list(JOBS), "repeat": options.repeat, "burners": options.burners}
    record.publish(record.document("intervals", ["torch"], settings=settings, **results(rows)), save=options.write)


if __name__ == "__main__":
    main()
