"""A loader in a process of its own, for tests: python loader_process.py DATASET STATE OPTIONS (JSON).

By default two epochs from the state in the file STATE (if there is one), a line with the SHA-256 of each batch. OPTIONS:
"kill_after": N saves the state after batch N and kills the process; "epochs": [A, B] prints the resident memory in bytes
after A epochs and after B more; "endless": iterate until a signal comes. The others are the Loader's own.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import headrace
from headrace.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def walk(data: headrace.Loader, state: Path, kill_after: int | None) -> None:
    if state.exists():
        data.load_state_dict(json.loads(state.read_text()))
    number = 0
    while data.epoch < 2:
        if kill_after == 0:
            stop(data, state)
        for images, labels in data:
            print(hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest(), flush=True)
            number += 1
            if number == kill_after:
                stop(data, state)


def stop(data: headrace.Loader, state: Path) -> None:
    state.write_text(json.dumps(data.state_dict()))
    os.kill(os.getpid(), signal.SIGKILL)


def grow(data: headrace.Loader, epochs: list[int]) -> None:
    for count in epochs:
        for _ in range(count):
            for _ in data:
                pass
        print(resident_bytes())


def endless(data: headrace.Loader) -> None:
    try:
        announced = False
        while True:
            for _ in data:
                if not announced:
                    print("running", flush=True)
                    announced = True
    except KeyboardInterrupt:
        data.close()
        left = sum((task / "comm").read_text().startswith("headrace-") for task in Path("/proc/self/task").iterdir())
        print(f"threads left: {left}", file=sys.stderr)
        raise


def main() -> None:
    root, state, given = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    own: dict[str, Any] = {name: given.pop(name, None) for name in ("kill_after", "epochs", "endless")}
    options = {"batch_size": 8, "seed": 11, "threads": 2, "output": "numpy"} | given
    data = headrace.Loader(root, transform=Compose([RandomResizedCrop(24), RandomHorizontalFlip()]), **options)
    if own["epochs"]:
        grow(data, own["epochs"])
    elif own["endless"]:
        endless(data)
    else:
        walk(data, state, own["kill_after"])


if __name__ == "__main__":
    main()
