"""The panel of a SageMaker job that already ran: where its billed time went, the articles' signs, and what would be surer."""

from __future__ import annotations

from headrace.report.drawing.markup import Html, join, tag
from headrace.report.pages import tables
from headrace.report.sessions.compare_jobs import finished_job_of
from headrace.report.text import numbers
from headrace.session.model import Session

__all__ = ["panel"]

OUTCOMES = {True: "yes", False: "no", None: "cannot tell"}


def panel(session: Session | None) -> Html | None:
    """Return the panel of a SageMaker job, or None if the session was not made from one."""
    job = finished_job_of(session)
    if job is None:
        return None
    pairs: list[tuple[str, object]] = [
        ("status", job.get("status")),
        ("machines", " + ".join(job.get("instances") or ())),
        ("interruptions", job.get("interruptions")),
        ("framework", job.get("framework") or "not told"),
        ("an epoch", _seconds(job.get("epoch_s"))),
        ("billed", _seconds(job.get("billable_s"))),
        ("price", _usd(job.get("usd"))),
        ("paid without work on the GPU", _usd(job.get("wasted_usd"))),
    ]
    if job.get("reason"):
        pairs.append(("reason", job["reason"]))
    times = [(name, numbers.seconds(seconds)) for name, seconds in (job.get("seconds") or {}).items()]
    idle = [(name, numbers.seconds(seconds)) for name, seconds in (job.get("idle_s") or {}).items()]
    rules = [(str(one["rule"]), OUTCOMES[one["fires"]], str(one["why"])) for one in job.get("rules") or ()]
    command = job.get("command")
    return join(
        tables.definition_list(pairs),
        tables.table("Time in each status", ("status", "time"), times) if times else None,
        tables.table("Billed time without work on the GPU", ("part", "time"), idle) if idle else None,
        tables.table("Signs of the articles", ("rule", "fires", "why"), rules, numeric_from=3) if rules else None,
        tag("p", "A watched run is surer: ", tag("code", str(command)), class_="note") if command else None,
    )


def _seconds(value: float | None) -> str | None:
    return None if value is None else numbers.seconds(value)


def _usd(value: float | None) -> str | None:
    return None if value is None else f"${value:,.2f}"
