"""What `headrace cost` says about ImageNet, and how far its predictions are from real jobs on this machine.

    python benchmarks/cost.py [--images FOLDER] [--limit N] [--jobs N] [--epochs SHARE] [--write]

The worked example asks for ResNet-50, ImageNet, 16 epochs, fed by plain PyTorch, by headrace from a folder and by headrace
from shards: which machine is chosen, and what the run costs on some machines. It is arithmetic on the price table.

The calibration runs real jobs: a dataset is downloaded from a local server of a stated rate, then `headrace train` trains a
classifier on the CPU. The cost model predicts the seconds of each: the time until training starts (one measurement before), the
bytes over the rate of the server (a probe), and the images over the lowest floor (measured as by `headrace train --dry-run`).
Each prediction is multiplied by the factor that the other jobs give. Observed is the wall time of both commands.
"""

from __future__ import annotations

import argparse
import http.server
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import record
from headrace.cost.answer import Question, answer
from headrace.cost.estimates.budget import Limits
from headrace.cost.estimates.calibrate import FinishedRun, factor, leave_one_out
from headrace.cost.estimates.estimate import exactly
from headrace.cost.estimates.floors import Job, binding, floors
from headrace.cost.estimates.runs import Purchase, Row
from headrace.cost.market.prices import SERVICES, Instance, PriceTable
from headrace.datasets.open import open_stored
from headrace.inspection.object_store_probe import probe_store
from headrace.packing import pack
from headrace.training.distributed.devices import open_device
from headrace.training.dry_run import measure_dry_run
from headrace.training.settings.options import Options
from sample import photographs

LOADERS = ("pytorch", "headrace", "headrace-packed")
IMAGENET = {"model": "resnet50", "images": 1_281_167, "epochs": 16.0, "dataset_bytes": 141e9}
SHOWN = ("g5.xlarge", "g6e.xlarge", "g6e.4xlarge", "p4d.24xlarge", "p5.4xlarge", "p5.48xlarge")
DEADLINES_H = (None, 4.0, 1.0)

BYTES_PER_S = 20e6
"""Rate of the local server: the download is a visible part of each job."""

JOBS = (
    ("resnet18", 64, 6.0),
    ("resnet18", 96, 3.0),
    ("resnet18", 128, 2.0),
    ("resnet34", 64, 4.0),
    ("resnet34", 96, 2.0),
    ("resnet50", 64, 4.0),
    ("resnet50", 96, 2.0),
    ("resnet20", 64, 8.0),
)
"""Model, pixels and epochs of each job; all are bound by computing, as training on a CPU is."""

BATCH = 16
RATE_SECONDS = 5.0  # of each measurement of a rate
PACKAGES = ["headrace", "torch", "numpy"]


@dataclass(frozen=True)
class Place:
    """Where the jobs of the calibration run: the dataset's URL, its size, and what was measured once."""

    url: str
    images: int
    size_bytes: int
    store_bytes_per_s: float
    start_s: float
    scratch: Path


