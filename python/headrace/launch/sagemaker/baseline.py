"""What a job under headrace costs beside the same script as it is, in words: from the descriptions of both jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.launch.sagemaker.follow import FinishedJob

__all__ = ["against_plain"]


def against_plain(
    description: Mapping[str, Any], done: FinishedJob, baseline: Mapping[str, Any] | None, plain: FinishedJob | None
) -> str:
    """Return time and price of a job beside those of `baseline`, a finished job of the same script; None: not known."""
    if baseline is None or plain is None:
        return "the same script plain: not known (--baseline JOB names a job of it)"
    for job in (done, plain):
        if job.status != "Completed":
            return f"the same script plain: not known ({job.name} ended {job.status})"
    if not plain.billable_s or done.billable_s is None:
        return "the same script plain: not known (AWS names no billed seconds)"
    cost = "" if plain.usd is None else f" = ${plain.usd:,.2f}"
    times = f"{done.billable_s / plain.billable_s:.2f} of its billed time"
    price = f", {done.usd / plain.usd:.2f} of its price" if done.usd is not None and plain.usd else ""
    differs = _differences(description, baseline)
    caution = f"; not the same job: {', '.join(differs)} differ" if differs else ""
    return (
        f"the same script plain ({plain.name}): billed {plain.billable_s:,.0f} s{cost}; this job took {times}{price}{caution}"
    )


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return what differs in two jobs and changes time or price: machines, spot, data, and the script's hyperparameters."""
    found = [
        name
        for name, value in (
            ("machines", lambda job: _machines(job)),
            ("spot", lambda job: bool(job.get("EnableManagedSpotTraining"))),
            ("data", _data),
        )
        if value(one) != value(other)
    ]
    values = [dict(job.get("HyperParameters") or {}) for job in (one, other)]
    names = sorted({*values[0], *values[1]})
    return found + [
        f"hyperparameter {name}"
        for name in names
        if not name.startswith("sagemaker_") and values[0].get(name) != values[1].get(name)
    ]


def _machines(job: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    resources = job.get("ResourceConfig") or {}
    groups = resources.get("InstanceGroups") or [resources]
    return [(group.get("InstanceType"), group.get("InstanceCount")) for group in groups]


def _data(job: Mapping[str, Any]) -> dict[str, Any]:
    channels = {one["ChannelName"]: one.get("DataSource") for one in job.get("InputDataConfig") or []}
    return {name: source for name, source in channels.items() if name not in ("code", "sm_drivers")}
