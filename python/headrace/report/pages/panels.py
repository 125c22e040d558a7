"""The page below the first screen: the run over time, tables, other findings, environment, thresholds."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.diagnosis.result.model import Diagnosis, Finding
from headrace.diagnosis.rules.startup import START_WORDS
from headrace.report.drawing import timeline
from headrace.report.drawing.markup import Html, join, no_break, tag
from headrace.report.pages import flame, gpu_counters, sagemaker_job, tables
from headrace.report.pages.environment import environment
from headrace.report.sessions.compare_jobs import finished_job_of
from headrace.report.text import numbers
from headrace.report.text.screen import capitalised
from headrace.report.text.slow_steps import SlowStep, slow_steps
from headrace.report.text.thresholds import thresholds
from headrace.session.model import Session

__all__ = ["panels"]

FOLDED = frozenset(
    ("slow", "percentiles", "gpus", "stages", "functions", "ranks", "model", "startup", "environment", "thresholds")
)
"""Panels that are closed until somebody opens them, so that the page of any run is read in a few screens."""


def panels(diagnosis: Diagnosis, session: Session | None) -> list[Html]:
    """Return one section per panel, the tables folded. A panel without data is left out."""
    steps = diagnosis.timeline
    slow = slow_steps(steps) if steps is not None else ()
    rows = tables.percentile_rows(diagnosis, session)
    found = (
        ("job", "The job on SageMaker", sagemaker_job.panel(session)),
        ("over-time", "The run over time", _over_time(diagnosis, slow, session)),
        ("others", "Other findings", _others(diagnosis)),
        ("configuration", "Settings that cost speed", _settings(diagnosis)),
        ("slow", "Slow steps", tables.slow_step_table(slow, steps.stride) if slow and steps is not None else None),
        ("percentiles", "Percentiles", tables.percentile_table(rows) if rows else None),
        ("gpus", "GPUs", gpu_counters.panel(session) if session is not None else None),
        ("stages", "Loader stages", tables.stage_table(diagnosis.stages) if diagnosis.stages else None),
        ("functions", "Functions that take the time", flame.panel(diagnosis, session) if diagnosis.flame_charts else None),
        ("ranks", "Ranks", tables.rank_table(diagnosis.rank_rows) if diagnosis.rank_rows else None),
        (
            "model",
            "Step model",
            tables.term_table(diagnosis.terms_s, diagnosis.step_s) if diagnosis.terms_s else None,
        ),
        ("startup", "Start-up time", _startup(diagnosis)),
        ("environment", "Environment", tables.definition_list(environment(diagnosis, session))),
        (
            "thresholds",
            "Thresholds of the rules",
            None if finished_job_of(session) else tables.threshold_table(thresholds()),
        ),
    )
    return [_panel(name, title, body) for name, title, body in found if body]


def _panel(name: str, title: str, body: Html) -> Html:
    heading = tag("h2", title)
    if name not in FOLDED:
        return tag("section", heading, body, id=name, aria_label=title)
    return tag("section", tag("details", tag("summary", heading), body), id=name, aria_label=title, class_="folded")


def _over_time(diagnosis: Diagnosis, slow: Sequence[SlowStep], session: Session | None) -> Html | None:
    end_s = timeline.axis_end_s(diagnosis.timeline, diagnosis.heat_map, diagnosis.duration_s)
    lanes = timeline.chart(diagnosis.timeline, diagnosis.heat_map, slow, session, end_s)
    if lanes is None:
        return None
    key = "Stronger colour: busier. Grey: not measured." if diagnosis.heat_map is not None else ""
    return join(lanes, tag("p", key, id="readout", class_="note"))


def _startup(diagnosis: Diagnosis) -> Html | None:
    pairs = [(START_WORDS.get(name, name), numbers.seconds(value)) for name, value in diagnosis.startup_s.items()]
    return tables.definition_list(pairs) if pairs else None


def _settings(diagnosis: Diagnosis) -> Html | None:
    """Return the settings that cost speed whatever the verdict is, each with evidence and fix; None if there are none."""
    found = []
    for finding in diagnosis.configuration:
        text = _sentences(finding)
        changes = []
        for fix in finding.fixes:
            gain = f"{numbers.gain(fix.gain)} predicted" if fix.gain is not None else fix.basis
            command = tag("code", fix.command) if fix.command else None
            changes.append(tag("p", f"{fix.change} ({gain}) ", command, class_="note"))
        found.append(join(tag("dt", finding.kind.replace("_", " ")), tag("dd", text, *changes)))
    return tag("dl", *found) if found else None


def _others(diagnosis: Diagnosis) -> Html | None:
    """Return the findings other than the verdict, each with its evidence; None if there are none."""
    found = []
    for finding in diagnosis.findings:
        if finding.kind == diagnosis.verdict:
            continue
        share = tag("b", numbers.percent(finding.share)) if finding.share is not None else None
        text = _sentences(finding)
        found.append(join(tag("dt", f"{finding.kind.replace('_', ' ')} ", share), tag("dd", text)))
    return tag("dl", *found) if found else None


def _sentences(finding: Finding) -> str:
    """Return the summary and the evidence of a finding as sentences."""
    return no_break(" ".join(_sentence(clause) for clause in (finding.summary, *finding.evidence) if clause))


def _sentence(clause: str) -> str:
    """Return a clause with a capital letter and a full stop. Code at its start, such as `next()`, keeps its letters."""
    return f"{capitalised(clause).rstrip('.')}."
