"""Run an experiment: one process a group of cells, results kept on disk, so that a killed run continues where it was.

The cells of one load are measured one loader after the other, so that a change of the machine's speed meets all loaders. When
time is short, the last groups of the declared order are dropped, and the table says so.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headrace._native import __version__
from headrace.errors import HeadraceError, UsageError
from headrace.session.typed_json import converter
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.private_files import make_output_folder, output_opener
from headrace.system.files.regular_file import read_regular
from headrace.system.text.json import parse_json
from headrace.trials.experiment.cells import Cell, Experiment
from headrace.trials.experiment.pixels import compare_pixels
from headrace.trials.experiment.verdicts import Verdict, judge
from headrace.trials.inputs.materials import Materials
from headrace.trials.measuring.loaders import gpu_name, missing
from headrace.trials.measuring.processes import GroupTimeout, run_measuring, run_training

__all__ = ["Group", "Run", "Settings", "materials_of", "only_run", "run_groups"]

LONGEST_S, SHORTEST_S = 4.0, 0.6
"""Seconds of one measurement if time allows, and the shortest that still gives a rate."""

START_S, VERDICT_S = 7.0, 1.8
"""Seconds of a group besides its measurements (Python, torch, opening the data), and of the verdict of each of its models. On
two cores that do nothing else they take half as long."""

PATIENCE, PATIENCE_S = 12.0, 180.0
"""A group that takes this many times its expected seconds, and at least `PATIENCE_S`, hangs."""

TRAINING_LIMIT_S = 900.0
"""Stop a training of a trial as hanging after this time, in seconds."""

LEAST_FREE_BYTES = 1_000_000
"""Report a full disk as the reason of a failed group if fewer bytes than this are free."""

OWN = ("headrace", "headrace-exact", "headrace-packed", "headrace-gpu", "run")
"""Loaders that are measured even if the reference loader, with whose pixels theirs are compared, cannot run."""

METHOD = 5
"""Version of the measuring method: results of another version are not continued. 2: rates count whole rounds of the workers. 3:
the object store reads only the requested range. 4: the training whose rate counts is not recorded. 5: a pass of several epochs
counts the start of none."""

DROPPED = "dropped: the time of --budget-minutes was over"
"""Error text of a group that was not measured because it did not fit into `--budget-minutes`."""

OTHER_WORK = "not the same work"
"""Beginning of the error of a loader whose pixels differ from the reference's."""

