"""The fixes of reading and decoding: headrace's input path, smaller images, packed shards, a cache."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from headrace.diagnosis.fixes.fix_kind import FixKind, Rerun
from headrace.diagnosis.fixes.take_over import is_closed, is_image_folder, run_command
from headrace.diagnosis.measure.hot_functions import late_resize_words, opens_images
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.prediction import predicted_fix
from headrace.diagnosis.result.model import Fix
from headrace.diagnosis.rules.startup import LARGE_PART, startup_parts_s
from headrace.session.model import ObservedLoader
from headrace.system.text.sizes import number_text, percent_text

__all__ = [
    "CACHE",
    "HEADRACE_RUN",
    "NATIVE_HANDOVER_S",
    "PACK",
    "PRE_RESIZE",
    "READ_SHARDS",
    "cpu_ratio",
    "fits_copies",
    "image_benchmark",
    "pack_places",
    "places_words",
]

UNKNOWN_SOURCE = "SRC"

MORE_THAN_DECODING = 1.5
"""Assume that a job does more than decode when its CPU time per image exceeds the benchmark's by this factor."""

NATIVE_HANDOVER_S = 0.0005
"""Upper bound of the seconds to hand a batch over inside one process."""

PACKED_WAIT = 0.1
"""Assumed ratio of waits for storage: shards read sequentially, over one file per image."""

MEMORY_SHARE = 0.8
"""Let a cache use at most this share of the free memory."""

COPY_SIDE = 256
"""Short side of the copies that are proposed and measured, in pixels: what crops of 224 are cut from."""

_SIDES = re.compile(r"\bsize=[\[(]?(\d+)(?:, ?(\d+))?")
"""The sizes of crops and resizes, as torchvision's and timm's transforms show themselves."""

READ_SHARDS = "; the script then reads them with headrace.Loader"
"""Text to add to the fix `pack` for a script that reads a folder now: shards are not an image folder."""

LEAST_FOLDERS = 3
"""Name the dataset's folder in a command if sampled images lie in at least this many folders below it."""

LEAST_FILE_BYTES = 1000
"""Propose no cache, pack or smaller images when fewer bytes per image were read: the images do not come by `read()`."""


def image_benchmark(job: MeasuredJob) -> Mapping[str, float]:
    """Return seconds per image of the job by way of decoding (`headrace.profiling.image_benchmark`); {} if not measured."""
    seconds: Mapping[str, float] = job.session.facts.get("image_benchmark", {})
    return seconds


def _reads_no_images(job: MeasuredJob) -> bool:
    """Return whether batches are made without reading images: no image file was found, and no bytes arrive."""
    cost, loader = job.rank.batch_cost, job.rank.loader
    if cost is None or cost.read_bytes is None or image_benchmark(job) or loader.sample_paths or loader.family != "torch":
        return False
    least = LEAST_FILE_BYTES * (job.rank.items or 1.0)
    return cost.read_bytes < least and (cost.disk_bytes or 0.0) < least and not cost.socket_s


def _decodes_none(job: MeasuredJob) -> bool:
    """Return whether no image is decoded: none is read, or no library of images was seen at work."""
    known = image_benchmark(job) or job.rank.loader.sample_paths or job.rank.loader.family != "torch"
    return _reads_no_images(job) or (not known and opens_images(job.session) is False)


def cpu_ratio(job: MeasuredJob, way: str) -> float | None:
    """Return CPU time per image when it is made in another way, over the time now; None without the benchmark.

    A job that spends much more per image than decoding, cropping and resizing take keeps the rest.
    """
    now, then, cost = image_benchmark(job).get("plain_s"), image_benchmark(job).get(way), job.rank.batch_cost
    if not now or then is None or cost is None:
        return None
    spent_s = cost.prepare_cpu_s / (job.rank.items or 1.0)
    rest_s = spent_s - now if spent_s > MORE_THAN_DECODING * now else 0.0
    return (rest_s + then) / (rest_s + now)


