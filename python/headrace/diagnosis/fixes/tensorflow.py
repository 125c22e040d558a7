"""The fixes of a tf.data pipeline, in tf.data's own terms.

A fix is predicted when the pipeline makes its batches inside `next()`, since their making was timed there. Stages that work
ahead run in TensorFlow's threads, which no hook sees; for such a pipeline the fix is named without a prediction.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.prediction import predicted_fix
from headrace.diagnosis.measure.step_model import StepModel
from headrace.diagnosis.result.kinds import KINDS
from headrace.diagnosis.result.model import Finding, Fix

__all__ = ["add_tensorflow_fixes", "is_tensorflow_input"]

NOT_TIMED = "TensorFlow's threads make the batches, which is not timed"

GENERATOR, PYTHON_FUNCTION = "generator", "python"
"""Words in the name of a stage that runs Python code."""

READERS = ("TFRecord", "TextLine", "FixedLengthRecord")
"""Words in the name of a stage that reads files of records."""

WORK_AHEAD = ("Parallel", "Prefetch", "MapAndBatch")
"""Propose no parallel stage if the name of one contains any of these words: elements are then made ahead already."""


def is_tensorflow_input(job: MeasuredJob, found: Finding) -> bool:
    """Return whether a finding is about the input of a tf.data pipeline."""
    return job.rank.loader.family == "tensorflow" and KINDS[found.kind].is_input


def add_tensorflow_fixes(job: MeasuredJob, found: Finding) -> Finding:
    """Return the finding with tf.data's words and fixes, the largest predicted gain first."""
    stages = job.rank.loader.pipeline
    proposals = (_generator(stages), _parallel_map(job, stages), _prefetch(job, stages), _interleave(stages), _cache(stages))
    fixes = sorted((fix for fix in proposals if fix is not None), key=lambda fix: -(fix.gain or 0.0))
    evidence = tuple(words for words in found.evidence if not words.startswith("num_workers=0"))
    summary = found.summary
    if found.kind == "NO_OVERLAP":
        summary = "the tf.data pipeline makes a batch only when it is asked for one, so nothing overlaps"
    return replace(found, evidence=(*evidence, "the pipeline: " + " → ".join(stages)), fixes=tuple(fixes), summary=summary)


def _has(stages: tuple[str, ...], *words: str) -> bool:
    return any(word in stage for stage in stages for word in words)


def _with_workers(job: MeasuredJob, stages: tuple[str, ...], workers: int) -> StepModel | None:
    """Return the step model of a pipeline that works ahead; None when the making of batches was not timed."""
    return None if job.model is None or _has(stages, *WORK_AHEAD) else job.model.changed(workers=workers)


def _prefetch(job: MeasuredJob, stages: tuple[str, ...]) -> Fix | None:
    if stages and "Prefetch" in stages[-1]:
        return None
    after = _with_workers(job, stages, 1)
    return predicted_fix(
        job,
        "prefetch=1",
        "the next batch made while the model computes: prefetch as the last stage",
        after,
        "dataset.prefetch(tf.data.AUTOTUNE)",
        basis="closed form" if after is not None else NOT_TIMED,
        effort="one line",
    )


def _parallel_map(job: MeasuredJob, stages: tuple[str, ...]) -> Fix | None:
    serial = tuple(stage for stage in stages if stage.startswith("Map") and not stage.startswith("MapAndBatch"))
    if not serial:
        return None
    cores = max(1, int(job.machine.cores or 1))
    in_python = _has(serial, PYTHON_FUNCTION)
    after = None if in_python else _with_workers(job, stages, cores)
    change = f"{cores} elements mapped at a time, and the next batch made while the model computes"
    if in_python:
        change += "; what tf.py_function calls runs in Python, one at a time: write it in tf operations first"
        basis = "Python functions in map take turns"
    else:
        basis = "closed form" if after is not None else NOT_TIMED
    command = "dataset.map(f, num_parallel_calls=tf.data.AUTOTUNE) … .prefetch(tf.data.AUTOTUNE)"
    return predicted_fix(job, f"threads={cores}", change, after, command, basis=basis, effort="one argument", error=0.1)


def _generator(stages: tuple[str, ...]) -> Fix | None:
    if not _has(stages, GENERATOR):
        return None
    return Fix(
        "pack",
        "samples written once (TFRecord files) and read by tf.data itself: a generator runs in Python, on one core at most",
        command="tf.data.TFRecordDataset(files)",
        basis="not predicted: " + NOT_TIMED,
        effort="one pass",
    )


def _interleave(stages: tuple[str, ...]) -> Fix | None:
    if not _has(stages, *READERS) or _has(stages, "Interleave"):
        return None
    return Fix(
        "num_workers=4",
        "several files read at a time",
        command="files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)",
        basis="not predicted: " + NOT_TIMED,
        effort="one line",
    )


def _cache(stages: tuple[str, ...]) -> Fix | None:
    if _has(stages, "Cache"):
        return None
    return Fix(
        "cache",
        "decoded elements kept in memory from the second epoch on, if they fit: before shuffle and augmentation",
        command="dataset.cache()",
        basis="not predicted: its size in memory is unknown",
        effort="one line",
    )