SETTINGS_FILE = "settings.json"
LOCK_FILE = ".lock"


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a run of an experiment.

    out: folder of everything. own: the user's data; None: photographs are made, `scale` of the published number.
    gpu: simulated GPU; None: `device` computes. device: "cpu" or "cuda". budget_s: time for all groups. seconds: of each
    measurement; None: what the budget allows. batch_size: that of all cells where the experiment has another; else None.
    """

    out: Path
    own: Path | None
    scale: float
    gpu: str | None
    device: str
    budget_s: float
    seconds: float | None = None
    batch_size: int | None = None

    @property
    def is_real_gpu(self) -> bool:
        """Whether the model computes on a GPU of this machine."""
        return self.gpu is None and self.device == "cuda"


@dataclass(frozen=True, slots=True)
class Group:
    """The cells that one process measures, with the result. result: what the process wrote; None with `error` or `dropped`.

    error: why there is no result, in words. dropped: whether time was too short. verdicts: model → verdict.
    earlier_s: seconds that the group took in an earlier run, from which it was read; 0 where it was measured now.
    """

    cells: tuple[Cell, ...]
    result: dict[str, Any] | None = None
    error: str | None = None
    dropped: bool = False
    verdicts: dict[str, Verdict] | None = None
    earlier_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """The groups of one run. pixels: loader → how its pixels differ from those of the reference. seconds: of each measurement.

    elapsed_s: from the start to the end, with what its groups took in earlier runs.
    """

    experiment: Experiment
    settings: Settings
    groups: tuple[Group, ...]
    pixels: dict[str, dict[str, Any]]
    seconds: float
    elapsed_s: float


def run_groups(
    experiment: Experiment,
    settings: Settings,
    *,
    log: Callable[[str], None],
    on_start: Callable[[int], None] = lambda groups: None,
    on_group: Callable[[Group], None] = lambda group: None,
) -> Run:
    """Measure the groups of an experiment that have no stored result yet, and return the results of all groups.

    on_start, on_group: called with the number of groups, and with each group when it is done.
    Raises `UsageError` when `settings.out` holds a run with other settings or another run works there, `SourceError` for data
    that cannot be made, `HeadraceError` when results cannot be written.
    """
    began = time.monotonic()
    _remember(experiment, settings)
    with only_run(settings.out):
        _check_data(experiment, settings)
        groups = _groups(experiment)
        on_start(len(groups))
        runnable = [cells for cells in groups if missing(cells[0].loader, cells[0].data) is None]
        allowed = settings.seconds or _allowed_seconds(settings.budget_s, runnable)
        pixels: dict[str, dict[str, Any]] = {}
        done: list[Group] = []
        taken: list[float] = []
        for cells in groups:
            start = time.monotonic()
            left_s = _left_s(began, settings, taken)
            group, fresh = _group(experiment, settings, cells, pixels, allowed, log, left_s)
            if fresh:
                taken.append(time.monotonic() - start)
            done.append(group)
            on_group(group)
        elapsed_s = time.monotonic() - began + sum(group.earlier_s for group in done)
        return Run(experiment, settings, tuple(done), pixels, _seconds(settings, allowed), elapsed_s)


@contextlib.contextmanager
def only_run(out: Path) -> Iterator[None]:
    """Context manager: lock a folder of results, so that only one run works in it.

    Raises `UsageError` if another run holds it, and `HeadraceError` for an `OSError` of the block: results cannot be written.
    """
    cannot_write, hint = f"cannot write results in {out}", "what was measured is kept; the same command continues there"
    try:
        lock = open(out / LOCK_FILE, "wb", opener=output_opener)  # noqa: SIM115 (closed below)
    except OSError as error:
        raise HeadraceError(f"{cannot_write}: {error.filename}: {error.strerror or error}", hint=hint) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another run of headrace trials is using {out}", hint="wait for it, stop it, or choose another --out"
            ) from None
        try:
            yield
        except OSError as error:
            raise HeadraceError(f"{cannot_write}: {error.strerror or error}", hint=hint) from error


def _check_data(experiment: Experiment, settings: Settings) -> None:
    """Remove data that a killed run left unfinished. Raise `UsageError` if --data has no images."""
    materials = materials_of(experiment, settings)
    materials.remove_unfinished()
    if settings.own is not None:
        materials.counts()


def _left_s(began: float, settings: Settings, taken: Sequence[float]) -> float | None:
    """Return the seconds that are left for one more group; None where a group of mean length does not fit any more."""
    left = settings.budget_s - (time.monotonic() - began)
    expected = sum(taken) / len(taken) if taken else 0.0
    return left if left > expected else None


def _groups(experiment: Experiment) -> list[tuple[Cell, ...]]:
    by_group: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in experiment.cells:
        by_group.setdefault(cell.group, []).append(cell)
    return [tuple(cells) for cells in by_group.values()]


def _allowed_seconds(budget_s: float, groups: Sequence[Sequence[Cell]]) -> float:
    """Return the seconds of one measurement that let all groups fit into the budget."""
    models = sum(len(cells) for cells in groups)
    fixed = len(groups) * START_S + models * VERDICT_S
    # A group measures its input (once too short, once right) and that of validation; a model computing, training twice (once
    # recorded) and validation.
    shares = len(groups) * 2.0 + models * 2.7
    return max(SHORTEST_S, (budget_s - fixed) / max(1.0, shares))


def _seconds(settings: Settings, allowed_s: float) -> float:
    """Return the seconds of one measurement: as asked for, or as long as a rate needs that is not held up by slow batches."""
    return settings.seconds or min(LONGEST_S, allowed_s)


def _remember(experiment: Experiment, settings: Settings) -> None:
    """Write the settings of a new run, or compare them with those of the run to continue."""
    wanted = {
        "experiment": experiment.name,
        "data": str(settings.own) if settings.own else None,
        "scale": settings.scale,
        "gpu": settings.gpu,
        "device": gpu_name() if settings.is_real_gpu else settings.device,
        "headrace": __version__,
        "method": METHOD,
    }
    file = settings.out / SETTINGS_FILE
    try:
        make_output_folder(settings.out)
        if file.is_file():
            found = parse_json(read_regular(file))
            if not isinstance(found, dict):
                raise ValueError(f"{file.name} holds no settings")
            other = [name for name, value in wanted.items() if found.get(name) != value]
            if other:
                was = ", ".join(f"{name} {found.get(name)} instead of {wanted[name]}" for name in other)
                raise UsageError(
                    f"{settings.out} holds trials with other settings: {was}",
                    hint="choose another --out, or remove it",
                )
        elif any(settings.out.iterdir()):
            raise UsageError(f"{settings.out} holds other files", hint="choose an empty or new folder with --out")
        atomic_write(file, json.dumps(wanted, indent=1).encode())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot use --out {settings.out}: {error}") from None


def _group(
    experiment: Experiment,
    settings: Settings,
    cells: tuple[Cell, ...],
    pixels: dict[str, dict[str, Any]],
    allowed_s: float,
    log: Callable[[str], None],
    left_s: float | None,
) -> tuple[Group, bool]:
    """Return a group, measured or read, and whether it was measured now. A group that takes longer than `left_s` is ended."""
    cell = cells[0]
    why = missing(cell.loader, cell.data)
    if why is not None:
        return Group(cells, error=why), False
    file = settings.out / "cells" / f"{_name(cells)}.json"
    document = _read(file)
    fresh = document is None
    start = time.monotonic()
    if document is None and left_s is None:
        return Group(cells, dropped=True, error=DROPPED), False
    try:
        difference = _pixel_difference(experiment, settings, cell, pixels, log, left_s or PATIENCE_S)
        if difference is not None:
            return Group(cells, error=difference), fresh
        if document is None:
            rest_s = max(1.0, (left_s or 0.0) - (time.monotonic() - start))  # without the comparison of pixels
            found = _measured(experiment, settings, cells, allowed_s, file, rest_s)
            document = _kept(file, found | {"taken_s": time.monotonic() - start})
    except HeadraceError as error:
        if isinstance(error, GroupTimeout) and left_s is not None and time.monotonic() - start >= left_s:
            return Group(cells, dropped=True, error=DROPPED), fresh
        full = os.strerror(errno.ENOSPC) in str(error)  # a process that removed what it could not finish leaves space
        if full or shutil.disk_usage(settings.out).free < LEAST_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error  # every further group would fail as well
        return Group(cells, error=str(error)), fresh
    earlier_s = 0.0 if fresh else float(document.get("taken_s", 0.0))  # older results do not have it
    return Group(cells, result=document["result"], verdicts=_verdicts(document), earlier_s=earlier_s), fresh


def _verdicts(document: dict[str, Any]) -> dict[str, Verdict]:
    return {model: converter(Verdict)(values) for model, values in document["verdicts"].items()}


def _measured(
    experiment: Experiment, settings: Settings, cells: tuple[Cell, ...], allowed_s: float, file: Path, left_s: float
) -> dict[str, Any]:
    """Run the process of a group for at most `left_s`, and judge its sessions. Return both. `file`: where they will be kept."""
    if experiment.kind == "training":
        return _trained(experiment, settings, cells[0], left_s)
    sessions = settings.out / "sessions" / f"{file.stem}-{os.getpid()}-{time.monotonic_ns()}"
    spec = _spec(experiment, settings, cells, allowed_s) | {"phase": "measure", "sessions": str(sessions)}
    expected = START_S + allowed_s * (2 + 3 * len(cells))
    result = run_measuring(settings.out, cells[0], spec, limit_s=min(left_s, max(PATIENCE_S, PATIENCE * expected)))
    full = cells[0].matches(experiment.reference)
    verdicts = {model: judge(Path(found["session"]), full=full) for model, found in result["models"].items()}
    return {"result": result, "verdicts": {model: asdict(verdict) for model, verdict in verdicts.items()}}


def _trained(experiment: Experiment, settings: Settings, cell: Cell, left_s: float) -> dict[str, Any]:
    """Train a cell's model. Return the trainer's result, and the diagnosis of the session that the trainer recorded."""
    limit_s = min(left_s, TRAINING_LIMIT_S)
    result = run_training(settings.out, cell, materials_of(experiment, settings), settings.device, limit_s=limit_s)
    session = result.get("train", {}).get("session")
    verdicts = {cell.model: asdict(judge(Path(session), full=False))} if session else {}
    return {"result": result, "verdicts": verdicts}


def _kept(file: Path, document: dict[str, Any]) -> dict[str, Any]:
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(file, json.dumps(document).encode())
    return document


def materials_of(experiment: Experiment, settings: Settings) -> Materials:
    """Return the training and validation data that the experiment's cells read: folders, packs and containers of images."""
    return Materials(
        settings.out / "data",
        train_images=experiment.train_images,
        validation_images=experiment.validation_images,
        mean_bytes=experiment.mean_bytes,
        own=settings.own,
        scale=settings.scale,
    )


