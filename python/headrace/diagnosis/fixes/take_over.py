"""Decide whether `headrace run` can be applied to the training loader, from what `headrace run` itself found in the job."""

from __future__ import annotations

import shlex
from dataclasses import replace

from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.result.model import Finding
from headrace.session.model import ObservedLoader

__all__ = ["add_refusal", "is_closed", "is_image_folder", "run_command"]


def is_closed(loader: ObservedLoader) -> bool:
    """Return whether `headrace run` cannot help: it refuses this loader, runs already, or the loader is headrace's own."""
    return loader.take_over in ("refused", "active") or loader.family == "headrace"


def is_image_folder(loader: ObservedLoader) -> bool:
    """Return whether headrace can read the dataset from its folder, as far as that is known."""
    return loader.take_over in ("whole", "part") or loader.image_folder is not False


def run_command(job: MeasuredJob) -> str:
    """Return the job's command under `headrace run`."""
    return "headrace run -- " + shlex.join(job.session.command)


def add_refusal(job: MeasuredJob, found: Finding) -> Finding:
    """Return the finding with the reason why `headrace run` would not help, where it refuses the loader."""
    loader = job.rank.loader
    if loader.take_over != "refused":
        return found
    return replace(found, evidence=(*found.evidence, f"headrace run would not help: {loader.take_over_reason}"))
