"""The documents of a job that already ran: DescribeTrainingJob, CloudWatch's metrics, and the Debugger's files, from a folder.

    describe.json                          what DescribeTrainingJob gives
    metrics.json                           what GetMetricData gives (one answer, or a list of pages)
    profiler-output/system/**/*.json       the Debugger's system metrics, a JSON object on each line
    profiler-output/framework/**/*pythontimeline.json    its framework metrics

Only describe.json has to be there. Formats: "Amazon SageMaker Developer Guide", and the readers and recorded files of
awslabs/sagemaker-debugger.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.errors import SourceError
from headrace.launch.job_request.request_rules import MOST_INSTANCES
from headrace.session.typed_json import LARGEST, converter
from headrace.system.files.regular_file import read_regular
from headrace.system.text.json import check_values, parse_json
from headrace.system.text.size_limits import RECORD_LIMIT, record_limit

__all__ = ["METRICS", "InputWait", "JobDocuments", "Series", "host_and_name", "host_names", "moment_s", "read_documents"]

Series = tuple[tuple[float, float], ...]
"""Pairs of Unix time in seconds and value, in order of time."""

METRICS = ("CPUUtilization", "MemoryUtilization", "GPUUtilization", "GPUMemoryUtilization", "DiskUtilization")
"""CloudWatch's instance metrics of training jobs. Those of CPU and GPU are sums over cores and GPUs: 400 % for 4 cores."""

_NAMES = {name.lower(): name for name in METRICS}
_WORD = re.compile(r"[a-z]+")
_HOST = re.compile(r"(?<![a-z0-9])algo-[0-9]+(?![0-9])")
_NUMBERED = re.compile(r"[0-9]{1,5}")
GET_NEXT = "DataLoaderIter::GetNext"
"""The Debugger's name for the time in which a PyTorch script waits for its next batch."""

LAST_S = 253_402_300_799.0
"""The end of the year 9999: later times cannot be written as dates."""

LONG_GAP = 10.0
"""Leave out times between two batches that exceed the median by this factor: validation, checkpoints, another epoch."""


@dataclass(frozen=True, slots=True)
class InputWait:
    """How long the script waited for batches, from the Debugger's framework metrics. `share`: of the time of its steps."""

    share: float
    batches: int


@dataclass(frozen=True, slots=True)
class JobDocuments:
    """What is known of a job.

    description: DescribeTrainingJob. metrics: by host and name, in CloudWatch's units. cores, gpus, gpu_memory, io_wait: the
    Debugger's, 0 to 1, by host and number of the core or GPU. problems: sentences about files that could not be used.
    """

    description: Mapping[str, Any]
    metrics: Mapping[str, Mapping[str, Series]] = field(default_factory=dict)
    cores: Mapping[str, Mapping[int, Series]] = field(default_factory=dict)
    gpus: Mapping[str, Mapping[int, Series]] = field(default_factory=dict)
    gpu_memory: Mapping[str, Mapping[int, Series]] = field(default_factory=dict)
    io_wait: Mapping[str, Series] = field(default_factory=dict)
    input_wait: InputWait | None = None
    problems: tuple[str, ...] = ()


def read_documents(folder: Path) -> JobDocuments:
    """Read the documents of a folder. Raises `SourceError` without a usable description; other unusable files are listed."""
    path = folder / "describe.json"
    try:
        description = _document(read_regular(path))
    except (OSError, ValueError) as reason:
        words = (reason.strerror or str(reason)) if isinstance(reason, OSError) else f"it is no JSON that can be used: {reason}"
        raise SourceError(f"cannot read {path}: {words}", hint=_HOW.format(path=path)) from None
    if not isinstance(description, dict) or "TrainingJobStatus" not in description:
        raise SourceError(f"{path} is not an answer of DescribeTrainingJob", hint=_HOW.format(path=path))
    problems: list[str] = []
    metrics = _read_metrics(folder / "metrics.json", problems)
    system = _System(problems)
    for file in _debugger_files(folder, "system/**/*.json", problems):
        system.read(file)
    return JobDocuments(
        description,
        metrics,
        system.shares("CPUUtilization"),
        system.shares("GPUUtilization"),
        system.shares("GPUMemoryUtilization"),
        system.io_wait(),
        _read_input_wait(_debugger_files(folder, "framework/**/*pythontimeline.json", problems), problems),
        tuple(problems),
    )


