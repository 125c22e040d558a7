"""Rates that were measured: from a session, or from the JSON documents of `headrace tune` and `headrace trials`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.diagnosis.result.model import Diagnosis
from headrace.errors import UsageError
from headrace.report.sessions.session_folder import read_session_folder
from headrace.session.model import Batch, Session
from headrace.system.files.regular_file import read_regular
from headrace.system.text.json import parse_json

__all__ = ["MeasuredRates", "input_cpu_ms", "measured_rates"]


_LARGEST = 1e12
"""Refuse rates above this many images/s: no machine reaches them."""


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    """The rates that a session or a JSON file holds for `headrace cost`. None: not measured.

    img_s_per_core: the loader's images a second per vCPU. gpu_img_s: the model's on one device that never waits. cpu: the
    processor as the kernel names it. images: of an epoch. diagnosis: of a session, with its fixes.
    """

    img_s_per_core: float | None = None
    gpu_img_s: float | None = None
    cpu: str | None = None
    images: int | None = None
    diagnosis: Diagnosis | None = None


def measured_rates(path: Path) -> MeasuredRates:
    """Read the rates from a session folder or a JSON file. Raises `UsageError` for a file without rates."""
    found = _from_session(path) if path.is_dir() else _from_json(path)
    watched = found.diagnosis is not None and found.diagnosis.img_s is not None
    if found.img_s_per_core is None and found.gpu_img_s is None and not watched:
        raise UsageError(
            f"{path} holds no rate of a loader or a GPU", hint="pass a session folder, or what `headrace tune --json` wrote"
        )
    return found


def input_cpu_ms(folder: Path) -> tuple[float, str | None]:
    """Return the CPU milliseconds that the input of a session took for an image, and the processor as the kernel names it.

    Decoding, augmentation and collating count, and what a worker does to hand batches over. Raises `UsageError` for a session
    whose batches have no CPU time.
    """
    session = Session.load(folder)
    known = [batch for batch in session.batches if batch.cpu_s is not None and batch.items]
    images = sum(batch.items or 0 for batch in known)
    spent_s = math.fsum(_cpu_s(batch) for batch in known)
    if not images or spent_s <= 0:
        raise UsageError(
            f"{folder} holds no CPU time of batches", hint="--augmentation takes CPU milliseconds an image as a number, too"
        )
    return 1000 * spent_s / images, session.host.cpu_model


def _cpu_s(batch: Batch) -> float:
    """Return all CPU time that a batch took. In the training process, what other threads do meanwhile is not the input's."""
    beside = (batch.pool_cpu_s or 0.0) + (batch.other_cpu_s or 0.0) if batch.worker >= 0 else 0.0
    return (batch.cpu_s or 0.0) + beside


def _from_session(folder: Path) -> MeasuredRates:
    session, diagnosis = read_session_folder(folder)
    ceiling, host = diagnosis.ceiling_img_s, session.host
    gpus = len(host.gpus) or 1
    return MeasuredRates(None, ceiling / gpus if ceiling else None, host.cpu_model, None, diagnosis)


def _from_json(path: Path) -> MeasuredRates:
    try:
        found = _rates_of(parse_json(read_regular(path)))
        rates = [rate for rate in (found.img_s_per_core, found.gpu_img_s) if rate is not None]
        if not all(0 < rate < _LARGEST for rate in rates):
            raise ValueError(f"rates must be above 0 and below {_LARGEST:g} img/s, not {rates}")
        return found
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as reason:
        raise UsageError(f"cannot read rates from {path}: {reason}") from None


def _rates_of(document: dict[str, Any]) -> MeasuredRates:
    """Return the rates in what `tune --json` or `trials` wrote. Raises what Python does for values of other types."""
    if "ingest" in document:  # headrace tune --json
        rates = [trial["img_s"] / trial["threads"] for trial in document["ingest"] if trial.get("img_s")]
        compute = document.get("compute_img_s")
        ranks = document.get("ranks") or 1
        return MeasuredRates(max(rates, default=None), compute / ranks if compute else None)
    rows = document.get("rows", [])
    ingest = [row["ingest_img_s"] / row["workers"] for row in rows if row.get("ingest_img_s") and row.get("workers")]
    compute_rates = [row["compute_img_s"] for row in rows if row.get("compute_img_s") and not row.get("simulated")]
    return MeasuredRates(max(ingest, default=None), max(compute_rates, default=None))
