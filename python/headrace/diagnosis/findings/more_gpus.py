"""Would more GPUs help this job? Predicted from the step model, with as many more ranks on the same cores and storage."""

from __future__ import annotations

from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.step_model import TERM_WORDS
from headrace.diagnosis.result.gpu_gate import gpu_gate
from headrace.diagnosis.result.model import Note

__all__ = ["gpu_notes", "gpu_scaling"]


def gpu_scaling(job: MeasuredJob) -> float | None:
    """Return the rate that twice the GPUs of this machine would reach, over twice today's; None where it is not known.

    Only the input is predicted: the exchange of gradients takes its share besides.
    """
    model = job.model
    if model is None or job.rank.elsewhere or not _has_gpu(job):
        return None
    after_s = model.changed(ranks=2 * model.ranks).step_s
    return min(1.0, model.step_s / after_s) if after_s > 0 else None


def gpu_notes(job: MeasuredJob) -> tuple[Note, ...]:
    """Return a note against more GPUs, with its number, where they would wait for input as well; else nothing."""
    if not _has_gpu(job) or job.rank.elsewhere:
        return ()
    ranks = len(job.ranks)
    limit = "" if job.model is None else TERM_WORDS[job.model.changed(ranks=2 * job.model.ranks).binding]
    words = gpu_gate(gpu_scaling(job), gpus=2 * ranks, now=ranks, limit=limit, wait_share=job.share(job.rank.exposed_wait_s))
    return () if words is None else (Note("more_gpus", words),)


def _has_gpu(job: MeasuredJob) -> bool:
    return job.machine.gpu_busy is not None or job.rank.gpu_step_s is not None
