"""The verdict on a job that already ran, from what AWS kept of it. It is less sure than that of a watched run.

Curves of the machine do not show steps, so a wait is inferred, not timed. What two causes would look alike on the curves gets a
low confidence, and the evidence names both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.diagnosis.measure.stats import median
from headrace.diagnosis.result.kinds import KINDS, verdict_kind
from headrace.diagnosis.result.model import Finding, Fix
from headrace.diagnosis.rules.curves import CPU_FULL, PREP_CORES, MeanUse, cause_of, use_words
from headrace.launch.finished_job.commands import input_fixes, pack_fix
from headrace.launch.finished_job.documents import JobDocuments
from headrace.launch.finished_job.hang import SuspectedHang
from headrace.launch.finished_job.rules import RuleAnswer, start_share
from headrace.launch.finished_job.steady import Steady
from headrace.launch.finished_job.times import JobTimes
from headrace.report.text.numbers import seconds as time_text
from headrace.system.text.sizes import count_text, percent_text

__all__ = ["LEAST_PAUSES", "MOST_CONFIDENCE", "find_findings", "input_wait_share"]

MOST_CONFIDENCE = 0.7
"""No verdict on curves is surer than this. Watched runs reach 0.95."""

WAITS_LITTLE = 0.10
"""A script that waits for batches for less than this share of its steps is not slowed by its input."""

LEAST_PAUSES = 0.1
"""Report phases without work on the GPU when they take this share of the billed time."""

FEW_POINTS = 15
"""Lower the confidence when fewer points of the training are known."""

NO_CONFIDENCE = 0.1


def input_wait_share(documents: JobDocuments) -> tuple[float | None, str]:
    """Return the share of the steps in which the script waited for batches, if anything timed that, and what did."""
    if documents.input_wait is not None:
        return documents.input_wait.share, f"the Debugger's framework metrics, {documents.input_wait.batches:,} batches"
    metrics = documents.description.get("FinalMetricDataList") or []
    values = {str(one.get("MetricName")): one.get("Value") for one in metrics if isinstance(one, dict)}
    percent = values.get("train:wait_percent")
    if isinstance(percent, int | float) and 0 <= percent <= 100:
        return percent / 100, "the log of headrace train"
    return None, ""


def find_findings(
    documents: JobDocuments, times: JobTimes, steady: Steady, rules: tuple[RuleAnswer, ...]
) -> tuple[list[Finding], float]:
    """Return the findings, the verdict first, and its confidence. Shares are shares of the billed time."""
    fires = {answer.rule: answer.fires for answer in rules}
    found: list[Finding] = []
    confidence: dict[str, float] = {}
    if steady.pauses_s >= LEAST_PAUSES * times.billed_s and steady.pauses:
        found.append(_pauses(times, steady))
        confidence["PERIODIC_STALL"] = 0.55 if len(steady.pauses) > 1 else 0.4
    if fires["long_start"]:
        found.append(_start(documents, times, steady))
        confidence["STARTUP"] = MOST_CONFIDENCE
    pace, sure = _pace(documents, times, steady)
    if pace is not None:
        found.append(pace)
        confidence[pace.kind] = sure
    if steady.hang is not None:  # how the job ended comes before what was slow until then
        found = [replace(one, fixes=()) for one in sorted(found, key=lambda one: -(one.share or 0.0))]
        hang, sure = _hang(documents.description, times, steady, steady.hang)
        return [hang, *found], sure
    if not found:
        return [_nothing(documents, times, steady)], NO_CONFIDENCE
    found.sort(key=lambda one: -(one.share or 0.0))
    if found[0].kind == "COMPUTE_BOUND":  # its share is no loss
        found.sort(key=lambda one: one.kind == "COMPUTE_BOUND")
    sure = confidence[found[0].kind]
    shares = [one.share or 0.0 for one in found if KINDS[one.kind].is_loss]
    if len(shares) > 1 and shares[1] > 0.7 * shares[0]:
        sure -= 0.1
    if steady.points < FEW_POINTS and found[0].kind != "STARTUP":
        sure -= 0.1
    found = [replace(one, share=None if one.kind == "COMPUTE_BOUND" else one.share, share_of="run") for one in found]
    return found, round(max(NO_CONFIDENCE, min(MOST_CONFIDENCE, sure)), 2)


def _hang(description: Mapping[str, Any], times: JobTimes, steady: Steady, found: SuspectedHang) -> tuple[Finding, float]:
    """Suspect a hang: the end of the curves, with a confidence."""
    share = steady.hang_s / times.billed_s if times.billed_s else None
    did = [] if found.gpu is None else [f"the GPU was busy {percent_text(found.gpu)}"]
    did += [] if found.cores is None else [f"{found.cores:.2f} cores worked"]
    how = "all curves stayed at one value to the digit" if found.spins else "nothing worked any more"
    evidence = [
        f"{how}: {', '.join(did)}",
        _before_words(steady, found),
        _ended_by(description),
    ]
    if found.spins and found.gpu:
        evidence.append("a collective that waits for a rank (NCCL) keeps its GPU at 100 % like this")
    if found.first is not None:
        evidence.append(f"{found.first} stood still first: see what its log says last")
    sure = 0.35 if found.spins and not found.worked else 0.45 if found.spins or not found.worked else 0.55
    if found.worked and not found.spins and found.seconds >= 10 * max(found.longest_before_s, 600.0):
        sure += 0.1
    suspected = f"a suspected hang: training stood still for its last {time_text(found.seconds)}"
    return replace(_finding("HANG", share, evidence), summary=suspected), sure


def _before_words(steady: Steady, found: SuspectedHang) -> str:
    if not found.worked:
        return "nothing had worked before" if steady.gpus == 0 else "no GPU had worked before"
    longest = found.longest_before_s
    return f"the longest time like this before lasted {time_text(longest)}" if longest else "no time like this came before"


def _ended_by(description: Mapping[str, Any]) -> str:
    """Say what ended a job that did not end by itself."""
    status = str(description.get("SecondaryStatus") or description.get("TrainingJobStatus"))
    limit_s = (description.get("StoppingCondition") or {}).get("MaxRuntimeInSeconds")
    if status == "MaxRuntimeExceeded" and isinstance(limit_s, int | float):
        return f"the job did not end by itself: MaxRuntimeInSeconds ({time_text(limit_s)}) did"
    if description.get("TrainingJobStatus") == "InProgress":
        return "the job still runs, and is billed"
    return f"the job did not end by itself: its status is {status}"


def _pauses(times: JobTimes, steady: Steady) -> Finding:
    """Report phases without work on the GPU, which are no wait for batches."""
    lengths = [end - begin for begin, end in steady.pauses]
    evidence = [
        f"the GPU stood idle in {count_text(len(lengths), 'phase')} of {time_text(median(lengths) or 0.0)} (median), "
        f"{time_text(sum(lengths))} together, and worked for {time_text(steady.seconds)}"
    ]
    if steady.pauses_cores is not None:
        busy = f"{steady.pauses_cores:.1f} of {steady.cores} cores worked meanwhile"
        other = (
            "something else ran there, such as validation"
            if steady.pauses_cores >= PREP_CORES
            else "what it waited for was not seen"
        )
        evidence.append(f"{busy}: {other}")
    found = _finding("PERIODIC_STALL", steady.pauses_s / times.billed_s, evidence)
    summary = "the GPU stands idle for whole phases, such as validation on the CPU"
    return replace(found, summary=summary)


def _start(documents: JobDocuments, times: JobTimes, steady: Steady) -> Finding:
    download_s = times.seconds.get("Downloading", 0.0)
    attempts = len(times.trainings)
    evidence = [f"downloading the inputs took {download_s:,.0f} s"]
    if steady.start_s is not None:
        evidence.append(f"the GPU did nothing for the first {steady.start_s:,.0f} s of training")
    if attempts > 1:
        evidence.append(f"these are sums over {attempts} attempts: each interruption repeats the start")
    fixes: tuple[Fix, ...] = ()
    if 2 * download_s >= (steady.start_s or 0.0):
        modes = _modes(documents.description)
        why = " and read them in FastFile mode: no download" if "File" in modes else ""
        fixes = (pack_fix(documents.description, why),)
    return _finding("STARTUP", start_share(times, steady), evidence, fixes)


def _pace(documents: JobDocuments, times: JobTimes, steady: Steady) -> tuple[Finding | None, float]:
    """Return what set the pace of the steady part, with a confidence; None where the curves cannot tell."""
    wait, source = input_wait_share(documents)
    if steady.points < 5 or steady.is_gpu_unused or not times.billed_s:
        return None, 0.0
    if steady.gpu is None:
        return _pace_without_gpu(documents.description, times, steady, wait, source) if steady.gpus == 0 else (None, 0.0)
    lost = (1 - steady.gpu) * steady.seconds / times.billed_s
    use = _mean_use(steady)
    seen = use_words(use)
    if wait is not None:
        seen.append(f"the script waited for batches {percent_text(wait)} of its time ({source})")
    cause = cause_of(use)
    if cause is not None and cause.kind == "COMPUTE_BOUND":
        surer = 0.1 * (wait is not None and wait < 0.2)
        return _finding(cause.kind, lost, [*seen, *cause.evidence]), cause.confidence + surer
    if wait is not None and wait < WAITS_LITTLE:
        fixes = input_fixes(documents.description, "OVERHEAD_BOUND", steady.cores, steady.gpus)
        return _finding(
            "OVERHEAD_BOUND", lost, [*seen, "the GPU idles, but not for input: Python, copies or syncs"], fixes
        ), 0.4
    if cause is None:
        return None, 0.0
    fixes = input_fixes(documents.description, cause.kind, steady.cores, steady.gpus)
    finding = _finding(cause.kind, lost, [*seen, *cause.evidence], fixes)
    if not cause.cause_seen:
        finding = replace(
            finding,
            cause_seen=False,
            summary=verdict_kind(cause.kind, cause_seen=False).summary,
            fixes=fixes[:1],  # no pack and no cache: nothing shows that files are read
        )
    return finding, cause.confidence + (0.1 if wait is not None else 0.0)


def _mean_use(steady: Steady) -> MeanUse:
    return MeanUse(
        gpu=steady.gpu,
        gpu_p5=steady.gpu_p5,
        gpu_p95=steady.gpu_p95,
        cpu=steady.cpu,
        cores=steady.cores,
        busy_cores=steady.busy_cores,
        io_wait=steady.io_wait,
    )


def _pace_without_gpu(
    description: Mapping[str, Any], times: JobTimes, steady: Steady, wait: float | None, source: str
) -> tuple[Finding | None, float]:
    """On a machine without a GPU model and input share the cores: only a timed wait tells them apart."""
    if wait is None or steady.cpu is None:
        return None, 0.0
    seen = [
        f"the script waited for batches {percent_text(wait)} of its time ({source})",
        *use_words(replace(_mean_use(steady), gpu=None)),
    ]
    if wait < WAITS_LITTLE:
        return _finding("COMPUTE_BOUND", wait, seen), 0.6
    lost = wait * steady.seconds / times.billed_s
    kind, sure = ("CPU_SATURATED", 0.5) if steady.cpu >= CPU_FULL else ("CPU_PREP", 0.35)
    return _finding(kind, lost, seen, input_fixes(description, kind, steady.cores, steady.gpus)), sure


def _nothing(documents: JobDocuments, times: JobTimes, steady: Steady) -> Finding:
    """Return INSUFFICIENT_DATA with the reason: what is missing, or what the curves cannot tell."""
    if documents.description.get("TrainingJobStatus") == "InProgress":
        why = "the job still runs, and its curves do not tell yet"
    elif not times.training_s:
        why = "the job never trained"
    elif steady.is_gpu_unused:
        most = steady.gpu_most or 0.0
        used = "was never used" if most == 0 else f"hardly worked ({percent_text(steady.gpu or 0.0)} of the time)"
        why = f"the GPU {used}: the script seems to train on the CPU"
    elif steady.gpu is None and steady.gpus != 0:
        why = "the use of the GPU was not measured"
    elif steady.gpus == 0:
        why = "on a machine without a GPU, curves do not tell the model's work from that of the input"
    elif steady.points < 5:
        why = f"the training was too short: {steady.points} points of its use are known"
    else:
        why = "the use of the CPU was not measured"
    return replace(_finding("INSUFFICIENT_DATA", None, [why]), summary=why)


def _finding(kind: str, share: float | None, evidence: list[str], fixes: tuple[Fix, ...] = ()) -> Finding:
    bounded = None if share is None else round(min(1.0, max(0.0, share)), 4)
    return Finding(kind, bounded, tuple(evidence), fixes, summary=KINDS[kind].summary, share_of="run")


def _modes(description: Mapping[str, Any]) -> set[str]:
    default = (description.get("AlgorithmSpecification") or {}).get("TrainingInputMode")
    return {str(one.get("InputMode") or default) for one in description.get("InputDataConfig") or [] if isinstance(one, dict)}
