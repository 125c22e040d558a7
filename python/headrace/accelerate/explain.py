"""The lines of `headrace run --explain` on a loader that is taken over."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.accelerate.compile import CompiledLoader, index_limit_bytes
from headrace.accelerate.item_loader import CompiledItems
from headrace.accelerate.transform_names import display_name
from headrace.loading.jpeg_index_cache import index_folder
from headrace.system.sizes import count_text

__all__ = ["explain", "explain_items"]


def explain(compiled: CompiledLoader) -> Iterator[str]:
    """Yield one line for each stage: where it runs, and the transform of the script that it replaces."""
    recognition, pipeline = compiled.recognition, compiled.pipeline
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
    for operation in recognition.transform.per_image:
        yield f"Python   {display_name(operation)}: the script's own, on each finished image"
    shape = f"[N, 3, {pipeline.height}, {pipeline.width}]"
    yield f"batch    {str(compiled.dtype).removeprefix('torch.')} {shape}, {count_text(compiled.threads, 'thread')}"


def explain_items(compiled: CompiledItems) -> Iterator[str]:
    """Yield the same lines for a loader of the script's own items."""
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
        for operation in view.transform.per_image:
            yield f"Python   {display_name(operation)}: the script's own, on each finished image"
        shape = f"[N, 3, {made.pipeline.height}, {made.pipeline.width}]"
        yield f"batch    {which}: {str(made.dtype).removeprefix('torch.')} {shape}, {count_text(compiled.threads, 'thread')}"
    yield "Python   the rest of each item: the script's own code, without its effects, in the main process"
    if recognition.collate != "list":
        yield "Python   collate_fn: the script's own, on the items of each batch, in the main process"
