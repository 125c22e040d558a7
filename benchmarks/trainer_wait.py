"""The share of a training step that is spent waiting for input, where the input is faster than the device.

    python benchmarks/trainer_wait.py [--images FOLDER] [--limit N] [--seconds S] [--rounds N] [--write]

Three measurements, in turn in every round: ingest-only (the trainer's loader alone), compute-only (the trainer's step on
one batch), end-to-end (`headrace train`). The device is simulated: a stated rate, and a wait. Its rate is set below that of
ingest-only in the same round (`ingest / compute` says by how much), so that input could always be there. The wait share is
the trainer's own figure. The page also shows the share of compute-only that end-to-end reaches.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import record
import torch
from headrace.datasets.open import open_stored
from headrace.training.distributed.devices import open_device
from headrace.training.distributed.ranks import Ranks
from headrace.training.inputs.input import TrainingInput
from headrace.training.learning.learner import Learner
from headrace.training.logs.step_timer import StepTimer
from headrace.training.loop import Options, train
from headrace.training.settings.optimization import OptimizationOptions
from sample import photographs

MARGINS = (1.1, 1.25, 2.0)  # ingest-only over compute-only
SIZE, BATCH = 224, 64
COPIES = 4  # of each photograph: an epoch must be long beside its beginning
TARGET = 0.02
PACKAGES = ["headrace", "torch", "numpy"]


@dataclass(slots=True)
class Row:
    """One margin: rates in images per second, and the wait share, of each round."""

    margin: float
    ingest: list[float] = field(default_factory=list)
    compute: list[float] = field(default_factory=list)
    end_to_end: list[float] = field(default_factory=list)
    wait: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return the row of the page: medians, the range of the wait share, and the rounds."""
        ingest, compute, both = (statistics.median(one) for one in (self.ingest, self.compute, self.end_to_end))
        return {
            "ingest_over_compute": ingest / compute,
            "ingest_img_s": ingest,
            "compute_img_s": compute,
            "end_to_end_img_s": both,
            "of_compute": both / compute,
            "wait_share": record.spread(self.wait),
            "below_target": statistics.median(self.wait) < TARGET,
            "rounds": {"ingest": self.ingest, "compute": self.compute, "end_to_end": self.end_to_end},
        }


def main() -> None:
    """Measure, print the page, and write it with --write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", metavar="FOLDER")
    parser.add_argument("--limit", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    given = parser.parse_args()
    rows = [Row(margin) for margin in MARGINS]
    with tempfile.TemporaryDirectory() as folder:
        data = fill(Path(folder) / "data", photographs(given.images, given.limit))
        for turn in range(given.rounds):
            for row in rows:
                measure(row, data, Path(folder) / f"run-{turn}-{row.margin}", given.seconds)
                print(row.summary(), file=sys.stderr, flush=True)
    settings = {
        "batch_size": BATCH,
        "size": SIZE,
        "photographs": given.limit,
        "copies": COPIES,
        "rounds": given.rounds,
        "seconds": given.seconds,
        "target": TARGET,
    }
    found = record.document("trainer_wait", PACKAGES, settings=settings, rows=[row.summary() for row in rows])
    record.publish(found, save=given.write)


def fill(root: Path, files: list[Path]) -> Path:
    """Make an image folder of two classes with COPIES of each file."""
    for number, file in enumerate(files):
        folder = root / f"class_{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        for copy in range(COPIES):
            shutil.copyfile(file, folder / f"{number:04d}-{copy}.jpg")
    return root


def measure(row: Row, data: Path, out: Path, seconds: float) -> None:
    """Measure one round of a margin."""
    ingest = ingest_only(data, out, seconds)
    rate = ingest / row.margin
    options = wanted(data, out, rate, steps=max(40, round(seconds * rate / BATCH)))
    row.ingest.append(ingest)
    row.compute.append(compute_only(options))
    result = train(options)
    assert result.img_s is not None and result.wait_share is not None
    row.end_to_end.append(result.img_s)
    row.wait.append(result.wait_share)


def wanted(data: Path, out: Path, rate: float, *, steps: int) -> Options:
    return Options(
        model="resnet50",
        data=str(data),
        out=str(out),
        epochs=1_000_000,
        steps=steps,
        batch_size=BATCH,
        image_size=SIZE,
        device=f"sim:{rate:.1f}",
        optimization=OptimizationOptions(warmup_epochs=0),
    )


def ingest_only(data: Path, out: Path, seconds: float) -> float:
    """Return the images per second of the trainer's own loader, in the epochs after the first."""
    options = wanted(data, out, 1.0, steps=1)
    with TrainingInput(options, open_stored(str(data)), open_device(options.device), Ranks()).loader(0) as loader:
        for _ in loader:
            pass
        images, begun_s = 0, time.perf_counter()
        while time.perf_counter() - begun_s < seconds:
            for _, labels in loader:
                images += len(labels)
        return images / (time.perf_counter() - begun_s)


def compute_only(options: Options) -> float:
    """Return the images per second of the trainer's step on one batch that is always there."""
    device = open_device(options.device)
    torch.set_num_threads(1)  # as the trainer does for a simulated device
    learner = Learner(options, device, Ranks(), classes=2, total_steps=1 << 30, warmup_steps=0)
    images, labels = torch.zeros(BATCH, 3, SIZE, SIZE, dtype=torch.uint8), torch.zeros(BATCH, dtype=torch.int64)
    timer = StepTimer(device)
    for step in range(30):
        timer.request_batch()
        timer.begin_step()
        learner.train_step(step, images, labels)
        timer.end_step(BATCH)
    rate, _ = timer.rates()
    assert rate is not None
    return rate


if __name__ == "__main__":
    main()
