"""A taken-over loader's pipeline in words, for `headrace run --explain`."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.accelerate.compile import Work, index_limit_bytes
from headrace.accelerate.translate import shown
from headrace.loading.jpeg_index_cache import index_folder

__all__ = ["explain"]


def explain(work: Work) -> Iterator[str]:
    """One line a stage: what, where it runs, and what it corresponds to in the script."""
    recognition, pipeline = work.recognition, work.pipeline
    records = sum(len(folder.samples) for folder in recognition.folders)
    datasets = len(recognition.folders)
    yield f"{records:,} files" + (f" of {datasets} datasets" if datasets > 1 else "")
    limit = f"{index_limit_bytes() >> 20} MiB"
    yield f"native   read and decode; an index in memory, of up to {limit}, makes later epochs' JPEG decoding faster"
    folder = index_folder()
    if folder is not None:
        yield f"         it is kept for later runs in {folder}; {work.table.indexes_found():,} of these files had one"
    for step in recognition.expressed.geometry:
        yield f"native   {step}"
    names = ", ".join(shown(operation) for operation in recognition.expressed.pointwise)
    stored = "stored as they are" if recognition.table.identity else "looked up in the table that they give for 3 x 256 values"
    yield f"native   {names}: {stored}"
    for operation in recognition.expressed.per_image:
        yield f"Python   {shown(operation)}: the script's own, on each finished image"
    if any(folder.target_transform is not None for folder in recognition.folders):
        yield "Python   target_transform: the script's own, for each label"
    if recognition.pack == "own":
        yield "Python   collate_fn: the script's own, on the items of each batch, in the main process"
    shape = f"[N, 3, {pipeline.height}, {pipeline.width}]"
    yield f"batch    {str(work.dtype).removeprefix('torch.')} {shape}, {work.threads} thread{'' if work.threads == 1 else 's'}"
