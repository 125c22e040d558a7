"""What to change in a tf.data pipeline, in tf.data's own terms.

Predicted where the pipeline worked only inside `next()`, since then the making of a batch was timed. Stages that work ahead
do so in TensorFlow's threads, where nothing is seen: such a fix is named, not predicted.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.diagnosis.job import MeasuredJob
from headrace.diagnosis.kinds import KINDS
from headrace.diagnosis.model import Finding, Fix
from headrace.diagnosis.prediction import predicted_fix

__all__ = ["advise", "concerns"]

UNSEEN = "TensorFlow's threads make the batches, which is not timed"
GENERATOR, PYTHON = "generator", "python"
READERS = ("TFRecord", "TextLine", "FixedLengthRecord")


def concerns(job: MeasuredJob, found: Finding) -> bool:
    """Whether the finding is about the input of a tf.data pipeline."""
    return job.rank.loader.family == "tensorflow" and KINDS[found.kind].is_input


def advise(job: MeasuredJob, found: Finding) -> Finding:
    """The finding with tf.data's words and fixes: predicted ones first, best first."""
    stages = job.rank.loader.pipeline
    fixes = [*_generator(stages), *_parallel_map(job, stages), *_prefetch(job, stages), *_interleave(stages), *_cache(stages)]
    fixes.sort(key=lambda item: -(item.gain or 0.0))
    said = tuple(words for words in found.evidence if not words.startswith("num_workers=0"))
    summary = (
        "the tf.data pipeline makes a batch only when it is asked for one, so nothing overlaps"
        if found.kind == "NO_OVERLAP"
        else found.summary
    )
    return replace(found, evidence=(*said, "the pipeline: " + " → ".join(stages)), fixes=tuple(fixes), summary=summary)


def _works_ahead(stages: tuple[str, ...]) -> bool:
    return any("Parallel" in stage or "Prefetch" in stage or "MapAndBatch" in stage for stage in stages)


def _prefetch(job: MeasuredJob, stages: tuple[str, ...]) -> list[Fix]:
    if stages and "Prefetch" in stages[-1]:
        return []
    after = job.model.changed(workers=1) if job.model is not None and not _works_ahead(stages) else None
    words = "the next batch made while the model computes: prefetch as the last stage"
    return [
        predicted_fix(
            job, "prefetch=1", words, after, "dataset.prefetch(tf.data.AUTOTUNE)", basis=_basis(after), effort="one line"
        )
    ]


def _parallel_map(job: MeasuredJob, stages: tuple[str, ...]) -> list[Fix]:
    serial = [stage for stage in stages if stage.startswith("Map") and not stage.startswith("MapAndBatch")]
    if not serial:
        return []
    cores = max(1, int(job.machine.cores or 1))
    in_python = any(PYTHON in stage for stage in serial)
    possible = job.model is not None and not _works_ahead(stages) and not in_python
    after = job.model.changed(workers=cores) if job.model is not None and possible else None
    words = f"{cores} elements mapped at a time, and the next batch made while the model computes"
    if in_python:
        words += "; what tf.py_function calls runs in Python, one at a time: write it in tf operations first"
    command = "dataset.map(f, num_parallel_calls=tf.data.AUTOTUNE) … .prefetch(tf.data.AUTOTUNE)"
    basis = "Python functions in map take turns" if in_python else _basis(after)
    return [predicted_fix(job, f"threads={cores}", words, after, command, basis=basis, effort="one argument", error=0.1)]


def _generator(stages: tuple[str, ...]) -> list[Fix]:
    if not any(GENERATOR in stage for stage in stages):
        return []
    words = "samples written once (TFRecord files) and read by tf.data itself: a generator runs in Python, on one core at most"
    return [Fix("pack", words, command="tf.data.TFRecordDataset(files)", basis="not predicted: " + UNSEEN, effort="one pass")]


def _interleave(stages: tuple[str, ...]) -> list[Fix]:
    if not any(reader in stage for stage in stages for reader in READERS) or any("Interleave" in stage for stage in stages):
        return []
    words = "several files read at a time"
    command = "files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)"
    return [Fix("num_workers=4", words, command=command, basis="not predicted: " + UNSEEN, effort="one line")]


def _cache(stages: tuple[str, ...]) -> list[Fix]:
    if any("Cache" in stage or "MemoryCache" in stage for stage in stages):
        return []
    words = "what is read and decoded kept in memory from the second epoch on, if it fits: before shuffle and augmentation"
    return [
        Fix("cache", words, command="dataset.cache()", basis="not predicted: its size in memory is unknown", effort="one line")
    ]


def _basis(after: object) -> str:
    return "closed form" if after is not None else UNSEEN
