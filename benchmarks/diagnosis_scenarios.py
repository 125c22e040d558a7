"""Run `headrace diagnose` on jobs with one known fault each, and compare its verdicts with the expected ones.

    python benchmarks/diagnosis_scenarios.py --keep FOLDER [--only NAME …] [--repeat N] [--traceml PROGRAM] [--write]

Each job runs on two cores of its own (taskset). A run is void if other programs took more than 10 % of its cores; it is then
repeated, at most twice. Where a fix is predicted and can be tried, the job runs again with it, and the prediction is compared
with the measured rate. The error is predicted / measured - 1. Every finished run is kept in FOLDER. Started again, the program
continues where it was stopped; with a larger N it adds runs. `--judge` runs nothing and judges the kept runs by the rules of
today. `--write` writes the results of all runs in FOLDER, and the pages.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import record
from headrace.diagnosis.diagnose import diagnose
from headrace.session.model import Session
from scenarios import baselines
from scenarios.judge import EXPECTED, NOISE_LIMIT, Expected, judge, judge_all, judge_run, noise_of, results

HERE = Path(__file__).parent
JOBS = HERE / "scenarios/jobs.py"

WATCHED = """
import os, subprocess, sys
from headrace.attach import sampler
if os.environ.get("SCENARIO_EMULATED"):
    def start(folder, pid):
        words = [sys.executable, os.environ["SCENARIO_SAMPLER"], str(folder), str(pid), str(os.getpid())]
        return subprocess.Popen([*words, os.environ["SCENARIO_EMULATED"]], stdin=subprocess.DEVNULL, start_new_session=True)
    sampler.start = start
from headrace.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""`headrace`, with the sampler that plays a part of the machine where a scenario wants it."""


def command(name: str, expected: Expected, *arguments: str) -> list[str]:
    """Return the command that starts the job, as a person would write it."""
    if expected.ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(expected.ranks)]
        return [sys.executable, *launcher, str(JOBS), name, *arguments]
    return [sys.executable, str(JOBS), name, *arguments]


def watched(words: list[str], cores: list[int], folder: Path, expected: Expected) -> None:
    """Run one job under `headrace diagnose` on the given cores; the session is in `folder`."""
    limit = ["--seconds", str(expected.seconds)] if expected.seconds is not None else []
    full = [sys.executable, "-c", WATCHED, "diagnose", "--json", "--no-report", "--out", str(folder), *limit, "--", *words]
    environment = {**os.environ, "SCENARIO_EMULATED": expected.emulated, "SCENARIO_SAMPLER": str(HERE / "scenarios/sampler.py")}
    with tempfile.TemporaryDirectory() as scratch:
        environment["SCENARIO_STATE"] = f"{scratch}/hot"
        environment["TMPDIR"] = scratch
        done = subprocess.run([*pinned(cores), *full], capture_output=True, text=True, env=environment)
    if not (folder / "diagnosis.json").exists():
        raise SystemExit(f"{' '.join(words)}: no diagnosis\n{done.stderr[-2000:]}")


def pinned(cores: list[int]) -> list[str]:
    """Return the beginning of a command line that runs on these cores."""
    return ["taskset", "-c", ",".join(map(str, cores))]


@contextmanager
def burning(count: int, cores: list[int]) -> Iterator[None]:
    """Run that many busy programs on these cores meanwhile."""
    burners = [subprocess.Popen([*pinned(cores), sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in burners:
            process.kill()
            process.wait()


def run_once(name: str, repeat: int, cores: list[int], folder: Path, options: argparse.Namespace, *, last: bool) -> bool:
    """Diagnose the job, and run it once more with the fix. `folder` is complete when it has run.json.

    Return False for a void run, unless it is the last try.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    expected = EXPECTED[name]
    with burning(expected.burners, cores):
        watched(command(name, expected), cores, folder / "plain", expected)
    saved: dict[str, Any] = json.loads((folder / "plain/diagnosis.json").read_text())
    run: dict[str, Any] = {"name": name, "repeat": repeat, "time_to_verdict_s": saved["time_to_verdict_s"], "fix": None}
    found = diagnose(Session.load(folder / "plain"))
    void = noise_of(found) > NOISE_LIMIT and not expected.stands_noise
    if void and not last:
        return False
    fix = next((fix for fix in found.fixes if expected.fix and fix.id.startswith(expected.fix)), None)
    right = judge(name, repeat, found).right
    if not options.no_fix and right and not void and (expected.after or (fix is not None and fix.predicted_img_s is not None)):
        number = fix.id.partition("=")[2] if fix is not None else ""
        arguments = [word.format(n=number) for word in expected.arguments]
        run["fix"] = fix.id if fix is not None else None
        with burning(expected.burners, cores):
            watched(command(name, expected, *arguments), cores, folder / "fixed", expected)
    if options.traceml and repeat == 0 and not expected.emulated and not expected.burners:
        run["traceml"] = baselines.traceml(options.traceml, JOBS, name, expected.ranks, pinned(cores))
    (folder / "run.json").write_text(json.dumps(run))
    return True


def run_until_valid(name: str, repeat: int, cores: list[int], options: argparse.Namespace) -> None:
    """Try the run several times at most, unless it exists already. The last try stays, void or not."""
    folder = options.keep / f"{name}-{repeat}"
    if (folder / "run.json").exists():
        return
    for attempt in range(options.tries):
        if run_once(name, repeat, cores, folder, options, last=attempt == options.tries - 1):
            break
    row = judge_run(folder)
    assert row is not None
    kinds = " ".join(found.kind for found in row.diagnosis.findings)
    word = "void" if row.void else "right" if row.right else "WRONG"
    print(f"{time.strftime('%H:%M:%S')} {name} {repeat}: {word}{row.missing}: {kinds}, noise {row.noise:.0%}", flush=True)


def main() -> None:
    """Run the missing scenarios, several at a time where there are cores, then judge all runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, required=True, metavar="FOLDER", help="where runs are kept, and looked for")
    parser.add_argument("--only", nargs="*", choices=EXPECTED, default=list(EXPECTED))
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="scenarios at a time, each on its own cores")
    parser.add_argument("--tries", type=int, default=3, help="at most, for a run that is void (default: 3)")
    parser.add_argument("--cores-per-job", type=int, default=2)
    parser.add_argument("--no-fix", action="store_true", help="do not run the jobs again with the predicted fix")
    parser.add_argument(
        "--traceml", type=Path, metavar="PROGRAM", help="run TraceML's `traceml` on the jobs of the first repeat"
    )
    parser.add_argument("--judge", action="store_true", help="run nothing")
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    options = parser.parse_args()
    usable = sorted(os.sched_getaffinity(0))
    free: Queue[list[int]] = Queue()
    for number in range(options.jobs):
        start = number * options.cores_per_job
        free.put(usable[start : start + options.cores_per_job] or usable)

    def one(task: tuple[str, int]) -> None:
        cores = free.get()
        try:
            run_until_valid(*task, cores, options)
        finally:
            free.put(cores)

    if not options.judge:
        options.keep.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(one, [(name, repeat) for repeat in range(options.repeat) for name in options.only]))
    found = record.document("diagnosis", ["torch", "traceml-ai"], settings={}, **results(judge_all(options.keep)))
    record.publish(found, save=options.write)


if __name__ == "__main__":
    main()
