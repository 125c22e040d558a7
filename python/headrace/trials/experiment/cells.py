"""Experiments as declared tables: the cells to measure, their settings, and what others published. Data, not code.

An experiment is a TOML file. Those of the package lie in `trials/experiments`; users write their own. Each `[[cells]]` table
is a product: every combination of its lists is one cell.

    title = "More workers"
    question = "How many workers does a DataLoader need?"
    accelerator = "v100"

    [[cells]]
    loader = "pytorch"
    model = "resnet50"
    workers = [1, 2, 4, 7]
    transform = "caltech"
"""

from __future__ import annotations

import difflib
import itertools
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.system.files.regular_file import read_regular
from headrace.system.text.toml import parse_toml
from headrace.trials.experiment.accelerator import SIMULATED_GPUS

__all__ = [
    "KINDS",
    "LOADERS",
    "MATERIALS",
    "TRANSFORMS",
    "Cell",
    "Experiment",
    "Published",
    "experiment_names",
    "load",
    "select",
]

LOADERS = (
    "pytorch", "run", "headrace", "headrace-exact", "headrace-packed", "headrace-gpu",
    "torchvision-gpu", "dali-cpu", "dali-gpu", "ffcv", "tfdata",
)  # fmt: skip
"""All loaders that a cell can name. Only those whose packages are installed run."""

TRANSFORMS = ("augmentation-load", "caltech", "imagenet", "small")
"""Names of the transforms that a cell can use: see `headrace.trials.experiment.transforms`."""

MATERIALS = (
    "folder", "packed", "tar", "recordio", "tfrecord", "small-files", "small-shards", "preresized", "preresized-packed",
    "decoded", "slow", "s3", "pipe",
)  # fmt: skip
"""Forms of the data that a cell can read: see `headrace.trials.inputs.materials`."""

KINDS = ("input", "training")
"""What a cell measures: the input path with a timed or real step, or a training with loss and accuracy."""


_NOT_IN_FILES = ("--model", "--config", "--out", "--checkpoint-url", "--resume")
"""Options of `headrace train` that the file of an experiment may not set: they choose code to run or files to write."""

_MOST_BYTES = 1 << 20  # largest file of an experiment that is read; usual ones have a few kB

NUMBERS: dict[str, tuple[Any, float, float]] = {
    "train_images": (int, 1, 10**12),
    "validation_images": (int, 0, 10**12),
    "mean_bytes": (int, 1, 10**12),
    "published_vcpus": (int, 1, 10**6),
    "scale": (int | float, 1e-6, 10**6),
    "budget_minutes": (int | float, 0.01, 24 * 60),
}
"""Settings of an experiment that are numbers → their type, smallest and largest value."""

MOST_CELLS, MOST_PUBLISHED = 2_000, 500
"""Declare so many cells and published numbers at most. Lists multiply: a kilobyte of text may stand for 10^16 cells."""

MOST_CHARACTERS = 4_096
"""Characters of `arguments`; to split a megabyte of them takes minutes."""


