"""The verdict on a watched job whose loader no hook knows, from the machine's curves, by the rules of a finished job."""

from __future__ import annotations

from dataclasses import replace

from headrace.attach.record.load_hooks import HOOK_FAILED
from headrace.diagnosis.result.kinds import KINDS, verdict_kind
from headrace.diagnosis.result.model import End, Finding
from headrace.diagnosis.rules.curves import use_words, watched_cause, watched_use
from headrace.session.model import Session

__all__ = ["NO_STEPS", "curve_words", "finding_by_curves"]

NO_STEPS = "steps: no loader that headrace knows was iterated; the verdict is inferred from the use of the machine"

WATCHED_ENDS = ("finished", "time_limit", "stopped")
"""How a command ended whose curves tell what set its pace; another end tells more than they do."""


def finding_by_curves(session: Session, end: End | None) -> Finding | None:
    """Return what set the pace of a job without a known loader, with its confidence; None where the curves cannot tell.

    A job of PyTorch without a GPU at work has not begun to train: the hooks would have timed its steps.
    """
    use = watched_use(session)
    hook_failed = any(item.what == HOOK_FAILED for item in session.not_measured)
    known_end = end is None or end.kind in WATCHED_ENDS
    if use is None or session.loaders or session.steps or hook_failed or not known_end:
        return None
    cause = watched_cause(session, use)
    if cause is None or (use.gpu is None and any(process.torch for process in session.processes)):
        return None
    share = None if use.gpu is None or cause.kind == "COMPUTE_BOUND" else round(1 - use.gpu, 4)
    share = round(use.queue_share or 0.0, 4) if cause.kind == "EXTERNAL_CPU" else share
    found = Finding(
        cause.kind,
        share,
        (*use_words(use), *cause.evidence),
        (),
        confidence=round(cause.confidence, 2),
        summary=KINDS[cause.kind].summary,
        share_of="run",
    )
    if cause.cause_seen:
        return found
    return replace(found, cause_seen=False, summary=verdict_kind(cause.kind, cause_seen=False).summary)


def curve_words(session: Session) -> tuple[str, ...]:
    """Return what the curves of a job without timed steps show where they do not tell its cause; () for a short run."""
    use = watched_use(session)
    if use is None or session.steps:
        return ()
    words = use_words(use)
    if use.gpu is None:
        words.append("without work on a GPU, curves do not tell the model's work from that of the input")
    return (", ".join(words),)
