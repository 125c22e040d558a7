"""Measure what watching costs: CPU time and wall time per step, with the hooks, with sampled stacks, and without both.

    python benchmarks/attach_overhead.py [--rounds 12] [--steps 300] [--step-ms 20] [--write]

In each round one small job runs three times, in changing order: plain; with hooks and sampler, but without sampled stacks
(`HEADRACE_STACKS=0`); with all, as in `headrace diagnose`. The job has a tiny model, and a sleep in place of the accelerator,
so everything that watching adds makes a step longer. Each run gives the mean of its steps without the slowest 2 %: a median
would hide the stacks, which are sampled in every third step. The targets are 20 µs per step in the training thread, 1 % of the
wall time of a step in all, and 0.5 % for the stacks. `--hook-only` times the hook alone, in a loop in one process, and takes
the least.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import record
from headrace.attach.record.stacks import STACKS_VARIABLE
from headrace.profiling.command import watch

JOB = """
import json, statistics, sys, time, torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self): return STEPS * 4
    def __getitem__(self, index): return torch.zeros(16)

torch.set_num_threads(1)
model = torch.nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ends = []
for batch in DataLoader(Data(), batch_size=4, num_workers=1):
    optimizer.zero_grad(); model(batch).sum().backward(); optimizer.step()
    time.sleep(STEP_S)  # the accelerator
    ends.append((time.perf_counter(), time.thread_time(), time.process_time()))
def usual(i):
    steps = sorted(b[i] - a[i] for a, b in zip(ends[50:], ends[51:]))
    return statistics.fmean(steps[:round(0.98 * len(steps))])
json.dump(dict(zip(("wall_s", "cpu_s", "process_cpu_s"), map(usual, range(3)))), open(sys.argv[1], "w"))
"""


PLAIN, HOOKS, ALL = "plain", "hooks and sampler", "all"
VARIANTS = (PLAIN, HOOKS, ALL)
ORDERS = tuple(itertools.permutations(VARIANTS))
"""Every order, one after the other: none comes first more often, or after the same other one."""

PARTS = {"hooks and sampler": (PLAIN, HOOKS), "sampled stacks": (HOOKS, ALL), "in all": (PLAIN, ALL)}
"""What is added between which two variants."""


def measure(file: Path, out: Path, variant: str) -> dict[str, float]:
    """Run the job once; return its seconds per step."""
    command = [sys.executable, str(file), str(out)]
    if variant == PLAIN:
        subprocess.run(command, check=True)
    else:
        with tempfile.TemporaryDirectory() as folder:
            watch(command, Path(folder) / "session", env={STACKS_VARIABLE: "1" if variant == ALL else "0"})
    result: dict[str, float] = json.loads(out.read_text())
    return result


HOOK_ONLY = """
import tempfile, time, torch
from pathlib import Path
from headrace.attach.batches import steps
from headrace.attach.batches.iteration import Iteration
from headrace.attach.record.device_clock import CudaClock, StepClock
from headrace.attach.record.recorder import Recorder

class Iterator:
    _num_workers, _rcvd_idx, _task_info = 1, 0, {0: (0, 1)}

recorder = Recorder(Path(tempfile.mkdtemp()))
clock = StepClock(CudaClock(), steps.DEVICE_COLUMNS, lambda loader, row: recorder.row("steps", loader, row))
step_recorder = steps.StepRecorder(recorder, clock)
step_recorder.operators.done = True
iterator, batch = Iterator(), (torch.zeros(4, 16), torch.zeros(4))
iterator._headrace = Iteration(iterator, 0, 0, step_recorder.session)
timed = steps.timed_next(lambda self: batch, step_recorder)
least = 1e9
for _ in range(LOOPS):
    begin = time.thread_time()
    for _ in range(LOOP_STEPS):
        timed(iterator)
    least = min(least, (time.thread_time() - begin) / LOOP_STEPS)
assert not step_recorder.off
print(least * 1e6)
"""
LOOPS, LOOP_STEPS = 40, 500
WHAT = {"cpu_s": "CPU time of the training thread", "process_cpu_s": "CPU time of its process", "wall_s": "wall time"}


def main() -> None:
    """Alternate the variants and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--hook-only", action="store_true")
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    options = parser.parse_args()
    hook = subprocess.run(
        [sys.executable, "-c", f"LOOPS, LOOP_STEPS = {LOOPS}, {LOOP_STEPS}\n{HOOK_ONLY}"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    hook_us = float(hook.stdout.splitlines()[-1])
    if options.hook_only:
        print(f"the step hook alone: {hook_us:.1f} µs of CPU per step, writing the session included")
        return
    results: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.py"
        text = JOB.replace("STEPS", str(options.steps)).replace("STEP_S", str(options.step_ms / 1e3))
        file.write_text(text)
        for number in range(options.rounds):
            for variant in ORDERS[number % len(ORDERS)]:
                results[variant].append(measure(file, Path(folder) / "out.json", variant))
    settings = {
        "rounds": options.rounds,
        "steps": options.steps,
        "step_ms": options.step_ms,
        "loops": LOOPS,
        "loop_steps": LOOP_STEPS,
    }
    rows = [summarised(results, name, part) for name in WHAT for part in PARTS]
    found = record.document("attach_overhead", ["headrace", "torch"], settings=settings, hook_us=hook_us, rows=rows)
    record.publish(found, save=options.write)


def summarised(results: dict[str, list[dict[str, float]]], name: str, part: str) -> dict[str, Any]:
    """Return plain time per step, the median of the differences within a round, and its standard error."""
    without, with_part = (results[variant] for variant in PARTS[part])
    plain = statistics.median(run[name] for run in results[PLAIN])
    differences = [watched[name] - alone[name] for alone, watched in zip(without, with_part, strict=True)]
    more, error = statistics.median(differences), 1.25 * statistics.stdev(differences) / math.sqrt(len(differences))
    return {
        "what": WHAT[name],
        "part": part,
        "plain_us": plain * 1e6,
        "more_us": more * 1e6,
        "more_share": more / plain,
        "error_us": error * 1e6,
        "differences_us": [one * 1e6 for one in differences],
    }


if __name__ == "__main__":
    main()