def _headrace_run(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose `headrace run`, as far as its recogniser takes the loader over. Without the image benchmark, propose nothing."""
    if is_closed(job.rank.loader):
        return None
    return _native_decode(job) if job.rank.loader.take_over == "part" else _native_batches(job)


def _native_decode(job: MeasuredJob) -> Fix | None:
    """Predict native decode in the script's own workers: the rest of the transforms stays the script's."""
    model, cost, loader = job.model, job.rank.batch_cost, job.rank.loader
    if loader.native_part is None and _takes_cpu(job) and not _decodes_none(job):
        return Fix(
            "headrace_run",
            f"headrace makes part of the batches ({loader.take_over_reason})",
            command=run_command(job),
            basis="not predicted: what native decode gains here, only a run tells",
            effort="no edit",
        )
    now, then = (image_benchmark(job).get(f"{loader.native_part}_{way}_s") for way in ("plain", "headrace"))
    if model is None or cost is None or not now or then is None:
        return None
    spent_s = cost.prepare_cpu_s / (job.rank.items or 1.0)
    ratio = 1 - min(1.0, spent_s / now) * (now - then) / max(spent_s, 1e-9)
    return predicted_fix(
        job,
        "headrace_run",
        f"headrace makes part of the batches ({loader.take_over_reason}): {1 / max(ratio, 1e-3):.1f} times less CPU per image",
        model.changed(cpu_s=model.cpu_s - (1 - ratio) * cost.prepare_cpu_s),
        run_command(job),
        basis="its decode of this job's own images, measured here; headrace run compares three items first",
        effort="no edit",
        error=0.1,
    )


def _takes_cpu(job: MeasuredJob) -> bool:
    """Return whether making a batch takes CPU time for longer than it is blocked: native decode saves the former only."""
    return job.model is not None and job.model.cpu_s > job.model.blocked_s


def _native_batches(job: MeasuredJob) -> Fix | None:
    """Predict batches of the native engine in place of the worker processes."""
    model, cost = job.model, job.rank.batch_cost
    ratio = cpu_ratio(job, "headrace_s")
    if model is None or cost is None or ratio is None:
        return None
    cores = max(1, int(job.machine.cores or 1))
    # `headrace run` takes the script's number of workers as its number of threads, at most one thread per core.
    threads = min(model.workers, cores) if model.workers else max(1, cores // model.ranks)
    after = model.changed(
        cpu_s=cost.prepare_cpu_s * ratio,
        send_s=0.0,
        handover_s=min(model.handover_s, NATIVE_HANDOVER_S),
        workers=threads,
        batches=None,  # all threads work on each batch
    )
    command, effort, basis = run_command(job), "no edit", "its decode of this job's own images, measured here"
    if job.rank.loader.take_over != "whole":
        basis += "; whether headrace run takes this loader over is not known"
    if not is_image_folder(job.rank.loader):  # the recogniser was not asked, and a class of the script's own may be refused
        command, effort = "headrace.Loader(headrace.open(FOLDER), batch_size=…, transform=…)", "a few lines"
    return predicted_fix(
        job,
        "headrace_run",
        f"headrace makes the batches: {1 / max(ratio, 1e-3):.1f} times less CPU per image, no worker processes",
        after,
        command,
        basis=basis,
        effort=effort,
        error=0.1,
    )


def _run_headrace(number: int | None, loader: ObservedLoader) -> Rerun | None:
    return None if is_closed(loader) or not is_image_folder(loader) else Rerun(headrace_run=True)


HEADRACE_RUN = FixKind("headrace_run", _headrace_run, rerun=_run_headrace)


def fits_copies(job: MeasuredJob) -> bool:
    """Return whether a short side of `COPY_SIDE` is enough for the job's crops and resizes: larger ones would enlarge it."""
    sides = _SIDES.findall(job.rank.loader.transform or "")
    return all(int(side) <= COPY_SIDE for pair in sides for side in pair if side)


def _pre_resize(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose to shrink the images once. Predicted from decoding shrunk copies of the job's own images."""
    model, cost = job.model, job.rank.batch_cost
    ratio, benchmark = cpu_ratio(job, "pre_resized_s"), image_benchmark(job)
    if model is None or cost is None or _decodes_none(job) or not fits_copies(job):
        return None
    if benchmark and benchmark.get("pre_resized_s") is None:
        return None  # no image is larger than the target
    command, after, effort = _smaller_copy(job)
    late = late_resize_words(job.session, job.rank.loader.transform)
    if ratio is None or late:
        change = "images made smaller once, ahead of training: fewer bytes to read, fewer pixels to decode" + after
        basis = "not predicted: transforms on whole images take less, too" if late else "no image files were found to measure"
        return predicted_fix(job, "pre_resize", change, None, command, basis=basis, effort=effort)
    bytes_ratio = benchmark.get("pre_resized_bytes_ratio", 1.0)
    return predicted_fix(
        job,
        "pre_resize",
        f"images shrunk to a short side of 256 once: {1 / max(ratio, 1e-3):.1f} times less CPU, "
        f"{percent_text(bytes_ratio)} of the bytes{after}",
        model.changed(
            cpu_s=cost.collate_cpu_s + cost.prepare_cpu_s * ratio,
            serial_s=model.serial_s * bytes_ratio,
            blocked_s=model.blocked_s * max(bytes_ratio, 0.3),
        ),
        command,
        basis="shrunk copies of this job's images, measured here",
        effort=effort,
        error=0.05,
    )


def _smaller_copy(job: MeasuredJob) -> tuple[str, str, str]:
    """Return the command that makes a smaller copy, how the script reads it, and the effort.

    A PyTorch script reads a copy of the same layout without an edit; `headrace run` redirects its files.
    """
    source, copy = pack_places(job, "-256")
    which = places_words(source)
    if job.rank.loader.family != "torch":
        command = shlex.join(["headrace", "pack", "--short-side", "256", source, copy])
        return command, READ_SHARDS + which, "one pass, then a few lines"
    command = shlex.join(["headrace", "pack", "--layout", "folder", "--short-side", "256", source, copy])
    run = shlex.join(["headrace", "run", "--data-map", f"{source}={copy}", "--", *job.session.command])
    reads = "; the script reads the copy in place of the original, with other pixels"
    return f"{command} && {run}", reads + which, "one pass, no edit"


def pack_places(job: MeasuredJob, ending: str) -> tuple[str, str]:
    """Return the folder that the job reads and the name of a new folder beside it; `SRC` and `DST` where it is not known."""
    source = _common_folder(job.rank.loader.sample_paths)
    return (source, source + ending) if source else (UNKNOWN_SOURCE, "DST")


def places_words(source: str) -> str:
    """Return a clause that explains the placeholders SRC and DST of a command; "" if the job's own folder is known."""
    return "; SRC is the folder or bucket of the training images, DST a new one" if source == UNKNOWN_SOURCE else ""


def _common_folder(paths: tuple[str, ...]) -> str | None:
    """Return the folder that holds the folders of all sampled images; None if the samples lie in too few to tell."""
    folders = {str(Path(path).parent) for path in paths}
    if len(folders) < LEAST_FOLDERS:
        return None
    common = os.path.commonpath(folders) if all(folder.startswith("/") for folder in folders) else ""
    return common if common not in ("", "/") else None


PRE_RESIZE = FixKind("pre_resize", _pre_resize)


def _pack(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose shards, which are read in large pieces."""
    model = job.model
    if model is None or _reads_no_images(job):
        return None
    source, packed = pack_places(job, "-packed")
    is_refused = job.rank.batch_cost is not None and job.rank.batch_cost.is_refused
    return predicted_fix(
        job,
        "pack",
        "images packed into shards and read in large pieces: no wait per file" + READ_SHARDS + places_words(source),
        None if is_refused else model.changed(blocked_s=PACKED_WAIT * model.blocked_s),
        shlex.join(["headrace", "pack", source, packed]),
        basis="whether the store limits requests or bytes is not known" if is_refused else "a tenth of today's waits",
        effort="one pass, then a few lines",
        error=0.15,
    )


PACK = FixKind("pack", _pack)


def _cache(job: MeasuredJob, kind: str) -> Fix | None:
    return _keep_download(job) if kind == "STARTUP" else _cache_images(job)


def _cache_images(job: MeasuredJob) -> Fix | None:
    """Propose to keep the dataset in memory from the second epoch on, as far as it fits."""
    model, cost, machine = job.model, job.rank.batch_cost, job.machine
    length = job.rank.loader.dataset_length
    if model is None or cost is None or not cost.read_bytes or not job.rank.items or not length:
        return None
    if cost.read_bytes < LEAST_FILE_BYTES * job.rank.items:
        return None
    if machine.memory_left_bytes is None:
        return None
    dataset_bytes = length * cost.read_bytes / job.rank.items
    cached = min(1.0, MEMORY_SHARE * machine.memory_left_bytes / dataset_bytes)
    part = "" if cached == 1 else f", {percent_text(cached)} of them"
    return predicted_fix(
        job,
        "cache",
        f"images ({number_text(dataset_bytes / 1e9)} GB) kept in memory from the second epoch on{part}",
        model.changed(blocked_s=(1 - cached) * model.blocked_s, serial_s=(1 - cached) * model.serial_s),
        'headrace.Loader(..., cache="ram:…")' if is_image_folder(job.rank.loader) else None,
        effort="a few lines",
        error=0.05,
    )


def _keep_download(job: MeasuredJob) -> Fix | None:
    """Propose to keep downloaded data from one start to the next. How long the next start then takes is unknown."""
    parts = startup_parts_s(job.session, job.rank)
    if parts.get("download", 0.0) <= LARGE_PART * sum(parts.values()):
        return None
    return Fix(
        "cache",
        "downloaded data kept on a disk that outlives the job, or packed and streamed while training",
        basis="not predicted: the next start was not measured",
        effort="a volume",
    )


CACHE = FixKind("cache", _cache)
