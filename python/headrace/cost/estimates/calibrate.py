"""Compare predicted with observed seconds of finished runs, and keep a factor for each kind of machine.

A factor is observed ÷ predicted seconds: the geometric mean over the runs of a kind, since errors of rates multiply. Factors
are kept in `~/.config/headrace/calibration.json` (`HEADRACE_CALIBRATION` names another file).
They divide the rates of later estimates.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.session.typed_json import converter
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.regular_file import read_regular
from headrace.system.text.json import parse_json

__all__ = ["Calibration", "FinishedRun", "calibrate", "factor", "factors", "leave_one_out", "read_run"]


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The predicted and the observed seconds of a run, start-up and download included. kind: "ec2:g5.xlarge", or "local"."""

    kind: str
    predicted_s: float
    observed_s: float

    @property
    def ratio(self) -> float:
        """Observed divided by predicted seconds."""
        return self.observed_s / self.predicted_s


@dataclass(frozen=True, slots=True)
class Calibration:
    """The result of `headrace cost --calibrate`.

    factors: observed ÷ predicted seconds by kind of machine. runs: all runs they come from. median_error: median relative error
    when each run is predicted with the factor of the others; None with too few runs. file: where the factors are stored.
    """

    factors: dict[str, float]
    runs: tuple[FinishedRun, ...]
    median_error: float | None
    file: Path

    def lines(self) -> list[str]:
        """Return the calibration in words: one line for each kind of machine, the median error, and the file."""
        found, counts = [], Counter(run.kind for run in self.runs)
        for kind, value in sorted(self.factors.items()):
            found.append(f"{kind}: {counts[kind]} runs took {value:.2f} × the predicted time")
        if self.median_error is not None:
            found.append(f"each run predicted from the others: median error {100 * self.median_error:.1f} %")
        return [*found, f"kept in {self.file}"]


def factor(runs: Iterable[FinishedRun]) -> float:
    """Return the geometric mean of observed ÷ predicted seconds; 1 for no runs."""
    ratios = [run.ratio for run in runs]
    return statistics.geometric_mean(ratios) if ratios else 1.0


def leave_one_out(runs: Sequence[FinishedRun]) -> list[float]:
    """Return for each run the relative error of its prediction with the factor of the other runs of its kind."""
    logs: dict[str, list[float]] = {}
    for run in runs:
        logs.setdefault(run.kind, []).append(math.log(run.ratio))
    sums = {kind: (math.fsum(found), len(found)) for kind, found in logs.items()}
    errors = []
    for run in runs:
        total, count = sums[run.kind]
        others = math.exp((total - math.log(run.ratio)) / (count - 1)) if count > 1 else 1.0
        errors.append(abs(run.predicted_s * others / run.observed_s - 1))
    return errors


def calibrate(files: Sequence[Path]) -> Calibration:
    """Add the runs in `files` to the stored ones, store and return the new factors. Raises `UsageError` for a bad file."""
    place = _file()
    kept = {_identity(entry): entry for entry in _kept(place)["runs"]}
    for path in files:
        for run in read_run(path):
            entry = {"kind": run.kind, "predicted_s": run.predicted_s, "observed_s": run.observed_s, "file": path.name}
            kept[_identity(entry)] = entry
    runs = tuple(FinishedRun(entry["kind"], entry["predicted_s"], entry["observed_s"]) for entry in kept.values())
    by_kind: dict[str, list[FinishedRun]] = {}
    for run in runs:
        by_kind.setdefault(run.kind, []).append(run)
    found = {kind: factor(of_kind) for kind, of_kind in sorted(by_kind.items())}
    place.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"factors": found, "runs": list(kept.values())}, indent=1)
    atomic_write(place, text.encode(), private=True)
    errors = leave_one_out(runs)
    return Calibration(found, runs, statistics.median(errors) if len(runs) > 1 else None, place)


def factors() -> dict[str, float]:
    """Return the stored factors (observed ÷ predicted seconds) by kind of machine; empty if nothing was calibrated."""
    found: dict[str, float] = _kept(_file())["factors"]
    return found


def read_run(path: Path) -> list[FinishedRun]:
    """Read finished runs from a JSON file.

    Either `{kind, predicted_s, observed_s}`, a list of these, or the description of a SageMaker training job with its
    prediction (`predicted_s` beside the fields of DescribeTrainingJob). Raises `UsageError` for a file of another form.
    """
    try:
        document = parse_json(read_regular(path))
    except (OSError, ValueError) as reason:
        raise UsageError(f"cannot read a finished run from {path}: {reason}") from None
    entries = document if isinstance(document, list) else [document]
    return [_run(entry, path) for entry in entries]


def _run(entry: Any, path: Path) -> FinishedRun:
    if not isinstance(entry, dict):
        raise UsageError(f"{path} holds no finished run", hint="expected {kind, predicted_s, observed_s}")
    try:
        if "ResourceConfig" in entry:
            entry = {
                "kind": "sagemaker:" + str(entry["ResourceConfig"].get("InstanceType", "")).removeprefix("ml."),
                "predicted_s": entry.get("predicted_s"),
                "observed_s": entry.get("BillableTimeInSeconds") or _lasted_s(entry),
            }
        run = FinishedRun(str(entry["kind"]), float(entry["predicted_s"]), float(entry["observed_s"]))
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as reason:
        raise UsageError(f"{path}: not a finished run: {reason!r}", hint="expected {kind, predicted_s, observed_s}") from None
    if not (run.predicted_s > 0 and run.observed_s > 0 and math.isfinite(run.ratio)):
        raise UsageError(f"{path}: seconds must be above 0, not {run.predicted_s:g} and {run.observed_s:g}")
    return run


def _lasted_s(entry: dict[str, Any]) -> float | None:
    start, end = entry.get("TrainingStartTime"), entry.get("TrainingEndTime")
    if start is None or end is None:
        return None
    if isinstance(start, str) and isinstance(end, str):
        return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    return float(end) - float(start)


def _file() -> Path:
    named = os.environ.get("HEADRACE_CALIBRATION")
    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Path(named) if named else base / "headrace" / "calibration.json"


def _kept(place: Path) -> dict[str, Any]:
    """Return the stored factors and runs. A file that cannot be read counts as empty, and `calibrate` replaces it."""
    try:
        document = parse_json(read_regular(place))
        factors_of = converter(Mapping[str, float])(document["factors"])
        if not all(value > 0 for value in factors_of.values()):
            raise ValueError("a factor that is not above 0")
        runs = [{**asdict(_run(entry, place)), "file": str(entry.get("file"))} for entry in document["runs"]]
        return {"factors": factors_of, "runs": runs}
    except (KeyError, OSError, TypeError, UsageError, ValueError):
        return {"factors": {}, "runs": []}


def _identity(entry: dict[str, Any]) -> tuple[object, ...]:
    return entry["kind"], entry["predicted_s"], entry["observed_s"], entry.get("file")