_HOW = "aws sagemaker describe-training-job --training-job-name NAME > {path}"


def _debugger_files(folder: Path, pattern: str, problems: list[str]) -> list[Path]:
    """Return the Debugger's files by host and time; if their sizes together exceed the limit, every n-th. Links may repeat."""
    sizes: dict[Path, int] = {}
    for file in sorted((folder / "profiler-output").glob(pattern), key=lambda file: host_and_name(file.as_posix())):
        sizes[file] = 0
        with contextlib.suppress(OSError):  # what cannot be read is listed when it is read
            sizes[file] = file.stat().st_size
    every, limit, found = 1, record_limit(), list(sizes)
    while sum(sizes[file] for file in found) > limit:
        every *= 2
        found = list(sizes)[::every] if every <= len(sizes) else []
    if every > 1:
        words = f"every {every}th is read" if found else "none is read"
        problems.append(f"files of the Debugger have more than the limit together ({RECORD_LIMIT}=SIZE): {words}")
    return found


def host_and_name(path: str) -> tuple[str, str]:
    """Return a key that sorts files of the Debugger, such as `1.algo-2.json`, by host and then by time."""
    *_, host = ["", *_HOST.findall(path.rpartition("/")[2])]
    return host, path


def _document(data: bytes) -> Any:
    """Return a JSON document, parsed. Raises `ValueError` for other data, and for numbers that a session cannot hold."""
    return converter(Any)(parse_json(data))


def _text(path: Path) -> str:
    """Return the text of a file of JSON. Raises `OSError`, and `ValueError` for more values than the limit."""
    data = read_regular(path)
    check_values(data)
    return data.decode("utf-8", errors="replace")


