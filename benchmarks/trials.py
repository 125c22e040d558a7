"""All experiments of `headrace trials` on this machine, one after the other: their tables on one page.

    python benchmarks/trials.py [--only NAME …] [--out FOLDER] [--simulate GPU] [--write]

Each experiment runs as the command does, with its own scale and budget (2 to 11 minutes each). A run that was ended continues
in its folder. Experiments that do not run now keep their part of the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import record
from headrace.trials.experiment.cells import experiment_names, load
from pages.document import DATA
from pages.trials import COLUMNS, ordered

PACKAGES = ("headrace", "pillow", "torch", "torchvision", "numpy")


def measured(name: str, folder: Path, simulate: str | None) -> dict[str, Any]:
    """Run `headrace trials` with one experiment. Return the results that the page shows."""
    command = [sys.executable, "-m", "headrace", "trials", name, "--json", "--out", str(folder / name)]
    if simulate and load(name).kind == "input":  # a training computes
        command += ["--simulate", simulate]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"headrace trials {name} ended with {done.returncode}")
    return part_of(json.loads(done.stdout))


def part_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return the results that the page shows, from a JSON document of `headrace trials`."""
    shown = {key for key, _, _ in COLUMNS}
    rows = [
        {key: rounded(value) for key, value in row.items() if value is not None and key in shown}
        for row in document["rows"]
        if row["error"] is None
    ]
    failed = {(row["loader"], row["error"]) for row in document["rows"] if row["error"] is not None}
    rows += [{"loader": loader, "error": error} for loader, error in sorted(failed)]
    kept = ("title", "simulate", "elapsed_s", "sentences", "notes")
    return {key: document[key] for key in kept} | {"date": time.strftime("%Y-%m-%d"), "rows": rows}


def rounded(value: Any) -> Any:
    """Return a number with five significant digits; anything else as it is."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def main() -> int:
    """Run the experiments and write their page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=experiment_names(), default=experiment_names())
    parser.add_argument("--out", type=Path, default=Path("headrace-sessions/trials"), metavar="FOLDER")
    parser.add_argument("--simulate", metavar="GPU")
    parser.add_argument("--write", action="store_true", help="write the document and the pages")
    args = parser.parse_args()
    file = DATA / "trials.json"
    experiments = json.loads(file.read_text(encoding="utf-8"))["experiments"] if file.is_file() else {}
    for name in args.only:
        experiments[name] = measured(name, args.out, args.simulate)
    experiments = {name: experiments[name] for name in ordered(experiments)}
    record.publish(record.document("trials", PACKAGES, settings={}, experiments=experiments), save=args.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
