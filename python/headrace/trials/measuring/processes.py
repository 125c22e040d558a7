"""The processes of a trial: each measures one group of cells, and none outlives the run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.private_files import make_output_folder, output_opener
from headrace.system.processes.end_with_parent import started_to_end_with_parent
from headrace.system.processes.own_python import own_module
from headrace.trials.experiment.cells import Cell
from headrace.trials.inputs.materials import Materials
from headrace.trials.measuring.measure_training import epochs_of, train_command

__all__ = ["GroupTimeout", "run_measuring", "run_training"]


OWN_CLASS = re.compile(r"^headrace(\.\w+)*\.[A-Z]\w*: ")
"""Matches the class name that Python prints before the message of a headrace error, to be cut off."""


class GroupTimeout(HeadraceError):
    """The process of a group of cells did not end within its time limit."""


def run_measuring(out: Path, cell: Cell, spec: dict[str, Any], *, limit_s: float) -> dict[str, Any]:
    """Run `measure_input` in a process of its own for the cells that `spec` names; return its result file, a JSON object.

    Raises `HeadraceError` with the last error line of a process that fails, and `GroupTimeout` after `limit_s` seconds.
    """
    files = _files(out, spec)
    command = own_module("headrace.trials.measuring.measure_input", *map(str, files))
    if cell.loader == "run":
        command = own_module("headrace", "run", "--", *command)
    _run(out, command, cell.loader, limit_s)
    return _result(files[1], cell.loader)


def run_training(out: Path, cell: Cell, materials: Materials, device: str, *, limit_s: float) -> dict[str, Any]:
    """Train a cell's model and return `{epochs, images, train}`; for the loader "pytorch", on several ranks, `{ranks}`.

    epochs: of `epochs_of`. images: of an epoch. train: the JSON of `headrace train`. ranks: the result of `measure_ranks`.
    Raises `HeadraceError` with the last error line of a process that fails, and `GroupTimeout` after `limit_s` seconds.
    """
    images = len(materials.files("train"))
    train = materials.path(cell, "train", images)
    if cell.loader == "pytorch":
        spec = {"cells": [asdict(cell)], "tree": str(materials.tree("train", images))}
        files = _files(out, spec)
        _run(out, own_module("headrace.trials.measuring.measure_ranks", *map(str, files)), "the ranks", limit_s)
        return {"ranks": _result(files[1], "the ranks")}
    val = materials.path(cell, "val", len(materials.files("val")))
    folder = (
        out / "runs" / f"{cell.model}-{os.getpid()}-{len(list((out / 'runs').glob('*'))) if (out / 'runs').is_dir() else 0}"
    )
    arguments = train_command(cell, train, val, folder, device)
    written = _run(out, own_module("headrace", *arguments), "headrace train", limit_s)
    try:
        document: dict[str, Any] = json.loads(written)
        epochs = epochs_of(folder / "metrics.jsonl", images)
    except (OSError, ValueError, KeyError) as error:
        raise HeadraceError(f"headrace train wrote no result: {error}") from error
    return {"epochs": epochs, "images": images, "train": document}


def _files(out: Path, spec: dict[str, Any]) -> tuple[Path, Path]:
    folder = out / "work"
    make_output_folder(folder)
    spec_file, result_file = folder / "spec.json", folder / "result.json"
    result_file.unlink(missing_ok=True)
    atomic_write(spec_file, json.dumps(spec))
    return spec_file, result_file


def _run(out: Path, command: Sequence[str], name: str, limit_s: float) -> str:
    """Run a command to its end and return its standard output.

    Raises `HeadraceError` when it fails, `GroupTimeout` when it takes longer than `limit_s`.
    """
    environment = os.environ | {"HEADRACE_INDEX_CACHE": str(out / "data" / "jpeg-index")}
    folder = out / "work"
    make_output_folder(folder)
    out_file, error_file = folder / "stdout.txt", folder / "stderr.txt"
    with open(out_file, "wb", opener=output_opener) as written, open(error_file, "wb", opener=output_opener) as errors:
        process = subprocess.Popen(
            started_to_end_with_parent(command),
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=errors,
            env=environment,
            process_group=0,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise GroupTimeout(f"the process of {name} did not end within {limit_s:.0f} s") from None
        finally:
            _end(process)
    if code != 0:
        last = _last_words(error_file.read_text(errors="replace"))
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise HeadraceError(f"the process of {name} failed ({ended}): {last}")
    return out_file.read_text(errors="replace")


def _last_words(text: str) -> str:
    """Return the last line that begins with `error:`, as our commands write it; without one, the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    last = errors[-1].removeprefix("error: ") if errors else lines[-1] if lines else "no message"
    return OWN_CLASS.sub("", last)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the process and its children: workers of a process that was interrupted."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _result(file: Path, name: str) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HeadraceError(f"the process of {name} wrote no result: {error}") from error
    return result