def moment_s(value: Any) -> float:
    """Return the Unix time of a moment as AWS gives one: a number, a text, or a datetime.

    Raises `ValueError` if it is no time, or one before 1970 or after `LAST_S`.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        found_s = float(value)
    elif value is None or isinstance(value, bool):
        raise ValueError(f"{value} is no time")
    else:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).replace("Z", "+00:00"))
        found_s = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    if not 0 <= found_s <= LAST_S:
        raise ValueError(f"{value} is no time")
    return found_s


def host_names(description: Mapping[str, Any]) -> list[str]:
    """Return the names of a job's hosts: algo-1 and on, as SageMaker numbers them over all instance groups.

    Raises `ValueError` for more instances than a job can have, or none.
    """
    resources = description.get("ResourceConfig") or {}
    groups = resources.get("InstanceGroups") or [resources]
    counts = [int(group.get("InstanceCount") or 1) for group in groups]
    wrong = next((count for count in (*counts, sum(counts)) if not 0 < count <= MOST_INSTANCES), None)
    if wrong is not None:
        raise ValueError(f"{wrong:,} instances")
    return [f"algo-{number + 1}" for number in range(sum(counts))]


def _read_metrics(path: Path, problems: list[str]) -> dict[str, dict[str, Series]]:
    """Return the series of an answer of GetMetricData. A result is named by its label: `algo-1 CPUUtilization`."""
    if not path.exists():
        return {}
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    labels: dict[tuple[str, str], str] = {}
    try:
        document = _document(read_regular(path))
        for page in document if isinstance(document, list) else [document]:
            for result in page["MetricDataResults"]:
                label = f"{result.get('Label') or ''} {result.get('Id') or ''}"
                name = next((_NAMES[word] for word in _WORD.findall(label.lower()) if word in _NAMES), None)
                if name is None:
                    problems.append(f"metrics.json: a result with the label {result.get('Label')!r} names no instance metric")
                    continue
                *_, host = [
                    "algo-1",
                    *_HOST.findall(label.lower()),
                ]  # the job's name, which comes first, may look like a host's
                if labels.setdefault((host, name), label) != label:
                    problems.append(
                        f"metrics.json: {result.get('Label')!r} is a second curve of {name} of {host}: it is left out"
                    )
                    continue
                pairs = zip(result["Timestamps"], result["Values"], strict=True)
                points = [(moment_s(time), float(value)) for time, value in pairs]
                found.setdefault(host, {}).setdefault(name, []).extend(points)
    except (ArithmeticError, AttributeError, KeyError, OSError, TypeError, ValueError) as reason:
        problems.append(f"metrics.json is not an answer of GetMetricData ({type(reason).__name__}: {reason})")
        return {}
    return {host: {name: tuple(sorted(points)) for name, points in series.items()} for host, series in found.items()}


class _System:
    """The Debugger's system metrics: events of one value each."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems
        self._events: dict[tuple[str, str, str], list[tuple[float, float]]] = {}

    def read(self, path: Path) -> None:
        """Add the events of a file. A line that does not parse, such as the last of a killed host, is counted."""
        try:
            text = _text(path)
        except (OSError, ValueError) as reason:
            self._problems.append(f"{path.name}: {getattr(reason, 'strerror', None) or reason}")
            return
        bad = 0
        for line in filter(str.strip, text.splitlines()):
            try:
                event = json.loads(line)
                key = (str(event["NodeId"]), str(event["Dimension"]), str(event.get("Name") or ""))
                point = (float(event["Timestamp"]), float(event["Value"]))
            except (ArithmeticError, KeyError, RecursionError, TypeError, ValueError):
                bad += 1
                continue
            if 0 <= point[0] <= LAST_S and abs(point[1]) <= LARGEST:
                self._events.setdefault(key, []).append(point)
        if bad:
            self._problems.append(f"{path.name}: {bad} lines are no system metrics")

    def io_wait(self) -> dict[str, Series]:
        """Return the share of the time in which cores waited for a disk, mean over cores, by host."""
        found: dict[str, dict[float, list[float]]] = {}
        for (host, dimension, _), points in self._events.items():
            if dimension.replace("/", "").lower().startswith("iowait"):
                for time, value in points:
                    found.setdefault(host, {}).setdefault(time, []).append(value / 100)
        return {
            host: tuple((time, math.fsum(at) / len(at)) for time, at in sorted(all_.items())) for host, all_ in found.items()
        }

    def shares(self, dimension: str) -> dict[str, dict[int, Series]]:
        """Return the curves of a dimension, 0 to 1, by host and number of the core or GPU."""
        found: dict[str, dict[int, Series]] = {}
        for (host, name, device), points in self._events.items():
            number = _NUMBERED.search(device)
            if name == dimension and number is not None:
                found.setdefault(host, {})[int(number[0])] = tuple(sorted((time, value / 100) for time, value in points))
        return found


def _read_input_wait(files: Iterable[Path], problems: list[str]) -> InputWait | None:
    """Return how long the script waited for batches. Return None if no such events were recorded: only PyTorch has them."""
    waits_s, steps_s, batches = 0.0, 0.0, 0
    for path in files:
        try:
            events = _events_of(_text(path))
            found = sorted(
                (float(event["ts"]), max(0.0, float(event["dur"])))
                for event in events
                if isinstance(event, dict) and event.get("ph") == "X" and str(event.get("name", "")).endswith(GET_NEXT)
            )
        except (ArithmeticError, KeyError, OSError, RecursionError, TypeError, ValueError) as reason:
            problems.append(f"{path.name} is no timeline of the Debugger ({type(reason).__name__}: {reason})")
            continue
        gaps = [after[0] - before[0] for before, after in itertools.pairwise(found)]
        usual = sorted(gaps)[len(gaps) // 2] if gaps else 0.0
        for (_, wait_us), gap_us in zip(found, gaps, strict=False):
            if 0 < gap_us <= LONG_GAP * usual:
                waits_s += min(wait_us, gap_us) / 1e6
                steps_s += gap_us / 1e6
                batches += 1
    return InputWait(waits_s / steps_s, batches) if steps_s > 0 else None


def _events_of(text: str) -> list[Any]:
    """Return the events of a timeline. A host that was killed leaves the list open."""
    try:
        found = json.loads(text)
    except ValueError:
        found = json.loads(text.rstrip().rstrip(",") + "\n]")
    if not isinstance(found, list):
        raise ValueError("it holds no list of events")
    checked: list[Any] = converter(Any)(found)
    return checked
