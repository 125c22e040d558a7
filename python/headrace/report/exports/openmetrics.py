"""The diagnosis as OpenMetrics text, for Prometheus' textfile collector or any scraper (OpenMetrics 1.0)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.diagnosis.result.model import Diagnosis
from headrace.session.model import Session
from headrace.system.text.printable import printable_lines

__all__ = ["BUCKETS_S", "render"]

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of the step-time histogram, in seconds."""


def render(diagnosis: Diagnosis, session: Session) -> str:
    """Return the metrics as text that ends with `# EOF`. A value that was not measured has no sample."""
    return "\n".join([*_families(diagnosis, session), "# EOF"]) + "\n"


def _families(diagnosis: Diagnosis, session: Session) -> Iterator[str]:
    verdict = {"verdict": diagnosis.verdict}
    yield from _family("headrace_verdict", "info", "What sets the pace of the step.", [("_info", verdict, 1.0)])
    yield from _gauge("headrace_verdict_confidence_ratio", "Confidence of the verdict.", diagnosis.confidence)
    yield from _gauge("headrace_images_per_second", "Images per second now.", diagnosis.img_s)
    yield from _gauge("headrace_ceiling_images_per_second", "Images per second if the input kept up.", diagnosis.ceiling_img_s)
    best = {"fix": diagnosis.reachable_fix or ""}
    reached = [("", best, diagnosis.reachable_img_s)] if diagnosis.reachable_img_s is not None else []
    words = "Images per second with the best fix, measured or else predicted."
    yield from _family("headrace_reachable_images_per_second", "gauge", words, reached)
    yield from _gauge("headrace_input_wait_ratio", "Share of the time spent waiting for input.", diagnosis.wait_share)
    shares = [("", {"part": key}, share) for key, share in diagnosis.share_of_step.items()]
    yield from _family("headrace_step_share_ratio", "gauge", "Parts of the mean step; they sum to 1.", shares)
    gains = [("", {"fix": fix.id}, fix.gain) for fix in diagnosis.fixes if fix.gain is not None]
    yield from _family("headrace_predicted_speedup_ratio", "gauge", "Predicted images per second over the present.", gains)
    verified = [("", {"fix": fix.id}, fix.verified_img_s) for fix in diagnosis.fixes if fix.verified_img_s is not None]
    yield from _family("headrace_verified_images_per_second", "gauge", "Images per second, by the measured gain.", verified)
    yield from _histogram(session)


def _gauge(name: str, help_text: str, value: float | None) -> Iterator[str]:
    yield from _family(name, "gauge", help_text, [("", {}, value)] if value is not None else [])


Sampled = tuple[str, Mapping[str, str], float]


def _family(name: str, kind: str, help_text: str, samples: Sequence[Sampled]) -> Iterator[str]:
    if not samples:
        return
    yield f"# TYPE {name} {kind}"
    yield f"# HELP {name} {help_text}"
    for suffix, labels, value in samples:
        inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{name}{suffix}{{{inner}}} {value:.10g}" if inner else f"{name}{suffix} {value:.10g}"


def _escaped(text: str) -> str:
    """Return the text of a label, with characters that would act on a terminal as visible escapes."""
    return printable_lines(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _histogram(session: Session) -> Iterator[str]:
    steps = [step.step_s for step in session.steps]
    if not steps:
        return
    buckets: list[Sampled] = [
        ("_bucket", {"le": f"{bound:g}"}, float(sum(step <= bound for step in steps))) for bound in BUCKETS_S
    ]
    buckets.append(("_bucket", {"le": "+Inf"}, float(len(steps))))
    totals: list[Sampled] = [("_count", {}, float(len(steps))), ("_sum", {}, sum(steps))]
    yield "# UNIT headrace_step_seconds seconds"
    yield from _family("headrace_step_seconds", "histogram", "Wall time of the steps seen.", [*buckets, *totals])
