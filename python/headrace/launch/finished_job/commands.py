"""Changes for a job that already ran: commands with its own script, options and paths, in the terms of its framework.

`headrace run` and the DataLoader's arguments are for PyTorch; tf.data, MXNet's iterators and DALI's pipelines have others.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from headrace.diagnosis.fixes.images import READ_SHARDS, places_words
from headrace.diagnosis.result.model import Fix
from headrace.launch.finished_job.description import framework_of
from headrace.system.text.redaction import redact_words, without_url_secrets

__all__ = ["input_fixes", "pack_fix", "training_words"]

TAKES_OVER = "if headrace run takes its loader over, which it says when the script starts (`--explain`)"


def training_words(description: Mapping[str, Any]) -> list[str]:
    """Return the command line of the training, without secrets. `python train.py` where the description names no script."""
    values = {str(name): str(value).strip('"') for name, value in (description.get("HyperParameters") or {}).items()}
    script = (description.get("Environment") or {}).get("HEADRACE_SCRIPT") or values.get("sagemaker_program")
    if script:
        words = ["python", str(script)]
    elif _is_headrace_train(description):
        words = ["headrace", "train", "--data", _train_uri(description) or "DATA"]
    else:
        words = ["python", "train.py"]
        values = {}
    for name, value in sorted(values.items()):
        if not name.startswith("sagemaker_"):
            words += [f"--{name}", value]
    return redact_words(words)


def input_fixes(description: Mapping[str, Any], kind: str, cores: int | None, gpus: int | None) -> tuple[Fix, ...]:
    """Propose what helps against a cause, in the terms of the job's framework.

    cores, gpus: of one host.
    """
    framework = framework_of(description)
    own = _framework_fixes(framework, kind, cores, gpus)
    workers = Fix(f"num_workers={cores or 'N'}", _WORKERS.get(kind, ""), effort="one argument of the DataLoader")
    if kind == "CPU_SATURATED":
        return (*(own or _run_fix(description)), *(() if framework == "mxnet" else (_shrink_fix(description),)))
    if own or kind not in _WORKERS:
        return own
    return (*_run_fix(description), workers) if kind == "CPU_PREP" else (workers,)


_WORKERS = {
    "CPU_PREP": "more worker processes, as many as cores",
    "STORAGE_LATENCY": "more reads in flight (worker processes)",
}


def _run_fix(description: Mapping[str, Any]) -> tuple[Fix, ...]:
    """Propose `headrace run` for the job's script. Nothing for `headrace train`, which has headrace's input already."""
    words = training_words(description)
    if words[0] == "headrace":
        return ()
    return (
        Fix(
            "headrace_run",
            f"the same script with headrace's image input, {TAKES_OVER}",
            command=shlex.join(["headrace", "run", "--", *words]),
            effort="no edit",
        ),
    )


def _shrink_fix(description: Mapping[str, Any]) -> Fix:
    """Propose to shrink the job's images once: to a copy of the same tree, which a script reads without an edit."""
    source, copy = _places(description, "-256")
    change = "images shrunk to a short side of 256 once" + places_words(source)
    shrink = ["headrace", "pack", "--short-side", "256"]
    if _reads_shards(description):
        return Fix("pre_resize", change, command=shlex.join([*shrink, source, copy]), effort="once")
    reads = "; the job reads the copy, the same tree, in place of the original, with other pixels"
    shrink += ["--layout", "folder"]
    if not source.startswith("s3://"):
        return Fix("pre_resize", change + reads, command=shlex.join([*shrink, source, copy]), effort="one pass, no edit")
    folder = source.rpartition("/")[2]
    steps = (
        ["aws", "s3", "sync", source, folder],
        [*shrink, folder, f"{folder}-256"],
        ["aws", "s3", "sync", f"{folder}-256", copy],
    )
    return Fix("pre_resize", change + reads, command=" && ".join(map(shlex.join, steps)), effort="one pass, no edit")


def pack_fix(description: Mapping[str, Any], why: str) -> Fix:
    """Propose to pack the job's images into shards. why: what that saves, after the first words."""
    source, packed = _places(description, "-packed")
    change = "pack the images into shards" + why + _read_words(description) + places_words(source)
    return Fix("pack", change, command=shlex.join(["headrace", "pack", source, packed]), effort="once")


def _read_words(description: Mapping[str, Any]) -> str:
    """How the training reads the shards: `headrace train` does so as it is."""
    return "" if _reads_shards(description) else READ_SHARDS


def _reads_shards(description: Mapping[str, Any]) -> bool:
    return training_words(description)[0] == "headrace"


def _is_headrace_train(description: Mapping[str, Any]) -> bool:
    entry = " ".join((description.get("AlgorithmSpecification") or {}).get("ContainerEntrypoint") or [])
    return "headrace.launch.entry" in entry