def main() -> None:
    """Compute and measure, print the page, and write it with --write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", metavar="FOLDER")
    parser.add_argument("--limit", type=int, default=400, help="photographs in the dataset of the jobs")
    parser.add_argument("--jobs", type=int, default=len(JOBS))
    parser.add_argument("--epochs", type=float, default=1.0, help="multiply the epochs of each job")
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    given = parser.parse_args()
    chosen = [(model, size, max(1, round(epochs * given.epochs))) for model, size, epochs in JOBS[: given.jobs]]
    with tempfile.TemporaryDirectory() as folder:
        jobs = [] if not chosen else calibration(chosen, photographs(given.images, given.limit), Path(folder))
    table = PriceTable.load()
    found = record.document(
        "cost",
        PACKAGES,
        settings={"photographs": given.limit, "batch_size": BATCH, "server_bytes_per_s": BYTES_PER_S, **IMAGENET},
        price_date=table.source("ec2")["date"],
        choices=choices(table),
        machines=machines(table),
        jobs=jobs,
        median_error=statistics.median(job["error"] for job in jobs) if len(jobs) > 1 else None,
    )
    record.publish(found, save=given.write)


def question(loader: str, table: PriceTable, names: tuple[str, ...], deadline: float | None = None) -> Question:
    objects = round(IMAGENET["dataset_bytes"] / 2**27) if loader == "headrace-packed" else IMAGENET["images"]
    asked = [(table.instance(name), service) for name in names for service in SERVICES]
    job = Job(**IMAGENET, objects=objects, loader=loader)
    return Question(job, None, (), asked, Purchase(), Limits(deadline, None))


def choices(table: PriceTable) -> list[dict[str, Any]]:
    """Return what is chosen among all machines for each loader, with and without a deadline."""
    names = tuple(one.name for one in table.instances.values() if not one.historic)
    found = []
    for deadline in DEADLINES_H:
        for loader in LOADERS:
            row = answer(question(loader, table, names, deadline), [table]).choice.row
            found.append({"deadline_h": deadline, "loader": loader, "choice": brief(row) if row else None})
    return found


def machines(table: PriceTable) -> list[dict[str, Any]]:
    """Return time and money of the run on some machines, on demand on EC2, for each loader."""
    found = []
    for loader in LOADERS:
        rows = answer(question(loader, table, SHOWN), [table]).rows
        names = ("instance", "binds", "seconds_per_epoch", "on_demand_usd")
        found += [{"loader": loader, **{name: getattr(row, name) for name in names}} for row in rows if row.service == "ec2"]
    return found


def brief(row: Row) -> dict[str, Any]:
    names = ("instance", "service", "binds", "recommended")
    return {**{name: getattr(row, name) for name in names}, "usd": row.best_usd, "hours": row.total_hours}


def calibration(chosen: list[tuple[str, int, int]], files: list[Path], scratch: Path) -> list[dict[str, Any]]:
    """Run the jobs and return each with its predicted and observed seconds, and its error with the factor of the others."""
    source = scratch / "folder"
    for number, file in enumerate(files):
        (source / f"class_{number % 4}").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, source / f"class_{number % 4}" / f"{number:05d}.jpg")
    pack(source, scratch / "served" / "data")
    with server(scratch / "served") as url:
        size = sum(file.stat().st_size for file in (scratch / "served" / "data").iterdir())
        (shard,) = list((scratch / "served" / "data").glob("*.tar"))[:1]
        rate = probe_store(f"{url}/data/{shard.name}").bytes_per_s
        place = Place(f"{url}/data", len(files), size, rate, 0.0, scratch)
        start_s, _ = run_job(place, "resnet20", 32, 1, steps=1)
        place = Place(place.url, place.images, size, rate, start_s - size / rate, scratch)
        found = []
        for model, pixels, epochs in chosen:
            found.append(measured(place, model, pixels, epochs))
            print(found[-1], file=sys.stderr, flush=True)
    runs = [FinishedRun("local", job["predicted_s"], job["observed_s"]) for job in found]
    errors = leave_one_out(runs)
    for at, (job, error) in enumerate(zip(found, errors, strict=True)):
        job["factor"] = factor([*runs[:at], *runs[at + 1 :]])
        job["error"] = error
    return found


def measured(place: Place, model: str, pixels: int, epochs: int) -> dict[str, Any]:
    """Predict one job, run it, and return both."""
    wanted = Options(
        model=model, data=str(place.scratch / "served" / "data"), out=str(place.scratch / "out"), epochs=epochs,
        batch_size=BATCH, image_size=pixels, device="cpu",
    )  # fmt: skip
    rates = measure_dry_run(wanted, open_stored(wanted.data), None, open_device("cpu"), ranks=1, seconds=RATE_SECONDS)
    if not rates.compute_img_s or not rates.ingest_img_s:
        raise SystemExit(f"no rate of {model} was measured: {', '.join(rates.not_measured)}")
    cores = float(len(os.sched_getaffinity(0)))
    job = Job(
        images=place.images // BATCH * BATCH,
        epochs=epochs,
        gpu_img_s=exactly(rates.compute_img_s, "the dry run of headrace train", "measured"),
        img_s_per_core=exactly(rates.ingest_img_s / cores, "the dry run of headrace train", "measured"),
    )
    floor = binding(floors(job, this_machine(cores), PriceTable.load()))
    training_s = job.epochs * job.images / floor.img_s.point
    download_s = place.size_bytes / place.store_bytes_per_s
    observed_s, spent = run_job(place, model, pixels, epochs)
    return {
        "model": model,
        "pixels": pixels,
        "epochs": epochs,
        "images": job.images,
        "binds": floor.resource,
        "floor_img_s": floor.img_s.point,
        "start_s": place.start_s,
        "download_s": download_s,
        "training_s": training_s,
        "predicted_s": place.start_s + download_s + training_s,
        "observed_s": observed_s,
        "observed_download_s": spent,
    }


def this_machine(cores: float) -> Instance:
    """Return this machine as an instance type: the CPU is the device that computes, and nothing is read from a volume."""
    return Instance("local", "CPU", 0.0, 1, round(cores), 0.0, None, 1e6, 0.0, "this", False, False)


def run_job(place: Place, model: str, pixels: int, epochs: int, *, steps: int | None = None) -> tuple[float, float]:
    """Download the dataset and train on it, as on a fresh machine; return the seconds of both and of the download."""
    shutil.rmtree(place.scratch / "cache", ignore_errors=True)
    begun_s = time.perf_counter()
    copy = "import sys; from headrace.datasets.open import local_copy; print(local_copy(sys.argv[1]))"
    local = command(place, sys.executable, "-c", copy, place.url).strip().splitlines()[-1]
    download_s = time.perf_counter() - begun_s
    words = options(place, model, pixels, epochs, data=local)
    headrace(place, "train", *words, *(["--steps", str(steps)] if steps else []))
    return time.perf_counter() - begun_s, download_s


def options(place: Place, model: str, pixels: int, epochs: int, *, data: str | None = None) -> list[str]:
    out = place.scratch / "out"
    shutil.rmtree(out, ignore_errors=True)
    words = {
        "--model": model,
        "--data": data or str(place.scratch / "served" / "data"),
        "--out": str(out),
        "--epochs": str(epochs),
        "--batch-size": str(BATCH),
        "--image-size": str(pixels),
        "--device": "cpu",
        "--seed": "0",
    }
    return [word for pair in words.items() for word in pair]


def headrace(place: Place, *words: str) -> str:
    return command(place, sys.executable, "-m", "headrace", *words)


def command(place: Place, *words: str) -> str:
    environment = {**os.environ, "HEADRACE_CACHE": str(place.scratch / "cache")}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


@contextmanager
def server(root: Path) -> Iterator[str]:
    """Serve the files of a folder at BYTES_PER_S over all connections, with ranges, as an object store does."""
    lock = threading.Lock()

    class Store(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            path = root / self.path.lstrip("/")
            if not path.is_file():
                self.send_error(404)
                return
            whole = path.stat().st_size
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            begin, end = (int(asked[1]), min(whole, int(asked[2] or whole) + 1)) if asked else (0, whole)
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{whole}")
            self.send_header("Content-Length", str(end - begin))
            self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
            self.end_headers()
            if body:
                with open(path, "rb") as file:
                    file.seek(begin)
                    while begin < end and (part := file.read(min(1 << 18, end - begin))):
                        with lock:
                            time.sleep(len(part) / BYTES_PER_S)
                        self.wfile.write(part)
                        begin += len(part)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


if __name__ == "__main__":
    main()
