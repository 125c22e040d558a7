"""Training jobs with one fault each, as a person might write them: `python jobs.py NAME [--num-workers N …]`.

CPU work is a loop of a fixed amount of CPU time; an accelerator is a sleep of a stated length per step, or `FakeDevice`,
a queue of such kernels. Storage faults are injected in the dataset's read, since a virtual
disk with a warm page cache answers in microseconds. Every job prints its images per second at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import http.client
import http.server
import importlib
import io
import multiprocessing
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import beside
import numpy as np
import standing
import torch
from inside_next import (
    busy_thread,
    busy_thread_beside_steps,
    compressed,
    new_iterators,
    odd_batches,
    single_numbers,
    slow_collate,
    slow_sampler,
)
from job import FakeDevice, Job, RealModel, Samples, batches_of, burn, burning_sample, sleeping
from PIL import Image, ImageFilter
from ranks import communication, straggler
from torch.utils.data import DataLoader


def healthy(options: argparse.Namespace) -> Job:
    """1: the model takes 40 ms on a core, a batch 8 ms."""
    return Job(num_workers=1, sample=burning_sample(0.008, 8), compute=RealModel(0.04), steps=250)


def near_the_knee(options: argparse.Namespace) -> Job:
    """2: a batch takes 0.9 of what the accelerator takes."""
    return Job(num_workers=1, sample=burning_sample(0.036, 8), compute=sleeping(0.04), steps=250)


def storage_latency(options: argparse.Namespace) -> Job:
    """3: 15 ms per read, one after the other."""

    def read(index: int) -> Any:
        time.sleep(0.015)
        return torch.zeros(16)

    return Job(batch_size=4, num_workers=2, sample=read, compute=sleeping(0.01), steps=300)


def storage_bandwidth(options: argparse.Namespace) -> Job:
    """4: 20 MB/s for all readers together, 200 kB per image."""
    lock = Path(tempfile.gettempdir()) / f"scenario-bucket-{os.getpid()}"
    lock.touch()

    def read(index: int) -> Any:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(200e3 / 20e6)
        return torch.zeros(16)

    return Job(batch_size=4, num_workers=2, sample=read, compute=sleeping(0.01), steps=250)


def cold_files(options: argparse.Namespace) -> Job:
    """5: files that are dropped from the page cache after each read, 4 ms per read."""
    folder = Path(tempfile.mkdtemp(prefix="scenario-files-"))
    content = os.urandom(200_000)
    for number in range(64):
        (folder / str(number)).write_bytes(content)

    def read(index: int) -> Any:
        with (folder / str(index % 64)).open("rb") as file:
            file.read()
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        time.sleep(0.004)
        return torch.zeros(16)

    return Job(batch_size=8, num_workers=2, sample=read, compute=sleeping(0.008), steps=300)


def no_workers(options: argparse.Namespace) -> Job:
    """6: batches made in the training process."""
    return Job(num_workers=0, sample=burning_sample(0.018, 8), compute=sleeping(0.02), steps=250)


def too_few_workers(options: argparse.Namespace) -> Job:
    """7: one worker, a core to spare."""
    return Job(num_workers=1, sample=burning_sample(0.03, 8), compute=sleeping(0.015), steps=250)


def slow_transform(options: argparse.Namespace) -> Job:
    """7: one worker; blurring takes three quarters of making a batch."""
    image = Image.effect_noise((160, 160), 60).convert("RGB")

    def make(index: int) -> Any:
        blurred_s = time.thread_time() + 0.003
        while time.thread_time() < blurred_s:
            image.filter(ImageFilter.GaussianBlur(4))
        burn(0.001)
        return torch.zeros(16)

    return Job(num_workers=1, sample=make, compute=sleeping(0.015), steps=250)


def heavy_augmentation(options: argparse.Namespace) -> Job:
    """8: more CPU work than two cores can do."""
    return Job(num_workers=2, sample=burning_sample(0.08, 8), compute=sleeping(0.01), steps=200)


def oversubscribed(options: argparse.Namespace) -> Job:
    """9: eight workers and two compute threads on two cores, with a model that computes on the CPU."""
    torch.set_num_threads(2)
    return Job(num_workers=8, sample=burning_sample(0.03, 8), compute=RealModel(0.03, 512), steps=150, threads=2)


def big_batches(options: argparse.Namespace) -> Job:
    """10: float32 batches of 40 MB, put together in Python."""
    image = np.zeros((3, 323, 323), np.float32)

    def collate(samples: list[Any]) -> Any:
        return torch.from_numpy(np.array(samples))

    return Job(batch_size=32, num_workers=2, sample=lambda i: image, compute=sleeping(0.005), collate=collate, steps=200)


class Talkative(torch.nn.Module):
    """A module that is mostly Python."""

    def forward(self, batch: Any) -> Any:
        """Return the batch, after 5 ms of Python."""
        burn(0.005)
        return batch


def small_batches(options: argparse.Namespace) -> Job:
    """11: two images per step, 5 ms of Python in a small model."""
    model = torch.nn.Sequential(Talkative(), torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def compute(batch: Any, step: int) -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return Job(batch_size=2, num_workers=1, compute=compute, steps=1500, model=model)


def syncing(options: argparse.Namespace) -> Job:
    """12: 20 ms of kernels per step in five groups, a wait after each, and then 2 ms of Python."""
    device = FakeDevice()

    def compute(batch: Any, step: int) -> None:
        for _ in range(5):
            device.launch(0.004)
            if not options.fixed:
                device.sync()
            burn(0.002)
        if options.fixed:
            device.sync()

    return Job(num_workers=1, compute=compute, steps=350)


def checkpoints(options: argparse.Namespace) -> Job:
    """13: a checkpoint that takes a second, every 40 steps."""

    def compute(batch: Any, step: int) -> None:
        time.sleep(0.025)
        if step % 40 == 39 and not options.fixed:
            with tempfile.NamedTemporaryFile() as file:
                torch.save({"weights": torch.zeros(1_000_000)}, file)
                time.sleep(1.0)
                os.fsync(file.fileno())

    return Job(num_workers=1, compute=compute, steps=240)


def garbage(options: argparse.Namespace) -> Job:
    """14: two million live objects, cyclic garbage in each step, and a full collection every 20 steps."""
    live = [[number] for number in range(2_000_000)]
    if options.fixed:
        gc.collect()
        gc.freeze()

    def compute(batch: Any, step: int) -> None:
        time.sleep(0.01)
        for _ in range(4000):
            cycle: list[Any] = [live[0]]
            cycle.append(cycle)
        if step % 20 == 19 and not options.fixed:
            gc.collect()

    return Job(num_workers=1, compute=compute, steps=400)


def neighbours(options: argparse.Namespace) -> Job:
    """16b: two other programs on the same two cores; this job starts them itself, outside its own tree."""
    return Job(num_workers=1, sample=burning_sample(0.01, 8), compute=RealModel(0.04), steps=120)


def sleeping_source(options: argparse.Namespace) -> Job:
    """24: a source that sleeps 6 ms and works 3 ms per image, in the training process; alone, and beside two other programs."""

    def make(index: int) -> Any:
        time.sleep(0.006)
        burn(0.003)
        return torch.zeros(16)

    return Job(batch_size=8, num_workers=0, sample=make, compute=sleeping(0.01), steps=120)


def few_steps(options: argparse.Namespace) -> Job:
    """26: ended after eight steps, with the input made in the training process."""
    return Job(num_workers=0, sample=burning_sample(0.05, 8), compute=sleeping(0.02), steps=8)


class OwnIterators(DataLoader[Any]):
    """A loader that makes its own iterators, as torchdata's StatefulDataLoader does: `headrace run` refuses it."""

    def _get_iterator(self) -> Any:
        return super()._get_iterator()


