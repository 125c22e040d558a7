"""What a tf.data pipeline is made of: stages, batch size, the image files that it reads, headrace's own loader in it."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

__all__ = ["BRIDGE", "DISTRIBUTE", "OVERLAPPING", "OpenedImages", "batch_size", "bridged_loader", "image_paths", "pipeline_of"]

MOST_STAGES = 40
MOST_PATHS = 64
"""Note this many paths of image files: the image benchmark decodes two dozen of them."""

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")

OVERLAPPING = ("Parallel", "Prefetch", "MapAndBatch", "Distribute")
"""A pipeline with a stage whose name contains one of these makes batches in the background: `next()` then waits only."""

DISTRIBUTE = "Distribute"
"""Name of the last stage of a dataset that a strategy of tf.distribute divides among its devices."""

BRIDGE = "headrace.Loader"
"""Name of the first stage of a pipeline that `Loader.to_tf_dataset` or `to_keras_dataset` feeds."""

LOADER_ATTRIBUTE = "_headrace_loader"
"""Attribute of the dataset in which a bridge keeps its `headrace.Loader` (`headrace.loading.other_frameworks`)."""


def pipeline_of(dataset: Any) -> tuple[str, ...]:
    """Return the stages of a tf.data pipeline from source to end, without suffixes: ("TFRecord", "ParallelMap", "Batch").

    A stage whose function runs in Python is marked: "Map (python)", "FlatMap (generator)". Of several inputs (zip, concatenate)
    only the first is named. A dataset of tf.distribute ends with "Distribute", and headrace's own loader is one stage.
    """
    names: list[str] = []
    for stage in _first_inputs(dataset):
        if getattr(stage, LOADER_ATTRIBUTE, None) is not None:
            names.append(BRIDGE)
            break
        if stage is not dataset and _undistributed(stage) is not stage:
            continue
        name = type(stage).__name__.strip("_").removesuffix("V2").removesuffix("V1").removesuffix("Dataset")
        if _undistributed(stage) is not stage:
            name = DISTRIBUTE
        if name not in ("Options", "Model", ""):
            names.append(name + _python_in(stage))
    return tuple(reversed(names))


def _first_inputs(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and what it is made from, the end of the pipeline first."""
    for _ in range(MOST_STAGES):
        if dataset is None:
            return
        yield dataset
        inner = _undistributed(dataset)
        inputs = [inner] if inner is not dataset else _inputs(dataset)
        dataset = inputs[0] if inputs else None


def _undistributed(dataset: Any) -> Any:
    """Return the tf.data dataset that a dataset of tf.distribute divides, or None; any other dataset itself."""
    if not type(dataset).__name__.startswith("DistributedDataset"):
        return dataset
    parts = getattr(dataset, "_cloned_datasets", None) or getattr(dataset, "_datasets", None) or [None]
    return getattr(dataset, "_original_dataset", None) or parts[0]


def _inputs(dataset: Any) -> list[Any]:
    return list(dataset._inputs()) if hasattr(dataset, "_inputs") else []


def _python_in(dataset: Any) -> str:
    """Return " (generator)" or " (python)" if the stage's function calls Python, by the operations in its graph, else ""."""
    function = getattr(getattr(dataset, "_map_func", None), "function", None)
    graph = getattr(function, "graph", None)
    if graph is None:
        return ""
    operations = {operation.type for operation in graph.get_operations()}
    if "GeneratorDataset" in operations:
        return " (generator)"
    return " (python)" if operations & {"PyFunc", "EagerPyFunc", "PyFuncStateless"} else ""


def batch_size(dataset: Any) -> int | None:
    """Return the static first dimension of the first component of a dataset's elements, or None."""
    spec = getattr(dataset, "element_spec", None)
    while isinstance(spec, tuple | list | dict) and spec:
        spec = next(iter(spec.values())) if isinstance(spec, dict) else spec[0]
    shape = getattr(spec, "shape", None)
    try:
        return int(shape[0]) if shape is not None and len(shape) and shape[0] is not None else None
    except (TypeError, ValueError):  # unknown rank
        return None


def bridged_loader(dataset: Any) -> Any:
    """Return the `headrace.Loader` that feeds a pipeline, or None."""
    found = (getattr(stage, LOADER_ATTRIBUTE, None) for stage in _first_inputs(dataset))
    return next((loader for loader in found if loader is not None), None)


def image_paths(dataset: Any) -> list[str]:
    """Return paths of up to 64 image files, spread over the list of files that a pipeline begins with; [] without one."""
    waiting, seen = deque([dataset]), 0
    while waiting and seen < MOST_STAGES:
        stage, seen = waiting.popleft(), seen + 1
        inner = _undistributed(stage)
        for tensor in getattr(inner, "_tensors", None) or ():
            with suppress(Exception):  # a tensor of a graph has no values
                names = [_text(value) for value in _spread(tensor.numpy().ravel())] if tensor.dtype.name == "string" else []
                if any(name.lower().endswith(IMAGES) for name in names):
                    return [name for name in names if name.lower().endswith(IMAGES)]
        waiting.extend(_inputs(inner) if inner is not None else ())
    return []


def _spread(values: Any) -> Any:
    return values[:: max(1, len(values) // MOST_PATHS)][:MOST_PATHS]


def _text(value: Any) -> str:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)


class OpenedImages:
    """The first image files that Python opens from now on: what a generator of the script reads."""

    def __init__(self) -> None:
        self.paths: dict[str, None] = {}
        self._on = True
        sys.addaudithook(self._event)

    def _event(self, event: str, arguments: Any) -> None:
        if event != "open" or not self._on:
            return
        path = arguments[0]
        if isinstance(path, str) and path.lower().endswith(IMAGES):
            self.paths[path] = None
            self._on = len(self.paths) < MOST_PATHS

    def stop(self) -> list[str]:
        """Note no more files, and return the paths of those opened so far."""
        self._on = False
        return list(self.paths)