def _largest(name: str) -> int | None:
    """Return the largest value of a field of a cell that is a number. Somebody else may have written the file.

    Ranks are processes of a training, which bounds them itself. `--batch-size` of the command line may be larger.
    """
    workers = max(64, 2 * (os.cpu_count() or 1))
    return {"workers": workers, "batch_size": 4_096, "load": 1_000, "epochs": 10_000, "ranks": 1_024}.get(name)


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement. Cells that differ in `model` only share a process.

    loader, model, transform, data, mode, precision: names. load: how often the augmentations come before the crop.
    batch_size: images of a batch, of all ranks together. workers: worker processes or threads, of all ranks; None: one a usable
    core.
    ranks: processes that train together. epochs: passes of a training. recipe: a name for its settings. arguments: further
    arguments of `headrace train`, as in a shell.
    """

    loader: str = "pytorch"
    model: str = "resnet50"
    load: int = 1
    batch_size: int = 32
    mode: str = "corrected"
    workers: int | None = None
    precision: str = "fp32"
    transform: str = "augmentation-load"
    data: str = "folder"
    ranks: int = 1
    epochs: int = 1
    recipe: str = "plain"
    arguments: str = ""

    @property
    def group(self) -> tuple[Any, ...]:
        """All fields but the model. One process measures all cells whose groups are equal."""
        return tuple(value for name, value in asdict(self).items() if name != "model")

    def matches(self, where: Mapping[str, Any]) -> bool:
        """Return whether every field of `where` has the given value, or one of a list of values."""
        return all(getattr(self, name) in (value if isinstance(value, list) else [value]) for name, value in where.items())


@dataclass(frozen=True, slots=True)
class Published:
    """Published numbers for the cells that match `where`. side: A or B of a comparison."""

    where: Mapping[str, Any]
    seconds_per_epoch: float | None = None
    img_s: float | None = None
    side: str | None = None


@dataclass(frozen=True, slots=True)
class Experiment:
    """A declared table of cells, the most important first: the last are dropped first when time is short.

    title, question, shows, cannot_show: words for the page. source: where the published numbers stand. not_projected: what they
    hold that the projection leaves out.
    kind: one of `KINDS`. accelerator: the simulated GPU where there is no real one; None: the CPU computes.
    train_images, validation_images: of the published dataset; `scale` of them are made. mean_bytes: of its images.
    published_vcpus, published_cpu: the machine of the published numbers, for the projection.
    reference: the loader to which gains refer. compare: the field by which rows of a model are compared.
    budget_minutes: time that all cells together may take.
    """

    name: str
    title: str
    question: str
    cells: tuple[Cell, ...]
    shows: str = ""
    cannot_show: str = ""
    source: str = ""
    not_projected: str = ""
    kind: str = "input"
    accelerator: str | None = "v100"
    train_images: int = 9469
    validation_images: int = 3925
    scale: float = 0.04
    mean_bytes: int = 110_000
    published: tuple[Published, ...] = ()
    published_vcpus: int | None = None
    published_cpu: str | None = None
    reference: Mapping[str, Any] = field(default_factory=dict)
    compare: str = "loader"
    budget_minutes: float = 9.0

    def published_of(self, cell: Cell) -> Published | None:
        """Return the published numbers of a cell."""
        return next((entry for entry in self.published if cell.matches(entry.where)), None)


def experiment_names() -> list[str]:
    """Return the names of the experiments that headrace brings, for `load`."""
    folder = resources.files("headrace.trials").joinpath("experiments")
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(name: str) -> Experiment:
    """Return an experiment by its name, or from a TOML file.

    Raises `UsageError` for a name or file that does not exist, and for a file that does not declare an experiment.
    """
    names = experiment_names()
    if name in names:
        text = resources.files("headrace.trials").joinpath("experiments", f"{name}.toml").read_text(encoding="utf-8")
        return _parse(name, text, name)
    if not name.endswith(".toml"):
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}; or a TOML file"
        raise UsageError(f"there is no experiment {name!r}", hint=hint)
    try:
        text = read_regular(Path(name), limit=_MOST_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the experiment {name}: {getattr(error, 'strerror', None) or error}") from None
    return _parse(Path(name).stem, text, name)


def select(
    experiment: Experiment,
    *,
    models: Sequence[str] | None = None,
    loads: Sequence[int] | None = None,
    loaders: Sequence[str] | None = None,
    mode: str | None = None,
    batch_size: int | None = None,
) -> Experiment:
    """Return the experiment reduced to cells with these values. Raises `UsageError` if none is left or a loader is unknown."""
    for loader in loaders or ():
        if loader not in LOADERS:
            near = difflib.get_close_matches(loader, LOADERS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(LOADERS)}"
            raise UsageError(f"there is no loader {loader!r}", hint=hint)
    cells = [
        cell
        for cell in experiment.cells
        if (not models or cell.model in models)
        and (not loads or cell.load in loads)
        and (not loaders or cell.loader in loaders)
        and (mode is None or cell.mode == mode)
    ]
    if not cells:
        raise UsageError(
            f"no cell of {experiment.name} matches the options",
            hint=f"it has models {_values(experiment, 'model')}, loads {_values(experiment, 'load')}, "
            f"loaders {_values(experiment, 'loader')}, modes {_values(experiment, 'mode')}",
        )
    if batch_size is not None:
        cells = [replace(cell, batch_size=batch_size) for cell in cells]
    return replace(experiment, cells=tuple(dict.fromkeys(cells)))


def _values(experiment: Experiment, name: str) -> str:
    return ", ".join(dict.fromkeys(str(getattr(cell, name)) for cell in experiment.cells))


def _parse(name: str, text: str, where: str) -> Experiment:
    try:
        document = parse_toml(text)
    except ValueError as error:
        raise UsageError(f"{where} is not TOML: {error}") from None
    tables, published = document.pop("cells", None), document.pop("published", [])
    known = {entry.name for entry in fields(Experiment)} - {"name", "cells", "published"}
    _check_names(document, known, where)
    if not isinstance(tables, list) or not tables:
        raise UsageError(f"{where} declares no [[cells]]", hint="headrace trials -h shows an example")
    for required in ("title", "question"):
        if required not in document:
            raise UsageError(f"{where} needs a {required}, which is text")
    _check_values(document, where)
    if "accelerator" in document and document["accelerator"] == "none":
        document["accelerator"] = None
    if not isinstance(published, list) or not all(isinstance(table, dict) for table in (*tables, *published)):
        raise UsageError(f"{where}: cells and published are tables, written [[cells]] and [[published]]")
    cells: dict[Cell, None] = {}
    for table in tables:
        cells |= dict.fromkeys(_product(table, where))
        _refuse_more(len(cells), where)
    if len(published) > MOST_PUBLISHED:
        raise UsageError(f"{where} has {len(published):,} published numbers, more than {MOST_PUBLISHED:,}")
    entries = [_published(entry, where) for entry in published]
    return Experiment(name=name, cells=tuple(cells), published=tuple(entries), **document)


def _check_values(document: Mapping[str, Any], where: str) -> None:
    """Raise `UsageError` for a setting of an experiment that has another type or is out of range."""
    names = {entry.name for entry in fields(Cell)}
    choices: dict[str, Sequence[str]] = {
        "kind": KINDS,
        "compare": sorted(names - {"arguments"}),
        "accelerator": ("none", *SIMULATED_GPUS),
    }
    for name, value in document.items():
        if name in choices and value not in choices[name]:
            raise UsageError(f"{where}: {name} must be one of {', '.join(choices[name])}, not {value!r}")
        if name == "reference":
            if not isinstance(value, dict):
                raise UsageError(f'{where}: reference is a table, as {{ loader = "pytorch" }}, not {value!r}')
            _check_names(value, names, f"{where}: reference")
            if several := [key for key, item in value.items() if isinstance(item, list)]:
                raise UsageError(f"{where}: reference: {several[0]} must be one value, not a list")
            _product(value, f"{where}: reference")
        elif name in NUMBERS:
            kind, least, most = NUMBERS[name]
            if not isinstance(value, kind) or isinstance(value, bool) or not least <= value <= most:
                words = "a whole number" if kind is int else "a number"
                raise UsageError(f"{where}: {name} must be {words} from {least:g} to {most:g}, not {value!r}")
        elif not isinstance(value, str):
            raise UsageError(f"{where}: {name} must be text, not {value!r}")


def _published(table: Mapping[str, Any], where: str) -> Published:
    _check_names(table, {entry.name for entry in fields(Published)}, f"{where}: published")
    if not isinstance(table.get("where"), dict):
        raise UsageError(f"{where}: published needs where = {{ … }}, which names its cells")
    _check_names(table["where"], {entry.name for entry in fields(Cell)}, f"{where}: published where")
    for name in ("seconds_per_epoch", "img_s"):
        if name in table and (not isinstance(table[name], int | float) or not table[name] > 0):
            raise UsageError(f"{where}: published {name} must be a number above 0, not {table[name]!r}")
    return Published(**table)


def _product(table: Mapping[str, Any], where: str) -> list[Cell]:
    """Return the cells of one table; the last name of the table varies fastest."""
    types = {entry.name: str(entry.type) for entry in fields(Cell)}
    _check_names(table, set(types), f"{where}: cells")
    choices = {"loader": LOADERS, "transform": TRANSFORMS, "data": MATERIALS, "mode": ("faithful", "corrected"),
               "precision": ("fp32", "amp")}  # fmt: skip
    lists: list[list[Any]] = []
    for key, value in table.items():
        values = value if isinstance(value, list) else [value]
        if not values:
            raise UsageError(f"{where}: {key} is an empty list")
        for item in values:
            if not isinstance(item, int if "int" in types[key] else str) or isinstance(item, bool):
                raise UsageError(f"{where}: {key} cannot be {item!r}")
            if isinstance(item, int) and item < (0 if key in ("load", "workers") else 1):
                raise UsageError(f"{where}: {key} cannot be {item}")
            if isinstance(item, int) and (most := _largest(key)) is not None and item > most:
                raise UsageError(f"{where}: {key} cannot be {item}: at most {most:,}")
            if key == "model" and ":" in str(item):
                raise UsageError(
                    f"{where}: model cannot be {item!r}: a file must not choose code", hint="a name of torchvision"
                )
            if key == "arguments":
                _check_arguments(str(item), where)
            if key in choices and item not in choices[key]:
                near = difflib.get_close_matches(str(item), choices[key], n=1)
                raise UsageError(
                    f"{where}: there is no {key} {item!r}",
                    hint=f"did you mean {near[0]}?" if near else f"known: {', '.join(choices[key])}",
                )
        lists.append(values)
    _refuse_more(math.prod(map(len, lists)), where)
    return [Cell(**dict(zip(table, combination, strict=True))) for combination in itertools.product(*lists)]


def _refuse_more(cells: int, where: str) -> None:
    if cells > MOST_CELLS:
        raise UsageError(f"{where} declares {cells:,} cells or more, and {MOST_CELLS:,} are the most", hint="shorten its lists")


def _check_arguments(text: str, where: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"{where}: arguments have {len(text):,} characters, more than {MOST_CHARACTERS:,}")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{where}: arguments cannot be split as in a shell: {error}: {text}") from None
    for word in words:
        if (option := word.partition("=")[0]) in _NOT_IN_FILES:
            raise UsageError(
                f"{where}: arguments cannot hold {option}: a file must not choose code, or where results are written"
            )


def _check_names(table: Mapping[str, Any], known: set[str], where: str) -> None:
    for name in table:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise UsageError(f"{where}: there is no setting {name!r}", hint=f"did you mean {near[0]}?" if near else None)
