"""Text on the native steps of a loader: a short list for its line, and one line each for `headrace run --explain`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.accelerate.runtime.engine import index_limit_bytes
from headrace.accelerate.transforms.names import display_name
from headrace.accelerate.transforms.translate import TransformParts
from headrace.accelerate.whole.compile import CompiledLoader
from headrace.accelerate.whole.items import CompiledItems
from headrace.loading.feeding.jpeg_index_cache import index_folder
from headrace.system.text.sizes import count_text

__all__ = ["explain", "explain_items", "native_steps"]

MOST_STEPS = 8
"""Number of steps that the line of a loader names. Further steps are only counted."""


def native_steps(parts: Sequence[TransformParts]) -> str:
    """Return the names of the native steps of an item: `decode, RandomResizedCrop, ColorJitter, ToTensor, Normalize`."""
    names = ["decode"]
    for one in parts:
        names += [*(step.name for step in one.geometry), *map(display_name, one.pointwise)]
        names += ["RandomErasing"] if one.erasings else []
    return _listed(names)


def _listed(names: Sequence[str]) -> str:
    """Return the distinct names: all of them, or the first ones and the number of the others."""
    different = list(dict.fromkeys(names))
    more = len(different) - MOST_STEPS
    return ", ".join(different if more <= 1 else [*different[:MOST_STEPS], f"{more} more steps"])


def explain(compiled: CompiledLoader) -> Iterator[str]:
    """Yield one line of `--explain` for each stage: where it runs, and which transform of the script it replaces."""
    recognition, view = compiled.recognition, compiled.view
    records = sum(len(folder.samples) for folder in recognition.folders)
    datasets = len(recognition.folders)
    yield f"{records:,} files" + (f" of {datasets} datasets" if datasets > 1 else "")
    limit = f"{index_limit_bytes() >> 20} MiB"
    yield f"native   read and decode; JPEG indexes in memory, up to {limit}, speed up decoding in later epochs"
    folder = index_folder()
    if folder is not None:
        found = f"{compiled.table.indexes_found():,} of these files had one"
        yield f"         the indexes are saved for later runs in {folder}; {found}"
    for transform in recognition.transform.geometry:
        yield f"native   {transform}"
    names = ", ".join(display_name(operation) for operation in recognition.transform.pointwise)
    looked_up = "looked up in the table that they give for 3 x 256 values"
    yield f"native   {names}: {'stored as they are' if recognition.value_table.identity else looked_up}"
    for erasing in recognition.transform.erasings:
        yield f"native   {erasing}"
    shape = f"[N, 3, {view.pipeline.height}, {view.pipeline.width}]"
    yield f"batch    {str(view.dtype).removeprefix('torch.')} {shape}, {count_text(compiled.threads, 'thread')}"


def explain_items(compiled: CompiledItems) -> Iterator[str]:
    """Yield the lines of `--explain` for a loader whose dataset is the script's own code."""
    recognition = compiled.recognition
    yield f"{recognition.length:,} items of the script's own code, {count_text(len(compiled.views), 'view')} each"
    limit = f"{index_limit_bytes() >> 20} MiB"
    yield f"native   read and decode; JPEG indexes in memory, up to {limit}, speed up decoding in later epochs"
    for number, (view, made) in enumerate(zip(recognition.views, compiled.views, strict=True)):
        if any(view.chain is other.chain for other in recognition.views[:number]):
            continue
        alike = sum(view.chain is other.chain for other in recognition.views)
        which = f"view {number + 1}" + (f" ({alike} alike)" if alike > 1 else "")
        names = ", ".join([*map(str, view.transform.geometry), *map(display_name, view.transform.pointwise)])
        yield f"native   {which}: {names}"
        for erasing in view.transform.erasings:
            yield f"native   {which}: {erasing}"
        shape = f"[N, 3, {made.pipeline.height}, {made.pipeline.width}]"
        yield f"batch    {which}: {str(made.dtype).removeprefix('torch.')} {shape}, {count_text(compiled.threads, 'thread')}"
    yield "Python   the rest of each item: the script's own code, without its effects, in the main process"
    if recognition.collate != "list":
        yield "Python   collate_fn: the script's own, on the items of each batch, in the main process"