def photographs(options: argparse.Namespace, loader_class: type[DataLoader[Any]]) -> Job:
    """27: a folder of photographs, cropped and flipped in the training process."""
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    folder = Path(tempfile.mkdtemp(prefix="scenario-images-"))  # read once more when the job has ended
    for number in range(64):
        place = folder / str(number % 4)
        place.mkdir(exist_ok=True)
        Image.effect_noise((480, 360), 40 + number).convert("RGB").save(place / f"{number}.jpg", quality=92)
    steps = [v2.RandomResizedCrop(128, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    data = ImageFolder(str(folder), v2.Compose(steps))
    return Job(num_workers=0, dataset=data, loader_class=loader_class, compute=sleeping(0.005), epochs=30)


def hot_device(options: argparse.Namespace) -> Job:
    """16a: a device whose kernels take 1.7 times as long from step 100 on; `sampler.py` emulates its thermometer."""
    device = FakeDevice()
    state = Path(os.environ.get("SCENARIO_STATE", os.devnull))

    def compute(batch: Any, step: int) -> None:
        if step == 100 and state != Path(os.devnull):
            state.touch()
        device.launch(0.02 if step < 100 else 0.034)
        device.sync()

    return Job(num_workers=1, compute=compute, steps=500)


def quota(options: argparse.Namespace) -> Job:
    """16c: a healthy job; `sampler.py` stops it for 40 ms of every 100, as a CPU quota does."""
    return Job(num_workers=1, sample=burning_sample(0.008, 8), compute=RealModel(0.03), steps=250)


def leak(options: argparse.Namespace) -> Job:
    """17: memory grows by 5 MB per step."""
    kept: list[Any] = []

    def compute(batch: Any, step: int) -> None:
        time.sleep(0.03)
        kept.append(np.ones(5_000_000, np.uint8))

    return Job(num_workers=1, compute=compute, steps=500)


def slow_epochs(options: argparse.Namespace) -> Job:
    """18: workers that take two seconds to start, in each of five epochs of 40 steps."""
    return Job(num_workers=2, worker_init=lambda worker: time.sleep(2.0), compute=sleeping(0.04), steps=40, epochs=5)


def slow_start(options: argparse.Namespace) -> Job:
    """19: a library that takes 8 s to import, 12 MB at 1 MB/s to download, workers that take 4 s to start."""
    folder = Path(tempfile.mkdtemp(prefix="scenario-library-"))
    (folder / "heavy_library.py").write_text("import time\ntime.sleep(8.0)\n")
    sys.path.insert(0, str(folder))
    importlib.import_module("heavy_library")
    port = serve(12_000_000, pieces=120, pause_s=0.1)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
        answer.read()
    return Job(num_workers=2, worker_init=lambda worker: time.sleep(4.0), compute=sleeping(0.02), steps=400)


def mixed(options: argparse.Namespace) -> Job:
    """20: storage as in 4 and garbage as in 14; with --fixed storage is fast, and only the garbage remains."""
    read = storage_bandwidth(options).sample if not options.fixed else lambda index: torch.zeros(16)
    live = garbage(argparse.Namespace(fixed=False))
    return Job(batch_size=4, num_workers=2, sample=read, compute=live.compute, steps=300)


def serve(size: int, *, pieces: int = 1, pause_s: float) -> int:
    """Start an HTTP server in a process of its own, which pauses before each piece of its answer. Return its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            for _ in range(pieces):
                time.sleep(pause_s)
                self.wfile.write(bytes(size // pieces))

        def log_message(self, *_: Any) -> None:
            pass

    ready: Any = multiprocessing.get_context("fork").Queue()

    def run() -> None:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        ready.put(server.server_address[1])
        server.serve_forever()

    multiprocessing.get_context("fork").Process(target=run, daemon=True).start()
    port: int = ready.get()
    return port


def network(options: argparse.Namespace) -> Job:
    """21: images from an HTTP server that answers after 30 ms."""

    port = serve(100_000, pause_s=0.03)

    def read(index: int) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/")
        connection.getresponse().read()
        connection.close()
        return torch.zeros(16)

    return Job(batch_size=4, num_workers=2, sample=read, compute=sleeping(0.01), steps=180)


def uneven(options: argparse.Namespace) -> Job:
    """22: two workers that are both bound to one core; the other core is idle."""

    def bind(worker: int) -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    return Job(num_workers=2, sample=burning_sample(0.04, 8), worker_init=bind, compute=sleeping(0.01), steps=250)


def pool_contention(options: argparse.Namespace, threads: int) -> Job:
    """24, 25: JPEGs decoded and transformed in the training process, with `threads` threads beside two other programs."""
    from PIL import Image
    from torchvision.transforms import v2  # type: ignore[import-untyped,unused-ignore]

    torch.set_num_threads(threads)
    noise = np.random.default_rng(0).integers(0, 255, (30, 40, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((500, 375), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    content = file.getvalue()
    crop = v2.Compose([v2.PILToTensor(), v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()])
    transform = v2.Compose([crop, v2.ToDtype(torch.float32, scale=True), v2.ColorJitter(0.4, 0.4, 0.4)])

    def read(index: int) -> Any:
        return transform(Image.open(io.BytesIO(content)).convert("RGB"))

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 7, 4), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def compute(batch: Any, step: int) -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return Job(batch_size=8, num_workers=0, sample=read, compute=compute, steps=30 if threads > 1 else 300, model=model)


SCENARIOS: dict[str, Callable[[argparse.Namespace], Job]] = {
    "healthy": healthy,
    "near_the_knee": near_the_knee,
    "storage_latency": storage_latency,
    "storage_bandwidth": storage_bandwidth,
    "cold_files": cold_files,
    "no_workers": no_workers,
    "too_few_workers": too_few_workers,
    "slow_transform": slow_transform,
    "heavy_augmentation": heavy_augmentation,
    "oversubscribed": oversubscribed,
    "big_batches": big_batches,
    "small_batches": small_batches,
    "syncing": syncing,
    "checkpoints": checkpoints,
    "garbage": garbage,
    "straggler_loader": lambda options: straggler(options, "loader"),
    "straggler_forward": lambda options: straggler(options, "forward"),
    "straggler_backward": lambda options: straggler(options, "backward"),
    "hot_device": hot_device,
    "neighbours": neighbours,
    "hog": neighbours,
    "sleeping_source": sleeping_source,
    "sleeping_source_busy": sleeping_source,
    "quota": quota,
    "few_steps": few_steps,
    "refused_images": lambda options: photographs(options, OwnIterators),
    "folder_images": lambda options: photographs(options, DataLoader),
    "leak": leak,
    "slow_epochs": slow_epochs,
    "slow_start": slow_start,
    "mixed": mixed,
    "network": network,
    "uneven": uneven,
    "communication": communication,
    "slow_sampler": lambda options: slow_sampler(options, 2),
    "slow_sampler_no_workers": lambda options: slow_sampler(options, 0),
    "slow_collate": lambda options: slow_collate(options, 2),
    "slow_collate_no_workers": lambda options: slow_collate(options, 0),
    "odd_batches": odd_batches,
    "held_lock": busy_thread,
    "released_lock": lambda options: busy_thread(argparse.Namespace(fixed=True)),
    "new_iterators": new_iterators,
    "held_lock_in_steps": busy_thread_beside_steps,
    "released_lock_in_steps": lambda options: busy_thread_beside_steps(argparse.Namespace(fixed=True)),
    "growing_bank": beside.growing_bank,
    "bounded_bank": lambda options: beside.growing_bank(argparse.Namespace(fixed=True)),
    "compressed": compressed,
    "single_numbers": single_numbers,
    "pool_contention": lambda options: pool_contention(options, 2),
    "pool_of_one": lambda options: pool_contention(options, 1),
    "hang_lock": standing.hang_lock,
    "hang_store": standing.hang_store,
    "hang_queue": standing.hang_queue,
    "hang_rank": standing.hang_rank,
    "killed_worker": standing.killed_worker,
    "bad_record": standing.bad_record,
    "nan_loss": standing.nan_loss,
    "long_validation": standing.long_validation,
    "long_first_step": standing.long_first_step,
    "slow_checkpoint": standing.slow_checkpoint,
    "cold_store": standing.cold_store,
    "tracker": beside.tracker,
    "pictures": beside.pictures,
    "validation": beside.validation,
    "collects": beside.collects,
    "waits_in_the_loop": beside.waits_in_the_loop,
    "rare_log": beside.rare_log,
    "copied_labels": beside.copied_labels,
    "labels_in_an_array": lambda options: beside.copied_labels(argparse.Namespace(fixed=True)),
}


class Shell(torch.nn.Module):
    """Work without a model as the forward pass of one."""

    def __init__(self, compute: Callable[[Any, int], None]) -> None:
        super().__init__()
        self.compute = compute
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, batch: Any, step: int) -> Any:
        self.compute(batch, step)
        return self.weight * 1


def for_traceml(job: Job) -> tuple[Callable[[Any, int], None], Callable[[], Any]]:
    """The job's work, and TraceML's context manager for a step of it, as its documentation has it put into the loop.

    TraceML names nothing where a step has no forward or backward pass or no optimizer: such work becomes a forward pass here.
    """
    import traceml_ai  # type: ignore[import-not-found,unused-ignore]

    traceml_ai.init(mode="auto")
    if job.model is not None:
        return job.compute, lambda: traceml_ai.trace_step(job.model)
    shell = Shell(job.compute)
    optimizer = torch.optim.SGD(shell.parameters(), lr=1e-3)

    def compute(batch: Any, step: int) -> None:
        optimizer.zero_grad()
        shell(batch, step).backward()
        optimizer.step()

    return compute, lambda: traceml_ai.trace_step(shell)


def main() -> None:
    """Run one scenario to its end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=SCENARIOS)
    parser.add_argument("--num-workers", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--threads", type=int, help="threads of PyTorch, instead of the scenario's")
    parser.add_argument("--steps", type=int, help="fewer steps, to try a job out")
    parser.add_argument("--fixed", action="store_true", help="without the fault, where it is in the training process")
    parser.add_argument("--traceml", action="store_true", help="mark the steps for TraceML, which needs that")
    options = parser.parse_args()
    torch.set_num_threads(1)
    job = SCENARIOS[options.name](options)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    batch_size = options.batch_size or job.batch_size
    workers = job.num_workers if options.num_workers is None else options.num_workers
    loader = job.loader_class(
        job.dataset or Samples((options.steps or job.steps) * job.batch_size, job.sample),
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=job.collate,
        worker_init_fn=job.worker_init,
        sampler=job.sampler,
        drop_last=True,
    )
    images, begin_s, number = 0, time.perf_counter(), 0
    compute, marked = for_traceml(job) if options.traceml else (job.compute, contextlib.nullcontext)
    for _ in range(job.epochs):
        for batch in batches_of(loader, job):
            with marked():
                compute(batch, number)
            number += 1
            images += batch_size
            if number == 5:
                images, begin_s = 0, time.perf_counter()
    print(f"{images / (time.perf_counter() - begin_s):.1f} img/s")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
