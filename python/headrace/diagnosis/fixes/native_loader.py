"""The fixes of a job that reads its images with headrace's own loader: `headrace train`, or `headrace.Loader` in a script.

Threads of the training process make the batches. So what concerns worker processes does not apply, and `headrace run` has
nothing to take over.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from headrace.diagnosis.fixes.images import CACHE, LEAST_FILE_BYTES, PACKED_WAIT, fits_copies, image_benchmark, pack_places
from headrace.diagnosis.measure import has_native_threads
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.prediction import NO_HELP, predicted_fix
from headrace.diagnosis.result.kinds import KINDS
from headrace.diagnosis.result.model import Finding, Fix
from headrace.system.text.sizes import count_text, percent_text

__all__ = ["add_native_fixes", "is_native_input"]

MOST_THREADS_PER_CORE = 4
"""Propose more threads than cores only where they are blocked most of the time, and at most this many for each core."""

AS_GOOD_RATIO = 1.03
"""Propose the fewest threads whose modelled step is at most this many times the step with the most."""


def is_native_input(job: MeasuredJob, found: Finding) -> bool:
    """Return whether a finding is about the input of headrace's own loader."""
    return has_native_threads(job.rank.loader) and KINDS[found.kind].is_input


def add_native_fixes(job: MeasuredJob, found: Finding) -> Finding:
    """Return the finding with fixes for a `headrace.Loader`, ordered by their predicted gain, the largest first."""
    is_blocked = KINDS[found.kind].is_blocked
    proposals = [_threads(job)]
    if found.cause_seen:
        proposals += [_pre_resize(job), _pack(job) if is_blocked else None, _cache(job, found.kind) if is_blocked else None]
    fixes = sorted((fix for fix in proposals if fix is not None), key=lambda fix: -(1.0 if fix.gain is None else fix.gain))
    return replace(found, fixes=tuple(fixes))


def _is_train(job: MeasuredJob) -> bool:
    """Return whether the command is `headrace train`."""
    words = job.session.command
    places = [number for number, word in enumerate(words) if word == "train"]
    before = [words[number - 1] for number in places if number]
    return any(word == "headrace" or Path(word).name == "headrace" or word.endswith("headrace/__main__.py") for word in before)


def _threads(job: MeasuredJob) -> Fix | None:
    """Propose the fewest threads that are as good as any number."""
    model, cores = job.model, job.machine.cores
    if model is None or not cores:
        return None
    is_blocked = model.blocked_s > model.cpu_s
    most = max(1, round(cores) * (MOST_THREADS_PER_CORE if is_blocked else 1) // model.ranks)
    if most <= model.workers:
        return None
    best_s = model.changed(workers=most).step_s
    count = next(n for n in range(1, most + 1) if model.changed(workers=n).step_s <= AS_GOOD_RATIO * best_s)
    if count <= model.workers:
        return None
    command = f"headrace train … --threads {count}" if _is_train(job) else f"headrace.Loader(..., threads={count})"
    change = f"{count_text(count, 'loader thread')} instead of {model.workers}"
    return predicted_fix(job, f"num_workers={count}", change, model.changed(workers=count), command, effort="one argument")


def _pre_resize(job: MeasuredJob) -> Fix | None:
    """Propose to shrink the images once. Predicted from decoding shrunk copies of the job's own images with headrace."""
    model, cost, benchmark = job.model, job.rank.batch_cost, image_benchmark(job)
    now, then = benchmark.get("headrace_s"), benchmark.get("headrace_pre_resized_s")
    if model is None or cost is None or not now or then is None or not fits_copies(job):
        return None
    ratio, bytes_ratio = min(1.0, then / now), benchmark.get("pre_resized_bytes_ratio") or 1.0
    after = model.changed(
        cpu_s=model.cpu_s * ratio, serial_s=model.serial_s * bytes_ratio, blocked_s=model.blocked_s * max(bytes_ratio, 0.3)
    )
    return predicted_fix(
        job,
        "pre_resize",
        f"images shrunk to a short side of 256 once: {1 / max(ratio, 1e-3):.1f} times less CPU, "
        f"{percent_text(bytes_ratio)} of the bytes; training then reads the copy, with other pixels",
        after,
        _pack_and_read(job, "-256", "--short-side", "256"),
        basis="shrunk copies of this job's images, measured here",
        effort="one pass, then one argument",
        error=0.1,
    )


def _pack(job: MeasuredJob) -> Fix | None:
    """Propose shards, which are read in large pieces. A loader without paths of image files reads shards already."""
    if job.model is None or not job.rank.loader.sample_paths:
        return None
    return predicted_fix(
        job,
        "pack",
        "images packed into shards and read in large pieces: no wait per file",
        job.model.changed(blocked_s=PACKED_WAIT * job.model.blocked_s),
        _pack_and_read(job, "-packed"),
        basis="a tenth of today's waits",
        effort="one pass, then one argument",
        error=0.15,
    )


def _cache(job: MeasuredJob, kind: str) -> Fix | None:
    cost = job.rank.batch_cost
    if cost is None or not cost.disk_bytes or cost.disk_bytes < LEAST_FILE_BYTES * (job.rank.items or 1.0):
        return None  # what comes from the page cache is in memory already
    found = CACHE.propose(job, kind)
    if found is None or (found.gain or 1.0) < NO_HELP:
        return None
    return replace(found, command=None) if _is_train(job) else found


def _pack_and_read(job: MeasuredJob, ending: str, *options: str) -> str:
    """Return as text the command that packs the job's images, and how the job then reads the copy."""
    source, copy = pack_places(job, ending)
    reads = f"headrace train … --data {shlex.quote(copy)}" if _is_train(job) else f"headrace.Loader({copy!r}, ...)"
    return f"{shlex.join(['headrace', 'pack', *options, source, copy])} && {reads}"
