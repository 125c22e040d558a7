"""Measure what watching costs: CPU time of the training thread and wall time per step, with the hooks and without.

    python benchmarks/attach_overhead.py [--pairs 12] [--steps 300] [--step-ms 20] [--write]

Runs of one small job alternate between plain and attached (hooks and sampler, as in `headrace diagnose`). The job has a
tiny model, and a sleep in place of the accelerator, so everything that watching adds makes a step longer. Each run gives
the median of its steps. The targets are 20 µs per step in the training thread and 1 % of the wall time of a step.
`--hook-only` times the hook alone, in a loop in one process, and takes the least.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import record
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
    ends.append((time.perf_counter(), time.thread_time()))
wall, cpu = ([b[i] - a[i] for a, b in zip(ends[50:], ends[51:])] for i in (0, 1))
json.dump({"wall_s": statistics.median(wall), "cpu_s": statistics.median(cpu)}, open(sys.argv[1], "w"))
"""


def measure(file: Path, out: Path, *, attached: bool) -> dict[str, float]:
    """Run the job once; return its seconds per step."""
    command = [sys.executable, str(file), str(out)]
    if attached:
        with tempfile.TemporaryDirectory() as folder:
            watch(command, Path(folder) / "session")
    else:
        subprocess.run(command, check=True)
    result: dict[str, float] = json.loads(out.read_text())
    return result


HOOK_ONLY = """
import tempfile, time, torch
from pathlib import Path
from headrace.attach import steps
from headrace.attach.device_clock import CudaClock, StepClock
from headrace.attach.recorder import Recorder

class Iterator:
    _num_workers, _rcvd_idx, _task_info = 1, 0, {0: (0, 1)}

recorder = Recorder(Path(tempfile.mkdtemp()))
clock = StepClock(CudaClock(), steps.DEVICE_COLUMNS, lambda loader, row: recorder.row("steps", loader, row))
step_recorder = steps.StepRecorder(recorder, clock)
step_recorder.operators.done = True
iterator, batch = Iterator(), (torch.zeros(4, 16), torch.zeros(4))
iterator._headrace = steps._Iteration(0, 0, step_recorder.session)
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
WHAT = {"cpu_s": "CPU time of the training thread", "wall_s": "wall time"}


def main() -> None:
    """Alternate plain and attached runs and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=12)
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
    results: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.py"
        text = JOB.replace("STEPS", str(options.steps)).replace("STEP_S", str(options.step_ms / 1e3))
        file.write_text(text)
        for pair in range(options.pairs):
            for attached in (False, True) if pair % 2 == 0 else (True, False):
                results[attached].append(measure(file, Path(folder) / "out.json", attached=attached))
    settings = {
        "pairs": options.pairs,
        "steps": options.steps,
        "step_ms": options.step_ms,
        "loops": LOOPS,
        "loop_steps": LOOP_STEPS,
    }
    rows = [summarised(results, name, what) for name, what in WHAT.items()]
    found = record.document("attach_overhead", ["headrace", "torch"], settings=settings, hook_us=hook_us, rows=rows)
    record.publish(found, save=options.write)


def summarised(results: dict[bool, list[dict[str, float]]], name: str, what: str) -> dict[str, Any]:
    """Return plain time per step, the median of the pairs' differences, and its standard error."""
    plain = statistics.median(run[name] for run in results[False])
    differences = [watched[name] - alone[name] for alone, watched in zip(results[False], results[True], strict=True)]
    more, error = statistics.median(differences), 1.25 * statistics.stdev(differences) / math.sqrt(len(differences))
    return {
        "what": what,
        "plain_us": plain * 1e6,
        "more_us": more * 1e6,
        "more_share": more / plain,
        "error_us": error * 1e6,
        "differences_us": [one * 1e6 for one in differences],
    }


if __name__ == "__main__":
    main()