def _pixel_difference(
    experiment: Experiment,
    settings: Settings,
    cell: Cell,
    known: dict[str, dict[str, Any]],
    log: Callable[[str], None],
    left_s: float,
) -> str | None:
    """Compare the pixels of a corrected cell's loader with the reference's, once. Return why it is refused, if it is."""
    reference = experiment.reference.get("loader")
    other = cell.mode != "corrected" or experiment.kind == "training" or experiment.compare == "data"
    if other or not reference or cell.loader == reference:
        return None
    if cell.loader not in known:
        known[cell.loader] = _compared(experiment, settings, cell, reference, known, min(left_s, PATIENCE_S))
        log(f"{cell.loader}: {known[cell.loader]['words']}")
    found = known[cell.loader]
    if found["equal"] or cell.loader in ("headrace", "headrace-packed", "headrace-gpu"):
        return None  # fused geometry is listed with its measured difference
    if "failed" in found:
        return None if cell.loader in OWN else found["words"]
    return f"{OTHER_WORK}: {found['words']}"


def _compared(
    experiment: Experiment, settings: Settings, cell: Cell, reference: str, known: dict[str, dict[str, Any]], limit_s: float
) -> dict[str, Any]:
    """Compare a loader's pixels with the reference's. Return the difference, or `failed` with the error of the reference."""
    failed = next((found for found in known.values() if "failed" in found), None)
    if failed is not None:
        return failed
    heaviest = max(each.load for each in experiment.cells)
    files = []
    for loader in (reference, cell.loader):
        one = replace(cell, loader=loader, load=heaviest, data="folder")
        file = settings.out / "cells" / f"pixels-{loader}-{one.transform}-{heaviest}.npy"
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_name(f"partial-{file.name}")
            spec = _spec(experiment, settings, (one,), 1.0) | {"phase": "pixels", "pixels": str(partial)}
            try:
                run_measuring(settings.out, one, spec, limit_s=limit_s)
            except HeadraceError as error:
                if isinstance(error, GroupTimeout) or loader != reference or os.strerror(errno.ENOSPC) in str(error):
                    raise
                return {"equal": False, "failed": True, "words": f"pixels are not compared: {error}"}
            partial.rename(file)
        files.append(file)
    return compare_pixels(*files)


