"""The fixes of a TensorFlow job, in TensorFlow's own terms.

A fix of a tf.data pipeline is predicted when the pipeline makes its batches inside `next()`, since their making was timed
there. Stages that work ahead run in TensorFlow's threads, which no hook sees; for such a pipeline only what decoding the job's
own images costs is known (`image_benchmark`), and other fixes are named without a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.diagnosis.fixes.images import NATIVE_HANDOVER_S, cpu_ratio, image_benchmark
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.prediction import predicted_fix
from headrace.diagnosis.measure.step_model import StepModel
from headrace.diagnosis.result.kinds import KINDS
from headrace.diagnosis.result.model import Finding, Fix

__all__ = ["add_tensorflow_fixes", "has_tensorflow_fixes"]

NOT_TIMED = "TensorFlow's threads make the batches, which is not timed"

GENERATOR, PYTHON_FUNCTION = "generator", "python"
"""Words in the name of a stage that runs Python code."""

READERS = ("TFRecord", "TextLine", "FixedLengthRecord")
"""Words in the name of a stage that reads files of records."""

WORK_AHEAD = ("Parallel", "Prefetch", "MapAndBatch", "Distribute")
"""Propose no parallel stage if the name of one contains any of these words: elements are then made ahead already."""

SHORT_STEP_S = 0.02
"""Propose to run several steps in one call of Keras for steps shorter than this: the call costs a part of a millisecond."""

STEPS_PER_EXECUTION = 16

MODEL_KINDS = ("COMPUTE_BOUND", "OVERHEAD_BOUND")
"""The kinds for which the training step itself is to be changed."""


def has_tensorflow_fixes(job: MeasuredJob, found: Finding) -> bool:
    """Return whether TensorFlow's fixes are offered for a finding: on the input of a tf.data pipeline, or on the step.

    The batches of `headrace.Loader` come from that loader, whatever takes them.
    """
    is_bridge = job.rank.loader.family != "tensorflow"
    kinds = MODEL_KINDS if is_bridge else (*MODEL_KINDS, "EXTERNAL_CPU")
    return bool(job.rank.loader.pipeline) and (found.kind in kinds or (not is_bridge and KINDS[found.kind].is_input))


def add_tensorflow_fixes(job: MeasuredJob, found: Finding) -> Finding:
    """Return the finding with TensorFlow's words and fixes, the largest predicted gain first."""
    stages = job.rank.loader.pipeline
    if found.kind in MODEL_KINDS:
        return replace(found, fixes=tuple(fix for fix in _model_fixes(job) if fix is not None))
    if found.kind == "EXTERNAL_CPU":
        loader = _loader(job, found.kind, stages)
        return replace(found, fixes=() if loader is None else (loader,))
    proposals = (
        _files(job, found.kind, stages),
        _parallel_map(job, stages),
        _loader(job, found.kind, stages),
        _prefetch(job, stages),
        _interleave(stages),
        _cache(stages),
    )
    known = (fix for fix in proposals if fix is not None)
    fixes = sorted(known, key=lambda fix: -(1.0 if fix.gain is None else fix.gain))
    evidence = tuple(words for words in found.evidence if not words.startswith("num_workers=0"))
    summary = found.summary
    if found.kind == "NO_OVERLAP":
        summary = "the tf.data pipeline makes a batch only when it is asked for one, so nothing overlaps"
    return replace(found, evidence=(*evidence, "the pipeline: " + " → ".join(stages)), fixes=tuple(fixes), summary=summary)


def _model_fixes(job: MeasuredJob) -> tuple[Fix | None, ...]:
    settings: Mapping[str, Any] = job.session.facts.get("tensorflow") or {}
    return _tf_function(settings), _mixed_float16(job, settings), _steps_per_execution(job, settings)


def _tf_function(settings: Mapping[str, Any]) -> Fix | None:
    if not settings.get("eager"):
        return None
    keras = bool(settings.get("run_eagerly"))
    return Fix(
        "compile",
        "the training step as one graph: today Python starts each operator of it",
        command="model.compile(..., run_eagerly=False)" if keras else "@tf.function above the training step",
        basis="not predicted: depends on the model; measure it",
        effort="one line",
    )


def _mixed_float16(job: MeasuredJob, settings: Mapping[str, Any]) -> Fix | None:
    policies = [str(settings.get("policy") or ""), *map(str, settings.get("layers") or ())]
    if job.machine.gpu_busy is None or any(policy.startswith(("mixed", "float16", "bfloat16")) for policy in policies):
        return None
    return Fix(
        "amp",
        "float16 arithmetic on the tensor cores; the last layer stays float32",
        command='keras.mixed_precision.set_global_policy("mixed_float16")',
        basis="not predicted: depends on the model; measure it",
        effort="two lines",
    )


