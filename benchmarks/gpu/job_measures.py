"""The measurements of whole jobs under headrace's commands: verdicts, the cost of watching, trials. Each returns its rows."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

import record
from headrace.trials.measuring.loaders import missing
from headrace.trials.measuring.runner import DROPPED, OTHER_WORK
from pages.gpu_trials import COMMAND
from trials import PACKAGES, part_of

from gpu.feed import utilisation
from gpu.measurements import TRIALS_FOLDER
from gpu.setting import Row, Run

__all__ = ["scenarios", "trials", "watching"]

JOB = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
kind, device, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
cuda = device.startswith("cuda")
class Data(Dataset):
    def __len__(self): return 1 << 20
    def __getitem__(self, index):
        if kind == "CPU_PREP":
            end = time.thread_time() + 0.004
            while time.thread_time() < end: pass
        side = 768 if kind == "H2D_BOUND" and cuda else 64
        return torch.ones(3, side, side), index % 10
if __name__ == "__main__":
    loader = iter(DataLoader(Data(), batch_size=32, num_workers=2, pin_memory=False))
    width = 2048 if kind == "COMPUTE_BOUND" and cuda else 32
    model = torch.nn.Sequential(torch.nn.Conv2d(3, width, 3, stride=4), torch.nn.ReLU(), torch.nn.Conv2d(width, 64, 3),
                                torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        images, labels = next(loader)
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if kind == "SYNC_BOUND":
            for _ in range(200): (loss * 2).item()
    import os; os._exit(0)
"""


def scenarios(run: Run) -> list[Row]:
    """Run a job for each cause under `headrace diagnose`, and compare the verdict, beside NVML's utilisation."""
    kinds = ("CPU_PREP",) if run.is_tiny else ("H2D_BOUND", "COMPUTE_BOUND", "SYNC_BOUND", "CPU_PREP")
    rows = []
    for kind in kinds:
        job = run.folder / f"job_{kind.lower()}.py"
        job.write_text(JOB)
        command = [sys.executable, "-m", "headrace", "diagnose", "--json", "--out", str(run.folder / f"session-{kind}"), "--"]
        command += [sys.executable, str(job), kind, run.device, "4" if run.is_tiny else "25"]
        with utilisation() as busy:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
        try:
            document = json.loads(done.stdout)
        except json.JSONDecodeError as error:
            raise SystemExit(f"diagnose of {kind} failed: {done.stderr[-500:]}") from error
        shares = document.get("share_of_step") or {}
        rows.append(
            {"expected": kind, "verdict": document["verdict"], "confidence": document.get("confidence"),
             "h2d_share": shares.get("h2d"), "compute_share": shares.get("compute"),
             "nvml_utilisation": statistics.median(busy) / 100 if busy else None}
        )  # fmt: skip
        run.note(rows)
    return rows


STEP = """
import json, statistics, sys, time, torch
from torch.utils.data import DataLoader, Dataset
out, device, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
cuda = device.startswith("cuda")
class Data(Dataset):
    def __len__(self): return 4 * steps
    def __getitem__(self, index): return torch.zeros(16)
weight = torch.randn(4096 if cuda else 256, 4096 if cuda else 256, device=device)
def work(count):
    value = weight
    for _ in range(count): value = (value @ weight).clamp_(-1, 1)
    return value
def timed(count):
    began = time.perf_counter(); work(count)
    if cuda: torch.cuda.synchronize()
    return time.perf_counter() - began
timed(3)
count = max(1, round(0.010 / (timed(20) / 20)))
ends = []
for batch in DataLoader(Data(), batch_size=4, num_workers=1):
    batch.to(device); float(work(count)[0, 0]); ends.append(time.perf_counter())
found = sorted(b - a for a, b in zip(ends[steps // 6:], ends[steps // 6 + 1:]))
json.dump(statistics.fmean(found[:round(0.98 * len(found))]), open(out, "w"))
"""


def watching(run: Run) -> list[Row]:
    """Time a real step of 10 ms alone and under `headrace diagnose`'s hooks and sampler, in turn."""
    from headrace.profiling.command import watch

    job, out, rows = run.folder / "step.py", run.folder / "step.json", []
    job.write_text(STEP)
    found: dict[str, list[float]] = {"alone": [], "watched": []}
    command = [sys.executable, str(job), str(out), run.device, "30" if run.is_tiny else "500"]
    for number in range(1 if run.is_tiny else 4):
        for name in ("alone", "watched")[:: 1 if number % 2 else -1]:
            if name == "alone":
                subprocess.run(command, check=True)
            else:
                watch(command, run.folder / f"watched-{number}")
            found[name].append(json.loads(out.read_text()))
    for name, values in found.items():
        median = statistics.median(values)
        rows.append({"what": name, "step_ms": 1e3 * median, "added": median / statistics.median(found["alone"]) - 1})
    return rows


#: Seconds that one measurement of a trial lasts. Two calls of nine minutes should then be enough for all cells (estimated).
TRIAL_S = 1.0

#: Seconds that the start, the table and the charts may take besides the cells.
CLOSING_S = 45


def trials(run: Run) -> list[Row]:
    """Run `headrace trials dali` for the time that there is; on a dry run one simulated cell.

    The cells that did not fit are an error; the next call goes on with them. The page has what was measured until then.
    """
    out = (run.kept or run.folder) / TRIALS_FOLDER
    command = [sys.executable, "-m", "headrace", "trials", "dali", "--json", "--out", str(out)]
    command += ["--budget-minutes", f"{max(1.0, run.limit_s - CLOSING_S) / 60:.2f}"]
    if run.is_tiny:
        command += ["--simulate", "v100", "--models", "resnet18", "--loads", "1", "--loaders", "headrace"]
        command += ["--mode", "corrected", "--seconds", "0.3"]
    else:
        command += ["--seconds", str(TRIAL_S)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        document = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise SystemExit(f"trials in {out} failed: {' '.join(done.stderr.split())[-500:]}") from error
    if "rows" not in document:
        raise SystemExit(f"trials in {out} failed: {document.get('error')}")
    if not run.is_tiny and document["simulate"] is not None:
        raise SystemExit("headrace trials finds no GPU (NVML, nvidia-smi) where torch finds one")
    lost = [row["error"] for row in document["rows"] if not _is_final(row)]
    wanted = ("loader", "model", "load", "mode", "img_s", "compute_img_s", "ingest_img_s")
    rows = [{name: row.get(name) for name in wanted} for row in document["rows"] if row["img_s"] is not None]
    if rows:
        packages = (*PACKAGES, "triton", "nvidia-dali-cuda120")
        parts = {"dali": part_of(document)}
        found = record.document("gpu-trials", packages, settings={"dropped": len(lost)}, experiments=parts)
        run.document("gpu-trials", found | {"command": COMMAND})
    if lost or not rows:
        run.note(rows)
        why = next((error for error in lost if error != DROPPED), "they did not fit into the time")
        raise SystemExit(f"{len(lost)} cells have no result yet ({why}); the same command goes on with them")
    return rows


def _is_final(row: Row) -> bool:
    """Return whether a cell has its result, or cannot have one: its loader is not here, or does other work."""
    error = row["error"]
    return error is None or error == missing(row["loader"], row["data"]) or error.startswith(OTHER_WORK)
