"""The training and validation datasets of a run."""

from __future__ import annotations

from pathlib import Path

from headrace.datasets.open import open_stored
from headrace.datasets.records.dataset import Dataset
from headrace.datasets.records.splits import train_and_validation
from headrace.errors import SourceError
from headrace.system.text.sizes import count_text
from headrace.training.settings.options import Options

__all__ = ["check_batch_size", "open_data"]


def open_data(options: Options) -> tuple[Dataset, Dataset | None]:
    """Open the training data and the validation data (None without any).

    A local folder that holds `train` and `val` (or `test`) stands for both. Raises SourceError for data that cannot be read,
    for fewer than two classes, and for validation data with other classes.
    """
    data, val = options.data, options.val
    if (inside := train_and_validation(Path(data))) is not None and val is None:
        data, val = map(str, inside)
    training = open_stored(data, part=options.sharded_data)
    if len(training.classes) < 2 and not options.sharded_data:  # of a part, the hosts decide together (sharded_data.py)
        raise SourceError(f"{data} holds one class only", hint="give data of two or more classes")
    if val is None:
        return training, None
    validation = open_stored(val, part=options.sharded_val)
    if validation.classes != training.classes and not (options.sharded_data or options.sharded_val):
        raise SourceError(
            f"{val}: {_class_difference(training.classes, validation.classes)}", hint="use the same class folders"
        )
    return training, validation


def check_batch_size(options: Options, data: Dataset, *, ranks: int) -> None:
    """Raise SourceError if an epoch has no whole batch for each of `ranks` processes: incomplete batches are not trained."""
    images = len(data)
    if images >= options.batch_size * ranks:
        return
    batch = f"one batch of {options.batch_size}" + (f" for each of {ranks} ranks" if ranks > 1 else "")
    fits = max(1, images // (2 * ranks))
    hint = f"--batch-size {fits}" if images >= ranks else f"--processes {images}, or more images"
    raise SourceError(f"{data.root} holds {count_text(images, 'image')}, fewer than {batch}", hint=hint)


def _class_difference(training: tuple[str, ...], validation: tuple[str, ...]) -> str:
    missing, surplus = sorted(set(training) - set(validation)), sorted(set(validation) - set(training))
    words = f"its classes ({len(validation)}) are not those of the training data ({len(training)})"
    if missing:
        words += f"; missing: {', '.join(missing[:5])}"
    if surplus:
        words += f"; not in training: {', '.join(surplus[:5])}"
    return words
