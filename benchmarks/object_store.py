"""Training from an object store over a slow and unreliable link, against real servers on loopback.

    python benchmarks/object_store.py [--images N] [--cap-mb-s 5] [--latency-ms 20] [--rounds 3] [--servers …] [--write]

benchmarks/results/notes/object_store.md describes the method.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import headrace
import record
from sample import REPOSITORY, photographs

sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))
from real_stores import RealStore, missing, running
from slow_link import Fault, Link, slow_link

PACKAGES = ["headrace", "obstore", "moto", "numpy"]
SHARD_BYTES = 8 << 20  # a sixteenth of the packer's usual size, for a dataset of this size
FAULTS: tuple[Fault, ...] = ("reset", "500", "cut", "wrong", "stall")

EPOCH = """
import json, sys, time
import headrace, headrace.loading.loader, obstore.store
import boto3
began_s = time.monotonic()
dataset = headrace.open("s3://images/data")
shuffle = True if sys.argv[1] == "True" else sys.argv[1]
loader = headrace.Loader(
    dataset, 32, headrace.transforms.imagenet_train(64), shuffle=shuffle, drop_last=False, output="numpy", threads=1
)
first_s, images = 0.0, 0
for batch, labels in loader:
    first_s = first_s or time.monotonic() - began_s
    images += len(labels)
epoch_s = time.monotonic() - began_s
fetch = dataset.fetcher
print(json.dumps({"first_s": first_s, "epoch_s": epoch_s, "requests": fetch.requests, "fetched": fetch.fetched_bytes}))
"""


@dataclass(frozen=True)
class Row:
    """One way to run an epoch.

    `cache_share`: size of the cache as a share of the dataset, None for all; `faulty`: one request in so many fails.
    """

    name: str
    shuffle: str
    cache_share: float | None = None
    faulty: int | None = None


ROWS = [
    Row("all mixed", "True"),
    Row("block shuffle", "block:16MiB"),
    Row("all mixed, cache of 40 %", "True", 0.4),
    Row("block shuffle, cache of 40 %", "block:16MiB", 0.4),
    Row("all mixed, one request in 20 fails", "True", None, 20),
]


@dataclass(frozen=True)
class Measured:
    """What one epoch took."""

    first_s: float
    epoch_s: float
    requests: int
    fetched: int
    cache_bytes: int
    bound_bytes: int


def one(store: RealStore, row: Row, link: Link, url: str, dataset_bytes: int) -> Measured:
    """Run an epoch in a new process with an empty cache."""
    link.reset()
    every = row.faulty
    link.plan = lambda number, line: FAULTS[number // every % 5] if every and number % every == every - 1 else None
    bound = int(dataset_bytes * (row.cache_share or 1.3))
    with tempfile.TemporaryDirectory(prefix="headrace-cache-") as cache:
        environment = os.environ | store.environment(url) | {"HEADRACE_CACHE": cache, "HEADRACE_CACHE_SIZE": str(bound)}
        stop, most = threading.Event(), [0]
        watcher = threading.Thread(target=lambda: watch(Path(cache), most, stop))
        watcher.start()
        run = subprocess.run(
            [sys.executable, "-c", EPOCH, row.shuffle], env=environment, capture_output=True, text=True, check=False
        )
        stop.set()
        watcher.join()
    if run.returncode:
        raise SystemExit(run.stderr)
    return Measured(**json.loads(run.stdout), cache_bytes=most[0], bound_bytes=bound)


def watch(cache: Path, most: list[int], stop: threading.Event) -> None:
    """Sample the cache's bytes on disk until `stop` is set."""
    while not stop.wait(0.02):
        used = 0
        for file in cache.rglob("*"):
            try:
                used += file.stat().st_blocks * 512
            except FileNotFoundError:
                continue
        most[0] = max(most[0], used)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--cap-mb-s", type=float, default=5.0)
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--servers", default="moto,swift")
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    args = parser.parse_args()
    record.publish(document(args), save=args.write)
    return 0


def document(args: argparse.Namespace) -> dict[str, Any]:
    """Run everything; return the results as a document."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="headrace-store-") as scratch:
        packed, image_bytes = make(Path(scratch), args.images)
        size = sum(path.stat().st_size for path in packed.iterdir())
        for kind in args.servers.split(","):
            if reason := missing(kind):
                raise SystemExit(f"{kind}: {reason}")
            with running(kind) as store:
                store.upload("images", "data", packed.iterdir())
                found += rows(kind, store, args, size, image_bytes)
    settings = {
        "images": args.images,
        "data_mib": size / 2**20,
        "shard_mib": SHARD_BYTES / 2**20,
        "rounds": args.rounds,
        "latency_ms": args.latency_ms,
        "cap_mb_s": args.cap_mb_s,
        "first_batch_budget_ms": 3 * args.latency_ms + SHARD_BYTES / args.cap_mb_s / 1e3,
        "load_5_min": os.getloadavg()[1],
    }
    return record.document("object_store", PACKAGES, settings=settings, rows=found)


def rows(kind: str, store: RealStore, args: argparse.Namespace, size: int, image_bytes: int) -> list[dict[str, Any]]:
    """Return the rows of one server."""
    cap = args.cap_mb_s * 1e6
    runs: dict[str, list[Measured]] = {row.name: [] for row in ROWS}
    with slow_link(store.port, latency_s=args.latency_ms / 1e3, bytes_s=cap) as (link, url):
        for number in range(args.rounds):
            for row in ROWS:
                runs[row.name].append(one(store, row, link, url, size))
                print(f"{kind}, round {number + 1}, {row.name}: {runs[row.name][-1]}", file=sys.stderr)
    return [summarised(kind, name, measured, image_bytes / cap, image_bytes) for name, measured in runs.items()]


def summarised(kind: str, name: str, runs: list[Measured], ideal_s: float, image_bytes: int) -> dict[str, Any]:
    """Return the row of one server and one kind of epoch: medians, and the rounds."""

    def median(value: Callable[[Measured], float]) -> float:
        return statistics.median(map(value, runs))

    return {
        "server": kind,
        "epoch": name,
        "share_of_cap": ideal_s / median(lambda run: run.epoch_s),
        "first_batch_ms": median(lambda run: run.first_s) * 1000,
        "requests": median(lambda run: run.requests),
        "fetched_share": median(lambda run: run.fetched) / image_bytes,
        "cache_most_mb": max(run.cache_bytes for run in runs) / 1e6,
        "cache_bound_mb": runs[0].bound_bytes / 1e6,
        "rounds": [asdict(run) for run in runs],
    }


def make(scratch: Path, images: int) -> tuple[Path, int]:
    """Pack the photographs; return the folder and the bytes of the images."""
    sample = [path.read_bytes() for path in photographs(None, images)]
    for number in range(images):
        path = scratch / "in" / str(number % 10) / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sample[number % len(sample)])
    headrace.pack(scratch / "in", scratch / "packed", shard_size=SHARD_BYTES)
    dataset = headrace.open(scratch / "packed")
    return scratch / "packed", int(dataset.table.size.sum())


if __name__ == "__main__":
    sys.exit(main())