def _places(description: Mapping[str, Any], ending: str) -> tuple[str, str]:
    """Return the prefix that the job reads and the name of a new one beside it; `SRC` and `DST` where it is not known."""
    source = _train_uri(description)
    return (source, source + ending) if source else ("SRC", "DST")


def _train_uri(description: Mapping[str, Any]) -> str | None:
    """Return the prefix of the training channel, without a slash at its end."""
    channels = [one for one in description.get("InputDataConfig") or [] if isinstance(one, dict)]
    first = next((one for one in channels if one.get("ChannelName") in ("train", "training")), channels[0] if channels else {})
    uri = ((first.get("DataSource") or {}).get("S3DataSource") or {}).get("S3Uri")
    return without_url_secrets(str(uri)).rstrip("/") if uri else None


def _framework_fixes(framework: str | None, kind: str, cores: int | None, gpus: int | None) -> tuple[Fix, ...]:
    """Return the changes of a framework for a cause, in its own terms; none for PyTorch, whose fixes are those of live jobs."""
    number = str(max(1, cores // (gpus or 1) if framework == "dali" else cores)) if cores else "N"
    return tuple(
        Fix(name.replace("N", number), change, command=command.replace("=N", f"={number}"), effort=effort)
        for name, change, command, effort in _FIXES.get(framework or "", {}).get(kind, ())
    )


_LINE, _ONCE = "one line", "one pass, then a few lines"

_TF_MAP = (
    "threads=N",
    "elements mapped in parallel, and the next batches made while the model computes; a generator in Python uses one core at "
    "most: list the files and map over them",
    "dataset.map(f, num_parallel_calls=tf.data.AUTOTUNE) … .prefetch(tf.data.AUTOTUNE)",
    _LINE,
)
_TF_CACHE = (
    "cache",
    "decoded elements kept from the second epoch on, if they fit in memory: before shuffle and augmentation",
    "dataset.cache()",
    _LINE,
)
_MXNET_THREADS = (
    "threads=N",
    "images decoded by more threads (ImageRecordIter has 4), or by worker processes (gluon.data.DataLoader(num_workers=N))",
    "mx.io.ImageRecordIter(…, preprocess_threads=N, prefetch_buffer=8)",
    "one argument",
)
_DALI_THREADS = (
    "threads=N",
    "as many threads of each pipeline as cores for its GPU, and more batches ahead",
    "Pipeline(…, num_threads=N, prefetch_queue_depth=4)",
    "one argument",
)

_FIXES: Mapping[str, Mapping[str, tuple[tuple[str, str, str, str], ...]]] = {
    "tensorflow": {
        "CPU_PREP": (_TF_MAP, _TF_CACHE),
        "CPU_SATURATED": (_TF_CACHE,),
        "STORAGE_LATENCY": (
            (
                "num_workers=16",
                "several files read at a time",
                "files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)",
                _LINE,
            ),
            (
                "pack",
                "samples written to TFRecord files once, and read in large pieces",
                "tf.data.TFRecordDataset(files)",
                _ONCE,
            ),
            _TF_CACHE,
        ),
        "OVERHEAD_BOUND": (
            (
                "compile",
                "several steps in one call of a compiled function; a loop of your own inside tf.function",
                "model.compile(…, steps_per_execution=16)",
                "one argument",
            ),
        ),
    },
    "mxnet": {
        "CPU_PREP": (_MXNET_THREADS,),
        "CPU_SATURATED": (
            (
                "pre_resize",
                "images shrunk once, when the records are made",
                "im2rec.py PREFIX ROOT --resize 256 --quality 95 --num-thread=N",
                "once",
            ),
        ),
        "STORAGE_LATENCY": (
            _MXNET_THREADS,
            (
                "pack",
                "images in one .rec file, which is read in large pieces, in place of a file for each image",
                "im2rec.py PREFIX ROOT --pass-through --num-thread=N",
                _ONCE,
            ),
        ),
        "OVERHEAD_BOUND": (
            (
                "compile",
                "the network as one graph in place of Python calls",
                "net.hybridize(static_alloc=True, static_shape=True)",
                _LINE,
            ),
        ),
    },
    "dali": {
        "CPU_PREP": (_DALI_THREADS,),
        "CPU_SATURATED": (
            (
                "gpu_decode",
                "JPEGs decoded and augmented on the GPU: the CPU reads and parses only",
                'fn.decoders.image(…, device="mixed")',
                "one argument, and the operators after it on the GPU",
            ),
        ),
        "STORAGE_LATENCY": (
            (
                "prefetch=4",
                "more reads ahead; a network file system is read without memory maps",
                "fn.readers.file(…, prefetch_queue_depth=4, dont_use_mmap=True)",
                "one argument",
            ),
        ),
    },
}