def _steps_per_execution(job: MeasuredJob, settings: Mapping[str, Any]) -> Fix | None:
    if not settings.get("keras") or settings.get("steps_per_execution") != 1 or job.rank.typical_compute_s >= SHORT_STEP_S:
        return None
    return Fix(
        f"steps_per_execution={STEPS_PER_EXECUTION}",
        f"{STEPS_PER_EXECUTION} steps in one call: what Keras does in Python between two steps, once for all of them",
        command=f"model.compile(..., steps_per_execution={STEPS_PER_EXECUTION})",
        basis="not predicted: while headrace times the batches, Keras runs one step at a time",
        effort="one argument",
    )


def _has(stages: tuple[str, ...], *words: str) -> bool:
    return any(word in stage for stage in stages for word in words)


def _with_workers(job: MeasuredJob, stages: tuple[str, ...], workers: int) -> StepModel | None:
    """Return the step model of a pipeline that works ahead; None when the making of batches was not timed."""
    return None if job.model is None or _has(stages, *WORK_AHEAD) else job.model.changed(workers=workers)


def _prefetch(job: MeasuredJob, stages: tuple[str, ...]) -> Fix | None:
    if any("Prefetch" in stage for stage in stages[-2 if stages[-1:] == ("Distribute",) else -1 :]):
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


def _files(job: MeasuredJob, kind: str, stages: tuple[str, ...]) -> Fix | None:
    """Propose a list of files and a parallel map in the place of a generator; of what else it yields, files of records."""
    if not _has(stages, GENERATOR):
        return None
    decode_s = image_benchmark(job).get("plain_s")
    if not job.rank.loader.sample_paths or decode_s is None:
        return Fix(
            "pack",
            "samples written once (TFRecord files) and read by tf.data itself: a generator runs in Python, on one core at most",
            command="tf.data.TFRecordDataset(files)",
            basis="not predicted: " + NOT_TIMED,
            effort="one pass",
        )
    cores = max(1, int(job.machine.cores or 1))
    before, after = job.model, _with_workers(job, stages, cores)
    if after is None:
        before, after = _by_decode(job, kind, decode_s)
    return predicted_fix(
        job,
        f"threads={cores}",
        f"a list of files, {cores} of them read and decoded at a time: a generator runs in Python, on one core at most",
        after,
        "tf.data.Dataset.from_tensor_slices((files, labels)).map(read_and_decode, num_parallel_calls=tf.data.AUTOTUNE)"
        ".batch(N).prefetch(tf.data.AUTOTUNE)",
        basis=NOT_TIMED if after is None else "TensorFlow's decode taken to cost what the generator's does",
        effort="a few lines",
        error=0.2,
        before=before,
    )


def _loader(job: MeasuredJob, kind: str, stages: tuple[str, ...]) -> Fix | None:
    """Propose headrace's loader as the pipeline, predicted from its decode of the job's own images."""
    decode_s, ratio = image_benchmark(job).get("headrace_s"), cpu_ratio(job, "headrace_s")
    if decode_s is None:
        return None
    before, after = job.model, _with_workers(job, stages, max(1, int(job.machine.cores or 1)))
    if after is not None and ratio is not None:
        cost = job.rank.batch_cost
        after = after.changed(cpu_s=ratio * (cost.prepare_cpu_s if cost is not None else after.cpu_s))
    else:
        before, after = _by_decode(job, kind, decode_s)
    return predicted_fix(
        job,
        "to_tf_dataset",
        "headrace's threads make the batches, and tf.data hands them on without a copy",
        after,
        'headrace.Loader(FOLDER, N, TRANSFORM, output="numpy").to_tf_dataset()',
        basis=NOT_TIMED if after is None else "its decode of this job's own images, measured here",
        effort="three lines",
        error=0.15,
        before=before,
    )


def _by_decode(job: MeasuredJob, kind: str, decode_s: float) -> tuple[StepModel, StepModel] | tuple[None, None]:
    """Return the step of a pipeline that works ahead, as it is and with all cores decoding in `decode_s` for each image.

    (None, None) where something else than the preparation of images sets the pace.
    """
    rank, machine = job.rank, job.machine
    if rank.items is None or not machine.cores or KINDS[kind].is_blocked:
        return None, None
    now = StepModel(
        compute_s=rank.compute_s,
        handover_s=rank.net_wait_s,
        cpu_s=0.0,
        blocked_s=0.0,
        send_s=0.0,
        main_cpu_s=0.0,
        serial_s=0.0,
        cores=max(0.25 * machine.cores, machine.cores - (machine.foreign_cores or 0.0)),
        ranks=len(job.ranks),
        workers=1,
    )
    main_cpu_s = min(rank.process_cpu_s or 0.0, rank.compute_s)
    return now, now.changed(
        handover_s=min(now.handover_s, NATIVE_HANDOVER_S),
        cpu_s=rank.items * decode_s,
        main_cpu_s=main_cpu_s,
        workers=max(1, int(machine.cores)),
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
