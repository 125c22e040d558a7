"""A training script whose bottleneck is known: workers decode pictures, a timed wait stands for the GPU.

It runs in a local job (`make.py`) and meters itself. Each line of CHECKPOINTS/meter-N.jsonl holds Unix time, seconds in which
its threads would have used cores of their own, seconds of GPU work so far, and busy seconds of each core of the machine.
waits-N.json holds begin and length of every wait for a batch.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import threading
import time
from pathlib import Path

from PIL import Image

TICK = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=1, help="times that each picture is decoded")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="wait of each picture, as of a slow store")
    parser.add_argument("--gpu-ms", type=float, default=0.0, help="timed wait of each step")
    parser.add_argument("--python-ms", type=float, default=0.0, help="CPU time of each step in the training process")
    parser.add_argument("--start-s", type=float, default=0.0)
    parser.add_argument("--fail", type=int, default=0)
    args = parser.parse_args()
    out = Path(os.environ["SAGEMAKER_BASE_DIR"]) / "checkpoints"
    host = os.environ["SM_CURRENT_HOST"]
    number = len(list(out.glob(f"meter-{host}-*.jsonl")))
    meter = Meter(out / f"meter-{host}-{number}.jsonl")
    time.sleep(args.start_s)
    if args.fail:
        raise RuntimeError("the data has no class folders")
    pictures = sorted(Path(os.environ["SM_CHANNEL_TRAIN"]).rglob("*.jpg"))
    queue: multiprocessing.Queue[int] = multiprocessing.Queue(maxsize=2 * args.workers)
    workers = [multiprocessing.Process(target=work, args=(queue, pictures, args), daemon=True) for _ in range(args.workers)]
    for worker in workers:
        worker.start()
    waits = []
    end_s = time.time() + args.seconds
    while time.time() < end_s:
        begun_s = time.time()
        queue.get()
        waits.append((begun_s, time.time() - begun_s))
        meter.gpu(args.gpu_ms / 1000)
        burn(args.python_ms / 1000)
    for worker in workers:
        worker.kill()
    meter.end()
    (out / f"waits-{host}-{number}.json").write_text(json.dumps(waits))


def work(queue: multiprocessing.Queue[int], pictures: list[Path], args: argparse.Namespace) -> None:
    place = os.getpid()
    while True:
        for _ in range(args.batch):
            time.sleep(args.latency_ms / 1000)
            data = pictures[place % len(pictures)].read_bytes()
            for _ in range(args.repeat):
                Image.open(io.BytesIO(data)).convert("RGB").resize((224, 224))
            place += 1
        queue.put(args.batch)


def burn(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


class Meter:
    def __init__(self, path: Path) -> None:
        self.path, self.busy_s, self.working_since = path, 0.0, 0.0
        self.cores_s, self.before = 0.0, threads()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def gpu(self, seconds: float) -> None:
        self.working_since = time.time()
        time.sleep(seconds)
        self.busy_s += time.time() - self.working_since
        self.working_since = 0.0

    def run(self) -> None:
        with open(self.path, "w") as file:
            while not self.stopped.wait(0.25):
                since = self.working_since
                now = time.time()
                busy_s = self.busy_s + (now - since if since else 0.0)
                file.write(json.dumps([now, self.cores_used_s(), busy_s, machine()]) + "\n")
                file.flush()

    def cores_used_s(self) -> float:
        """Count a thread that was always running or ready to run as one busy core, and any other by its CPU time."""
        after = threads()
        for name, (now, ran, waited) in after.items():
            begun, ran_before, waited_before = self.before.get(name, (now, ran, waited))
            wall_s, ran_s = now - begun, ran - ran_before
            self.cores_s += wall_s if ran_s + waited - waited_before > 0.9 * wall_s else ran_s
        self.before = after
        return self.cores_s

    def end(self) -> None:
        self.stopped.set()
        self.thread.join()


def threads() -> dict[str, tuple[float, float, float]]:
    """Unix time, seconds on a core, and seconds of waiting for one, of each thread of this process and its children."""
    found = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                if os.getpid() in (parent, int(place.name)):
                    for task in (place / "task").iterdir():
                        ran, waited, _ = map(int, (task / "schedstat").read_text().split())
                        found[task.name] = (time.time(), ran / 1e9, waited / 1e9)
            except OSError:
                continue
    return found


def machine() -> list[float]:
    """Busy seconds of each core."""
    cores = []
    for line in Path("/proc/stat").read_text().splitlines():
        name, *values = line.split()
        if name.startswith("cpu") and name != "cpu":
            numbers = list(map(int, values))
            cores.append((sum(numbers[:8]) - numbers[3] - numbers[4]) / TICK)
    return cores


if __name__ == "__main__":
    main()
