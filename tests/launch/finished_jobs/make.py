"""Make the documents of finished jobs from local jobs whose truth is known.

    python tests/launch/finished_jobs/make.py PHOTOS [NAME ...]

`headrace.launch.local` runs `job.py` in the container's contract. Its description becomes describe.json, its meter becomes
CloudWatch's metrics and the Debugger's files. Times are stretched: one second of the local job becomes thirty, so that 40
seconds give 20 points of a minute. Other programs may have had the cores: a thread that was always ready to run counts as a
core, as on an instance of its own. truth.json holds the verdict that the job was built to deserve.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.cost.market.prices import PriceTable
from headrace.launch.job_request.request import Channel, TrainingJob, build_request
from headrace.launch.local.job import run_local
from headrace.launch.local.store import LocalStore

HERE = Path(__file__).parent
STRETCH = 30.0
FINE_S = 15.0
CORES = 4
"""Of the instance types below."""

HEALTHY = {"gpu-ms": 120.0, "workers": 1}
SATURATED = {"gpu-ms": 5.0, "workers": 4, "repeat": 3}
ONE_WORKER = {"gpu-ms": 10.0, "workers": 1, "repeat": 3}
SLOW_STORE = {"gpu-ms": 30.0, "workers": 2, "latency-ms": 80.0}

JOBS: dict[str, dict[str, Any]] = {
    "healthy": {"truth": "COMPUTE_BOUND", "options": HEALTHY},
    "healthy-debugger": {"truth": "COMPUTE_BOUND", "options": HEALTHY, "debugger": True},
    "cpu-saturated": {"truth": "CPU_SATURATED", "options": SATURATED},
    "cpu-saturated-debugger": {"truth": "CPU_SATURATED", "options": SATURATED, "debugger": True, "timeline": True},
    "one-worker": {"truth": "CPU_PREP", "options": ONE_WORKER},
    "slow-store": {"truth": "STORAGE_LATENCY", "options": SLOW_STORE},
    "slow-store-two-hosts": {"truth": "STORAGE_LATENCY", "options": SLOW_STORE, "count": 2},
    "long-start": {"truth": "STARTUP", "options": {**HEALTHY, "start-s": 25.0}, "seconds": 25},
    "long-download": {"truth": "STARTUP", "options": HEALTHY, "download_s": 20.0, "seconds": 25},
    "interrupted": {"truth": "COMPUTE_BOUND", "options": HEALTHY, "interruptions": (9.0, 9.0, 9.0)},
    "python-between-steps": {"truth": "OVERHEAD_BOUND", "options": {"gpu-ms": 20.0, "python-ms": 60.0}, "timeline": True},
    "python-between-steps-curves-only": {"truth": "OVERHEAD_BOUND", "options": {"gpu-ms": 20.0, "python-ms": 60.0}},
    "gpu-unused": {"truth": "INSUFFICIENT_DATA", "options": {"python-ms": 60.0}},
    "no-gpu": {"truth": "INSUFFICIENT_DATA", "options": {"python-ms": 60.0}, "instance": "ml.m5.xlarge"},
    "no-metrics": {"truth": "INSUFFICIENT_DATA", "options": HEALTHY, "without": ("metrics.json",)},
    "no-gpu-metrics": {
        "truth": "INSUFFICIENT_DATA",
        "options": SATURATED,
        "without": ("GPUUtilization", "GPUMemoryUtilization"),
    },
    "failed": {"truth": "INSUFFICIENT_DATA", "options": {"fail": 1, "start-s": 3.0}},
}


class SlowStore(LocalStore):
    """A store that keeps the download waiting."""

    wait_s = 0.0

    def objects(self, uri: str) -> list[tuple[str, Path]]:
        if uri.endswith("/photos/"):
            time.sleep(self.wait_s)
        return super().objects(uri)


def main() -> None:
    photos, names = Path(sys.argv[1]), sys.argv[2:] or list(JOBS)
    for name in names:
        with tempfile.TemporaryDirectory(prefix="finished-job-") as folder:
            make(name, JOBS[name], photos, Path(folder))


def make(name: str, job: dict[str, Any], photos: Path, folder: Path) -> None:
    options = {"seconds": float(job.get("seconds", 40)), **job["options"]}
    request = build_request(
        TrainingJob(
            name,
            job.get("instance", "ml.g5.xlarge"),
            "arn:aws:iam::123456789012:role/training",
            "my-bucket",
            [Channel("train", "s3://my-bucket/photos", mode="File")],
            count=job.get("count", 1),
            script="job.py",
            spot="interruptions" in job,
            hyperparameters={key: str(value) for key, value in options.items()},
        )
    )
    store = SlowStore(folder / "s3", {"s3://my-bucket/photos": photos})
    store.wait_s = job.get("download_s", 0.0)
    after = [lambda checkpoints, passed_s, limit_s=limit_s: passed_s > limit_s for limit_s in job.get("interruptions", ())]
    done = run_local(request, store, folder / "job", script=HERE / "job.py", interruptions=after, grace_s=1.0, log=print)
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    begun_s = datetime.fromisoformat(done.description["SecondaryStatusTransitions"][0]["StartTime"]).timestamp()

    def stretched(moment_s: float) -> float:
        return round(begun_s + STRETCH * (moment_s - begun_s), 3)

    stored = store.path(f"s3://my-bucket/headrace/{name}/checkpoints")
    write(target / "describe.json", described(done.description, stretched))
    assert request["ResourceConfig"]["InstanceType"] == "ml.m5.xlarge" or PriceTable.load().instance("g5.xlarge").vcpus == CORES
    hosts = [f"algo-{place + 1}" for place in range(job.get("count", 1))]
    has_gpu = job.get("instance") is None
    if "metrics.json" not in job.get("without", ()):
        results = [one for host in hosts for one in cloudwatch(host, meters(stored, host), stretched, has_gpu)]
        kept = [one for one in results if not any(part in one["Label"] for part in job.get("without", ()))]
        write(target / "metrics.json", {"MetricDataResults": kept, "Messages": []})
    if job.get("debugger"):
        debugger(target, meters(stored, "algo-1"), stretched)
    if job.get("timeline"):
        timeline(target, stored, stretched)
    write(target / "truth.json", {"verdict": job["truth"], "interruptions": done.interruptions, "options": options})


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value) + "\n")


def described(description: dict[str, Any], stretched: Any) -> dict[str, Any]:
    """The description with stretched times."""

    def moment(text: str) -> str:
        return datetime.fromtimestamp(stretched(datetime.fromisoformat(text).timestamp()), UTC).isoformat()

    found = {**description}
    for one in found["SecondaryStatusTransitions"]:
        one |= {key: moment(one[key]) for key in ("StartTime", "EndTime") if key in one}
    for key in ("TrainingStartTime", "TrainingEndTime"):
        found[key] = moment(found[key])
    for key in ("TrainingTimeInSeconds", "BillableTimeInSeconds"):
        found[key] = round(STRETCH * found[key])
    return found


def meters(stored: Path, host: str) -> list[list[list[Any]]]:
    """The lines of each attempt of a host."""
    files = sorted(stored.glob(f"meter-{host}-*.jsonl"), key=lambda path: int(path.stem.rpartition("-")[2]))
    return [[json.loads(line) for line in file.read_text().splitlines() if line.endswith("]")] for file in files]


def points(attempts: list[list[list[Any]]], stretched: Any, width_s: float) -> list[tuple[float, float, float, list[float]]]:
    """Begin, CPU share, GPU share and share of each core, for intervals of `width_s` stretched seconds."""
    found = []
    for lines in attempts:
        last = None
        for line in lines:
            place = stretched(line[0]) // width_s
            if last is None:
                last = (place, line)
            elif place != last[0]:
                before = last[1]
                wall_s, cores_s, gpu_s = (line[i] - before[i] for i in range(3))
                share = min(1.0, cores_s / (wall_s * CORES))
                busy = [after - start for after, start in zip(line[3], before[3], strict=True)]
                scale = share * len(busy) / max(1e-9, sum(busy))
                rows = [min(1.0, one * scale) for one in busy]
                found.append((last[0] * width_s, min(1.0, share), min(1.0, gpu_s / wall_s), rows))
                last = (place, line)
    return found


def cloudwatch(host: str, attempts: Any, stretched: Any, has_gpu: bool) -> list[dict[str, Any]]:
    found = points(attempts, stretched, 60.0)
    times = [datetime.fromtimestamp(begin, UTC).isoformat() for begin, *_ in found]
    values = {"CPUUtilization": [100 * CORES * cpu for _, cpu, _, _ in found], "MemoryUtilization": [12.0 for _ in found]}
    if has_gpu:
        values |= {"GPUUtilization": [100 * gpu for _, _, gpu, _ in found], "GPUMemoryUtilization": [30.0 for _ in found]}
    return [
        {"Id": f"m{place}", "Label": f"{host} {name}", "StatusCode": "Complete", "Timestamps": times,
         "Values": [round(value, 2) for value in series]}
        for place, (name, series) in enumerate(values.items())
    ]  # fmt: skip


def debugger(target: Path, attempts: Any, stretched: Any) -> None:
    lines = []
    for begin, _, gpu, shares in points(attempts, stretched, FINE_S):
        lines += [event("cpu", f"cpu{core}", "CPUUtilization", shares[core % len(shares)], begin) for core in range(CORES)]
        lines.append(event("gpu", "gpu0", "GPUUtilization", gpu, begin))
    path = target / "profiler-output" / "system" / "incremental" / "2026112302" / "1795400000.algo-1.json"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines) + "\n")


def event(kind: str, name: str, dimension: str, share: float, time_s: float) -> str:
    value = {"Type": kind, "Name": name, "Dimension": dimension, "Value": round(100 * share, 1), "NodeId": "algo-1"}
    return json.dumps({**value, "Timestamp": time_s}, separators=(",", ":"))


def timeline(target: Path, stored: Path, stretched: Any) -> None:
    waits = json.loads((stored / "waits-algo-1-0.json").read_text())[:300]
    zero_s = stretched(waits[0][0])
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": round(1e6 * zero_s)}}
    ]
    for begin_s, wait_s in waits:
        ts, dur = round(1e6 * (stretched(begin_s) - zero_s)), round(1e6 * STRETCH * wait_s)
        events.append({"name": "DataLoaderIter::GetNext", "ph": "X", "pid": 1, "ts": ts, "dur": dur})
    path = target / "profiler-output" / "framework" / "pevents" / "2026112302" / "1795400000_1-algo-1_pythontimeline.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(events, separators=(",", ":")))


if __name__ == "__main__":
    main()
