"""The page of benchmarks/diagnosis_scenarios.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pages import attach_overhead
from pages.document import Document, facts, note, page, percent, read, table

RUNS = [
    "#",
    "job",
    "verdict",
    "conf.",
    "also",
    "must not",
    "fix",
    "predicted",
    "measured",
    "error",
    "in interval",
    "first verdict",
]


def render(document: Document, overhead: Document | None = None) -> str:
    """Return the page. `overhead`: the document of benchmarks/attach_overhead.py; default: the one on disk."""
    return page(
        "# Diagnosis of jobs with one known fault",
        "The jobs are `benchmarks/scenarios/jobs.py`, each on two cores of its own. "
        "`benchmarks/diagnosis_scenarios.py` describes "
        "the method.",
        facts(document),
        score(document["score"]),
        note("diagnosis"),
        "## Every run",
        runs(document["runs"]),
        "## Other tools on the same jobs",
        others(document["others"]),
        "## What watching costs",
        attach_overhead.render(overhead or read("attach_overhead")),
    )


def score(found: Mapping[str, Any]) -> str:
    """Return the figures that the runs are made for, as a list."""
    lines = [f"- right: {found['right']} of {found['valid']} valid runs ({found['void']} void)"]
    lines += [
        f"- repeat {one['repeat']}: scenarios 1 to 16: {one['first']} of {one['of_first']} right; from 17 on: "
        f"{one['stretch']} of "
        f"{one['of_stretch']}"
        for one in found["repeats"]
    ]
    lines.append(f"- false alarms on the two controls: {found['false_alarms']} in {found['control_runs']} runs")
    if minutes := found.get("healthy_minutes"):
        lines.append(
            f"- HANG said of a healthy job: {found['false_hangs']} times in {minutes:.0f} minutes of jobs that look alike"
        )
    lines.append(f"- must-not verdicts: {found['must_not']}")
    if fixes := found["prediction"]:
        lines.append(
            f"- prediction error: median {percent(fixes['median_error'])}, p90 {percent(fixes['p90_error'])} over "
            f"{fixes['fixes']} fixes that were tried; the interval covers {fixes['covered']} of {fixes['intervals']}"
        )
    if times := found["first_verdict"]:
        lines.append(
            f"- first verdict while the job runs: median {times['median_s']:.0f} s after the command was started, longest "
            f"{times['longest_s']:.0f} s ({times['runs']} of {found['valid']} runs were long enough for one)"
        )
    return "\n".join(lines)


def runs(rows: list[dict[str, Any]]) -> str:
    """Return one line for each run."""
    return table([*RUNS, "noise"], map(run, rows))


def run(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of one run."""
    mark = " void" if row["void"] else "" if row["right"] else " **wrong**"
    return [
        str(row["number"]),
        row["job"],
        f"{row['verdict']}{mark}{row['missing']}",
        f"{row['confidence']:.2f}",
        " ".join(row["also"]),
        " ".join(row["must_not"]),
        row["fix"],
        "" if row["predicted_img_s"] is None else f"{row['predicted_img_s']:,.0f}",
        "" if row["measured_img_s"] is None else f"{row['measured_img_s']:,.0f}",
        "" if row["error"] is None else f"{100 * row['error']:+.0f} %",
        {True: "yes", False: "no", None: ""}[row["in_interval"]],
        "" if row["verdict_after_s"] is None else f"{row['verdict_after_s']:.0f} s",
        percent(row["noise"]),
    ]


def others(found: Mapping[str, Any]) -> str:
    """Return the confusion matrix: what each tool said about each job."""
    tools = ("TraceML", "TensorBoard", "SageMaker", "warnings")
    rows = (
        [
            job["job"],
            job["class"],
            job["headrace"] + ("" if job["right"] else " **wrong**"),
            *(job[tool] or "not run" for tool in tools),
        ]
        for job in found["jobs"]
    )
    spoke = found["spoke"]
    return page(
        table(["job", "class", "headrace", "TraceML", "TensorBoard plugin", "SageMaker's rules", "PyTorch, Lightning"], rows),
        f"headrace names the cause in {found['named']} of {found['of']} jobs. TraceML names the class (not the "
        "cause within it) in "
        f"{found['traceml_class']} of the {found['traceml_of']} jobs it ran on. Of {found['of']} jobs, the TensorBoard rule "
        f"speaks in {spoke.get('TensorBoard', 0)}, SageMaker's rules in {spoke.get('SageMaker', 0)}, the warnings in "
        f"{spoke.get('warnings', 0)}; none of the three names a cause.",
    )