def _spec(experiment: Experiment, settings: Settings, cells: Sequence[Cell], allowed_s: float) -> dict[str, Any]:
    return {
        "cells": [asdict(cell) for cell in cells],
        "train_images": experiment.train_images,
        "validation_images": experiment.validation_images,
        "mean_bytes": experiment.mean_bytes,
        "own": str(settings.own) if settings.own else None,
        "data": str(settings.out / "data"),
        "scale": settings.scale,
        "gpu": settings.gpu,
        "device": settings.device,
        "seconds": _seconds(settings, allowed_s),
        "longest_s": allowed_s,
    }


def _name(cells: Sequence[Cell]) -> str:
    """Return a file name that says what a group is, and differs for all groups."""
    cell = cells[0]
    digest = hashlib.sha256(json.dumps([asdict(each) for each in cells], sort_keys=True).encode()).hexdigest()[:8]
    return f"{cell.mode}-{cell.loader}-{cell.data}-load{cell.load}-{digest}"


def _read(file: Path) -> dict[str, Any] | None:
    """Return the stored result of a group; None where there is no valid one, so that the group is measured again."""
    try:
        document: dict[str, Any] = parse_json(read_regular(file))
        _verdicts(document)
        float(document.get("taken_s", 0.0))
        return document if isinstance(document["result"], dict) else None
    except (AttributeError, LookupError, OSError, TypeError, ValueError):
        return None
