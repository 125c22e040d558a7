"""The training and validation datasets of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headrace.datasets.open import open_stored
from headrace.datasets.records.dataset import Dataset
from headrace.datasets.records.labels import labelled_by, labels_looked_for
from headrace.datasets.records.splits import train_and_validation
from headrace.errors import SourceError
from headrace.system.text.sizes import count_text
from headrace.training.inputs.enlarging import enlargement_note
from headrace.training.settings.options import Options

__all__ = ["check_batch_size", "data_notes", "left_out_note", "open_data", "validation_note"]

_LEFT_OUT = 0.05  # say so if more than this share of the images is left out of each epoch


def open_data(options: Options) -> tuple[Dataset, Dataset | None]:
    """Open the training data and the validation data (None without any).

    A local folder that holds `train` and `val` (or `test`) stands for both. Validation data may lack some of the training
    classes: its labels are the training data's. Raises SourceError for data that cannot be read, for fewer than two classes,
    and for validation data with classes of its own.
    """
    data, val = options.data, options.val
    if (inside := train_and_validation(Path(data))) is not None and val is None:
        data, val = map(str, inside)
    training = open_stored(data, part=options.sharded_data)
    if len(training.classes) < 2 and not options.sharded_data:  # of a part, the hosts decide together (sharded_data.py)
        holds = "one class only" if training.classes else "no labels"
        raise SourceError(
            f"{data} holds {holds}", hint=labels_looked_for(training) or "give data of two or more classes, a folder for each"
        )
    if val is None:
        return training, None
    validation = open_stored(val, part=options.sharded_val, empty_classes=True)
    if validation.classes != training.classes and not (options.sharded_data or options.sharded_val):
        validation = labelled_by(validation, training.classes)
    return training, validation


def data_notes(options: Options, data: Dataset, val: Dataset | None, *, ranks: int) -> list[str]:
    """Return what the user may not expect of the data: enlarged images, images left out, classes that validation lacks."""
    notes = [enlargement_note(data, options.image_size), validation_note(data, val)]
    if not options.sharded_data:  # of a part, nobody knows the number before the ranks have agreed
        notes.append(left_out_note(len(data), options.batch_size, ranks=ranks))
    return [note for note in notes if note is not None]


def validation_note(training: Dataset, validation: Dataset | None) -> str | None:
    """Return which of the training classes the validation data lacks, or None."""
    if validation is None or training.classes != validation.classes:
        return None
    counts = np.bincount(validation.table.label[validation.table.label >= 0], minlength=len(training.classes))
    missing = [name for name, count in zip(training.classes, counts, strict=True) if not count]
    if not missing:
        return None
    names = ", ".join(missing[:5]) + (" …" if len(missing) > 5 else "")
    return (
        f"{validation.root} has no images of {len(missing)} of the {len(training.classes)} classes: {names}; "
        "its labels are the training data's"
    )


def left_out_note(images: int, batch_size: int, *, ranks: int) -> str | None:
    """Return how many images are left out of each epoch and a batch size that leaves out fewer, or None for a small share."""
    left = images % (batch_size * ranks)
    if images < batch_size * ranks or left <= _LEFT_OUT * images:
        return None
    sizes = range(batch_size, max(1, batch_size // 2) - 1, -1)
    better = min(sizes, key=lambda size: images % (size * ranks))  # of several the largest
    return (
        f"{left:,} of {images:,} images are left out of each epoch, others each time: they fill no batch of "
        f"{batch_size}{f' on each of {ranks} ranks' if ranks > 1 else ''}; --batch-size {better} leaves out "
        f"{images % (better * ranks):,}"
    )


def check_batch_size(options: Options, data: Dataset, *, ranks: int) -> None:
    """Raise SourceError if an epoch has no whole batch for each of `ranks` processes: incomplete batches are not trained."""
    images = len(data)
    if images >= options.batch_size * ranks:
        return
    batch = f"one batch of {options.batch_size}" + (f" for each of {ranks} ranks" if ranks > 1 else "")
    fits = max(1, images // (2 * ranks))
    hint = f"--batch-size {fits}" if images >= ranks else f"--processes {images}, or more images"
    raise SourceError(f"{data.root} holds {count_text(images, 'image')}, fewer than {batch}", hint=hint)
