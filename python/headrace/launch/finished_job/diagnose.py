"""Diagnose a job that already ran: a session with its curves, the diagnosis, and where its billed time and money went.

found = diagnose_job(read_documents(Path("job")), PriceTable.load())
found.diagnosis.verdict, found.account.wasted_usd
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.cost.market.prices import PriceTable
from headrace.diagnosis.findings.tables import environment
from headrace.diagnosis.measure.series import heat_map, percentiles
from headrace.diagnosis.result.model import Diagnosis, HeatMap, Note, Percentiles
from headrace.errors import SourceError
from headrace.launch.finished_job.commands import training_words
from headrace.launch.finished_job.description import epoch_seconds, framework_of, hyperparameters, saved_places
from headrace.launch.finished_job.documents import JobDocuments, Series, host_names
from headrace.launch.finished_job.rules import RuleAnswer, apply_job_rules
from headrace.launch.finished_job.steady import Steady, steady_use
from headrace.launch.finished_job.times import JobTimes, job_times
from headrace.launch.finished_job.use import HostUse, instance_types, known_until, uses_of
from headrace.launch.finished_job.verdict import LEAST_PAUSES, find_findings, input_wait_share
from headrace.launch.sagemaker.follow import ENDED, usd_per_hour_of
from headrace.session.machine import GpuProperties, GpuSample, Host, Sample
from headrace.session.model import Session
from headrace.session.typed_json import converter
from headrace.system.text.foreign_errors import first_line
from headrace.system.text.redaction import redact_text
from headrace.system.text.sizes import count_text, percent_text

__all__ = ["JobAccount", "JobDiagnosis", "diagnose_job"]

MOST_SAMPLES = 5000
"""Average neighbouring points so that a session has at most this many."""

MOST_CELLS, GPU_CELLS = 2_000_000, 16
"""And so many values of cores and GPUs in all. A GPU in a sample takes as much as so many cores."""

WATCH_S = 300
"""The watched run that is proposed lasts so long: enough for a settled verdict."""

LONG_UPLOAD_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class JobAccount:
    """Where the billed time and money of a job went. None: not known.

    framework: that of the image. seconds: by status. training_s, billable_s: as AWS counts them. idle_s: billed seconds
    without work on the GPU, by "download", "start", "training", "pauses" (phases without work), "standstill" and "upload";
    those that were not measured, or did not occur, are left out. usd_per_hour: of all machines. usd, wasted_usd: of the billed
    time, and of its idle seconds (at least). epoch_s: seconds an epoch, by epoch_metric, a metric of the job's own.
    hyperparameters: without secrets. rules: the articles' signs. command: what would raise the confidence.
    """

    name: str
    status: str
    reason: str | None
    instances: tuple[str, ...]
    seconds: Mapping[str, float]
    interruptions: int
    training_s: float | None
    billable_s: float | None
    usd_per_hour: float | None
    gpu_usd_per_hour: float | None
    usd: float | None
    idle_s: Mapping[str, float]
    wasted_usd: float | None
    framework: str | None
    epoch_s: float | None
    epoch_metric: str | None
    hyperparameters: Mapping[str, str]
    rules: tuple[RuleAnswer, ...]
    command: str | None

    def lines(self) -> list[str]:
        """Return the account in plain sentences."""
        parts = ", ".join(f"{status} {seconds:,.0f} s" for status, seconds in self.seconds.items() if seconds >= 0.5)
        found = [f"{self.name}: {self.status} on {' + '.join(self.instances)}" + (f" ({parts})" if parts else "")]
        if self.reason:
            found.append(self.reason)
        if self.billable_s is not None:
            money = f" = ${self.usd:,.2f}" if self.usd is not None else ""
            found.append(f"billed: {self.billable_s:,.0f} s{money}; interruptions: {self.interruptions}")
        if self.epoch_s is not None:
            found.append(f"an epoch: {self.epoch_s:,.1f} s ({self.epoch_metric})")
        if self.idle_s:
            idle = ", ".join(f"{name} {seconds:,.0f} s" for name, seconds in self.idle_s.items())
            least = "" if "training" in self.idle_s else "at least "
            money = f" = {least}${self.wasted_usd:,.2f} wasted" if self.wasted_usd is not None else ""
            found.append(f"without work on the GPU: {idle}{money}")
        answers = {True: "yes", False: "no", None: "cannot tell"}
        found += [f"{one.rule}: {answers[one.fires]} ({one.why})" for one in self.rules]
        if self.command:
            found.append(f"a watched run is surer:  {self.command}")
        return found


@dataclass(frozen=True, slots=True)
class JobDiagnosis:
    """A finished job: its curves as a session, the diagnosis, and the account."""

    session: Session
    diagnosis: Diagnosis
    account: JobAccount


def diagnose_job(documents: JobDocuments, table: PriceTable, *, gpu_usd_per_hour: float | None = None) -> JobDiagnosis:
    """Return the diagnosis of a job from its documents. gpu_usd_per_hour: price of a GPU-hour (default: the table's).

    Nothing is assumed for what the documents lack: it is listed as not measured. Raises SourceError for documents whose values
    have other types, or contradict each other.
    """
    try:
        return _diagnosed(documents, table, gpu_usd_per_hour)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        hint = "fetch it again:  aws sagemaker describe-training-job"
        raise SourceError(f"the description of the job cannot be used: {first_line(error)}", hint=hint) from error


def _diagnosed(documents: JobDocuments, table: PriceTable, gpu_usd_per_hour: float | None) -> JobDiagnosis:
    is_over = documents.description["TrainingJobStatus"] in ENDED
    times = job_times(documents.description, now_s=0.0 if is_over else known_until(documents))
    uses = uses_of(documents, table, times)
    steady = steady_use(uses, times, ended_by_itself=documents.description["TrainingJobStatus"] == "Completed")
    rules = apply_job_rules(times, steady)
    findings, confidence = find_findings(documents, times, steady, rules)
    hourly = usd_per_hour_of(documents.description, table)
    gpus = _all_gpus(documents, table)
    if gpu_usd_per_hour is not None:
        hourly = gpu_usd_per_hour * (gpus or len(host_names(documents.description)))
    elif hourly is not None and gpus:
        gpu_usd_per_hour = hourly / gpus
    account = _account(documents, times, steady, rules, hourly, gpu_usd_per_hour)
    session = _session(documents, times, uses, account, table)
    wait, _ = input_wait_share(documents)
    idle_share = sum(account.idle_s.values()) / times.billed_s if times.billed_s and "training" in account.idle_s else None
    diagnosis = Diagnosis(
        verdict=findings[0].kind,
        confidence=confidence,
        share_of_step={},
        findings=(replace(findings[0], confidence=confidence), *findings[1:]),
        img_s=_img_s(documents.description),
        ceiling_img_s=None,
        not_measured=_not_measured(documents, times, uses, steady),
        summary=findings[0].summary,
        wait_share=wait,
        wasted_gpu_hours_per_100=None if idle_share is None else round(100 * idle_share, 1),
        command=session.command,
        duration_s=session.duration_s,
        environment=environment(session),
        percentiles=_percentiles(uses, times),
        heat_map=_heat_map(session, uses[0]),
        notes=tuple(Note("finished_job", text) for text in _notes(documents, times, uses, steady)),
    )
    return JobDiagnosis(session, diagnosis, account)


def _account(
    documents: JobDocuments,
    times: JobTimes,
    steady: Steady,
    rules: tuple[RuleAnswer, ...],
    hourly: float | None,
    gpu_hourly: float | None,
) -> JobAccount:
    description = documents.description
    billable = converter(float | None)(description.get("BillableTimeInSeconds"))
    idle: dict[str, float] = {}
    if steady.gpus != 0:
        known = {
            "download": times.seconds.get("Downloading"),
            "start": steady.start_s,
            "training": None if steady.gpu is None else (1 - steady.gpu) * steady.seconds,
            "pauses": steady.pauses_s or None,
            "standstill": steady.hang_s or None,
            "upload": times.seconds.get("Uploading"),
        }
        idle = {name: round(seconds, 1) for name, seconds in known.items() if seconds is not None}
    usd = None if hourly is None or billable is None else hourly * billable / 3600
    wasted = usd * min(1.0, sum(idle.values()) / times.billed_s) if usd is not None and idle and times.billed_s else None
    reason = description.get("FailureReason")
    epoch_s, epoch_metric = epoch_seconds(description)
    return JobAccount(
        name=str(description.get("TrainingJobName") or "job"),
        status=str(description.get("SecondaryStatus") or description["TrainingJobStatus"]),
        reason=redact_text(" ".join(str(reason).split())) if reason else None,
        instances=_instances(description),
        seconds={status: round(seconds, 3) for status, seconds in times.seconds.items() if status not in ENDED},
        interruptions=times.interruptions,
        training_s=converter(float | None)(description.get("TrainingTimeInSeconds")),
        billable_s=billable,
        usd_per_hour=hourly,
        gpu_usd_per_hour=gpu_hourly,
        usd=usd,
        idle_s=idle,
        wasted_usd=wasted,
        framework=framework_of(description),
        epoch_s=epoch_s,
        epoch_metric=epoch_metric,
        hyperparameters=hyperparameters(description),
        rules=rules,
        command=_watch_command(description),
    )


def _all_gpus(documents: JobDocuments, table: PriceTable) -> int:
    """Return the number of GPUs of all machines, 0 where their types are not in the table."""
    known = [table.instances.get(kind) for kind in instance_types(documents).values()]
    return sum(one.gpus for one in known if one is not None)


def _instances(description: Mapping[str, Any]) -> tuple[str, ...]:
    resources = description.get("ResourceConfig") or {}
    groups = resources.get("InstanceGroups") or [resources]
    return tuple(f"{group.get('InstanceCount') or 1} × {group.get('InstanceType') or 'unknown type'}" for group in groups)


def _watch_command(description: Mapping[str, Any]) -> str:
    """Return the command of a watched run of the same training."""
    return shlex.join(["headrace", "diagnose", "--seconds", str(WATCH_S), "--", *training_words(description)])


def _img_s(description: Mapping[str, Any]) -> float | None:
    """Return the images per second that the log of `headrace train` names last."""
    for one in description.get("FinalMetricDataList") or []:
        if isinstance(one, dict) and one.get("MetricName") == "train:images_per_second":
            value = one.get("Value")
            return float(value) if isinstance(value, int | float) and value > 0 else None
    return None


def _session(
    documents: JobDocuments, times: JobTimes, uses: Sequence[HostUse], account: JobAccount, table: PriceTable
) -> Session:
    """Return the curves of the first host, as a session that a report can draw."""
    use = uses[0]
    zero_s = times.begin_s or 0.0
    instance = table.instances.get(use.instance)
    rows = use.gpu_rows or ({0: use.gpu} if use.gpu else {})
    name = instance.gpu if instance else "GPU"
    names = dict.fromkeys(rows, name if use.gpu_rows or (use.gpus or 1) == 1 else f"mean of {use.gpus} × {name}")
    host = Host(
        hostname=f"{account.name}/{use.name}",
        cores_online=use.cores,
        memory_bytes=round(instance.memory_gib * 2**30) if instance else None,
        cpu_model=instance.cpu if instance else None,
        gpus=tuple(GpuProperties(number, names[number]) for number in rows),
    )
    return Session(
        command=("sagemaker", account.name),
        started_at=times.begin_s,
        duration_s=None if times.end_s is None else times.end_s - zero_s,
        host=host,
        samples=_samples(use, rows, zero_s),
        facts={"sagemaker_job": asdict(account)},
    )


def _samples(use: HostUse, gpus: Mapping[int, Series], zero_s: float) -> tuple[Sample, ...]:
    """Return one sample for each interval of a host's curves. Where a curve has no point, the sample has no value of it."""
    cores = use.core_rows or ({0: use.cpu} if use.cpu else {})
    if not cores and not gpus:
        return ()
    points = max((len(series) for series in (*cores.values(), *gpus.values())), default=0)
    width_s = use.interval_s * math.ceil(max(1, points) / MOST_SAMPLES)
    rows, cost = (*cores.values(), *gpus.values()), len(cores) + GPU_CELLS * len(gpus)
    most = max(1, MOST_CELLS // max(1, cost))
    while len(places := {math.floor(time / width_s) for row in rows for time, _ in row}) > most:
        width_s *= 2
    core_cells = [_cells(series, width_s) for _, series in sorted(cores.items())]
    gpu_cells = {number: _cells(series, width_s) for number, series in gpus.items()}
    found = []
    for place in sorted(places):
        busy = [cells.get(place) for cells in core_cells]
        found.append(
            Sample(
                time_s=place * width_s + width_s - zero_s,
                interval_s=width_s,
                core_busy=tuple(value for value in busy if value is not None) if None not in busy else (),
                gpus=tuple(GpuSample(number, busy=cells.get(place)) for number, cells in gpu_cells.items()),
            )
        )
    return tuple(found)


def _heat_map(session: Session, use: HostUse) -> HeatMap | None:
    found = heat_map(session)
    return found if found is None or use.core_rows else replace(found, mean_of_cores=use.cores)


def _cells(series: Series, width_s: float) -> dict[int, float]:
    cells: dict[int, list[float]] = {}
    for time, value in series:
        cells.setdefault(math.floor(time / width_s), []).append(value)
    return {place: math.fsum(values) / len(values) for place, values in cells.items()}


def _percentiles(uses: Sequence[HostUse], times: JobTimes) -> tuple[Percentiles, ...]:
    """Return the percentiles of each curve while the job trained, of each host where there are several."""
    found = []
    for use in uses:
        prefix = f"{use.name} " if len(uses) > 1 else ""
        curves = (
            ("CPU", use.cpu),
            ("GPU", use.gpu),
            ("memory", use.memory),
            ("GPU memory", use.gpu_memory),
            ("disk", use.disk),
        )
        for name, series in curves:
            values = [100 * value for _, value in times.in_training(series or (), lasts_s=0.0)]
            found.append(percentiles(f"{prefix}{name}", "%", values))
    return tuple(row for row in found if row is not None)


def _not_measured(documents: JobDocuments, times: JobTimes, uses: Sequence[HostUse], steady: Steady) -> tuple[str, ...]:
    found = ["steps: SageMaker keeps no times of single steps; headrace diagnose times them"]
    if not documents.metrics and not documents.cores:
        found.append("use of the machines: no metrics of CloudWatch and no files of the Debugger")
    else:
        if steady.cpu is None:
            found.append("use of the CPU")
        if steady.gpu is None and steady.gpus != 0:
            found.append("use of the GPU")
        if not documents.cores:
            found.append("each core and GPU by itself: the Debugger's files are not there; CloudWatch has sums for each minute")
    if not times.seconds:
        found.append("times of the statuses: the description has no transitions")
    asked, known = len(host_names(documents.description)), len(uses)
    if known < asked and (documents.metrics or documents.cores):
        found.append(f"{count_text(asked - known, 'host')} of {asked}")
    problems = [problem for use in uses for problem in use.problems]
    return tuple(dict.fromkeys((*found, *documents.problems, *times.problems, *problems)))


def _saved(description: Mapping[str, Any]) -> list[str]:
    """Say what is left of a job that did not complete; nothing where it left a model."""
    checkpoints, model = saved_places(description)
    ended = "stopped" if description["TrainingJobStatus"] == "Stopped" else "failed"
    if model:
        return []
    if checkpoints:
        return [f"the job {ended} without a model; checkpoints, if its script wrote any, are in {checkpoints}"]
    return [f"the job {ended} and saved nothing: no model, and no CheckpointConfig that keeps what its script writes"]


def _notes(documents: JobDocuments, times: JobTimes, uses: Sequence[HostUse], steady: Steady) -> tuple[str, ...]:
    found = []
    if times.interruptions:
        again = times.seconds.get("Interrupted", 0.0)
        work = "how much work was done again is not measured"
        if not saved_places(documents.description)[0]:
            work = "without a CheckpointConfig each attempt began anew"
        found.append(
            f"the job was interrupted {count_text(times.interruptions, 'time')} ({again:,.0f} s until machines came back, "
            f"not billed); {work}"
        )
    if documents.description["TrainingJobStatus"] in ("Stopped", "Failed"):
        found += _saved(documents.description)
    upload = times.seconds.get("Uploading", 0.0)
    if times.billed_s and upload >= LONG_UPLOAD_SHARE * times.billed_s:
        found.append(
            f"the upload took {percent_text(upload / times.billed_s)} of the billed time; "
            "OutputDataConfig.CompressionType NONE saves the packing"
        )
    if 0 < steady.pauses_s < LEAST_PAUSES * times.billed_s:
        found.append(f"the GPU stood idle in {count_text(len(steady.pauses), 'phase')}, {steady.pauses_s:,.0f} s together")
    if steady.idle_gpus:
        found.append(f"{count_text(steady.idle_gpus, 'GPU')} never worked: the script uses the others only")
    busy = {use.name: sum(value for _, value in use.cpu) / len(use.cpu) for use in uses if use.cpu}
    if len(busy) > 1 and max(busy.values()) > 2 * min(busy.values()) + 0.1:
        least, most = min(busy, key=lambda name: busy[name]), max(busy, key=lambda name: busy[name])
        found.append(f"the hosts differ: CPU {percent_text(busy[most])} on {most}, {percent_text(busy[least])} on {least}")
    if documents.description["TrainingJobStatus"] not in ENDED:
        found.append("the job still runs: this is what it did so far")
    return tuple(found)
