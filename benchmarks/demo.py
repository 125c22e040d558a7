"""The demo: an ordinary training script, the same script under `headrace run`, and `headrace train` from the pack.

    python benchmarks/demo.py [--seconds S] [--write]

Runs `headrace demo --json` and keeps its figures. Everything is in one run, plain and taken over in turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from typing import Any

import record
from headrace.training.distributed.devices import SIMULATED

PACKAGES = ["headrace", "torch", "pillow"]


def run_demo(seconds: float) -> dict[str, Any]:
    """Run `headrace demo` and return its document."""
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        command = [sys.executable, "-m", "headrace", "demo", "--json", "--seconds", f"{seconds:g}", "--keep", folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rows(story: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the page."""
    before = story["before_img_s"]
    rates = {
        "the plain script": (before, story["before"]),
        "the same script under headrace run": (story["after_img_s"], story["after"]),
        "headrace train, from the pack": (story["train_img_s"], story["trained"]),
    }
    lines = [
        {
            "input": name,
            "img_s": img_s,
            "wait_share": measured["wait_share"],
            "times": img_s / before,
            "rounds": measured["img_s"],
        }
        for name, (img_s, measured) in rates.items()
    ]
    if story["gpu_img_s"] is not None:
        ceiling = story["gpu_img_s"]
        lines.append({"input": "its own speed", "img_s": ceiling, "wait_share": 0.0, "times": ceiling / before})
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="about how long each plain measurement takes")
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    args = parser.parse_args()
    story = run_demo(args.seconds)
    shape, dtype = story["batches"][0][:2]
    settings = {
        "device": story["device"],
        "rounds": len(story["rounds"]["plain"]),
        "images_per_round": story["images_per_round"],
        "batch": f"{'×'.join(map(str, shape))} {dtype}",
        "gpu_img_s": story["gpu_img_s"],
        "gpu_source": SIMULATED["a100"][1] if story["gpu_img_s"] is not None else None,
        "seconds": story["seconds"],
    }
    found = record.document("demo", PACKAGES, settings=settings, verdict=story["verdict"], rows=rows(story))
    record.publish(found, save=args.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
