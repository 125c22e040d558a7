"""What DescribeTrainingJob says of a job beside its times: framework, seconds an epoch, hyperparameters, what it saved."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.system.text.redaction import redact_text, without_url_secrets

__all__ = ["epoch_seconds", "framework_of", "hyperparameters", "saved_places"]

_WORD = re.compile(r"[a-z]+")
_UNITS_S = {"ms": 1e-3, "msec": 1e-3, "milliseconds": 1e-3, "minutes": 60.0, "min": 60.0, "mins": 60.0, "hours": 3600.0}
_TIMES = frozenset(("s", "sec", "secs", "second", "seconds", "time", "times", "duration", "elapsed", *_UNITS_S))
_EPOCHS = frozenset(("epoch", "epochs"))
_VALIDATION = frozenset(("val", "valid", "validation", "eval", "test"))
_NO_EPOCH = frozenset(("step", "batch", "image", "img", "remaining", "eta"))
_ESCAPE = re.compile(r"\\.|\[[^\]]*\]|\(\?<?[:=!]")
_BEFORE = re.compile(r"([a-z_]+(?: [a-z_]+)*)[^a-z_]*$", re.IGNORECASE)

LONGEST_PATTERN = 500
"""Characters of a pattern that AWS takes. A description may come from anybody."""

_IMAGES = {
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "mxnet": "mxnet",
    "gluoncv": "mxnet",
    "pytorch": "pytorch",
    "torch": "pytorch",
}
"""Frameworks by words of an image's path."""

_BUILT_IN = ("image-classification", "object-detection", "semantic-segmentation")
"""SageMaker's own algorithms for images, which are MXNet programs."""

_OFF = frozenset(("", "0", "false", "no", "none", "off"))


def framework_of(description: Mapping[str, Any]) -> str | None:
    """Return "dali", "tensorflow", "mxnet" or "pytorch", None where the description does not tell.

    DALI is the input of jobs of any framework: an image, a script or a hyperparameter names it.
    """
    algorithm = description.get("AlgorithmSpecification") or {}
    path = str(algorithm.get("TrainingImage") or "").lower().partition("@")[0].partition("/")[2]
    if "dali" in _WORD.findall(path) or any(_names_dali(name, value) for name, value in _settings(description)):
        return "dali"
    repository = path.rpartition("/")[2].partition(":")[0]
    if repository in _BUILT_IN:
        return "mxnet"
    found = {_IMAGES[word] for word in _WORD.findall(path.partition(":")[0]) if word in _IMAGES}
    return found.pop() if len(found) == 1 else None


def _settings(description: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for part in ("HyperParameters", "Environment"):
        for name, value in (description.get(part) or {}).items():
            yield str(name).lower(), str(value).strip('"').lower()


def _names_dali(name: str, value: str) -> bool:
    return "dali" in _WORD.findall(value) or ("dali" in _WORD.findall(name) and value not in _OFF)


def epoch_seconds(description: Mapping[str, Any]) -> tuple[float | None, str | None]:
    """Return the seconds of an epoch and the name of the metric that tells them, from the job's own MetricDefinitions.

    A metric counts if its name speaks of an epoch and of time, or if what stands before the group of its pattern speaks of
    time, and that or the name of an epoch. AWS keeps the last value of each (FinalMetricDataList).
    """
    algorithm = description.get("AlgorithmSpecification") or {}
    patterns = {
        str(one.get("Name")): str(one.get("Regex") or "")
        for one in algorithm.get("MetricDefinitions") or []
        if isinstance(one, dict)
    }
    found: list[tuple[int, str, float]] = []
    for one in description.get("FinalMetricDataList") or []:
        if not isinstance(one, dict):
            continue
        name, value = str(one.get("MetricName")), one.get("Value")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            continue
        named, read = _words(name), _words(_measured(patterns.get(name, "")))
        for place, (times, words) in enumerate(((named, named), (read, named | read))):
            if words & _EPOCHS and times & _TIMES and not words & _NO_EPOCH:
                unit = next((_UNITS_S[word] for word in sorted(words) if word in _UNITS_S), 1.0)
                found.append((2 * bool(words & _VALIDATION) + place, name, value * unit))
                break
    least = min(found, default=None)
    return (None, None) if least is None else (least[2], least[1])


def _measured(pattern: str) -> str:
    r"""Return the words that stand before the first group of a pattern: "took" for `epoch \d+ took (.*) s`."""
    plain = _ESCAPE.sub("#", re.sub(r"\\s[*+]?", " ", pattern[:LONGEST_PATTERN]))  # `\s` and `[a-z]` are no words
    found = _BEFORE.search(plain.partition("(")[0])
    return found[1] if found else ""


def _words(text: str) -> set[str]:
    """Return the words of a name such as `train:epochTime_s`, in lower case."""
    return set(_WORD.findall(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()))


def hyperparameters(description: Mapping[str, Any]) -> dict[str, str]:
    """Return the hyperparameters of the script, without those of SageMaker and without secrets."""
    return {
        str(name): redact_text(f"{name}={value}").partition("=")[2].strip('"')
        for name, value in (description.get("HyperParameters") or {}).items()
        if not str(name).startswith("sagemaker_")
    }


def saved_places(description: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return where the checkpoints and the model of a job lie; None for none."""
    places = (
        (description.get("CheckpointConfig") or {}).get("S3Uri"),
        (description.get("ModelArtifacts") or {}).get("S3ModelArtifacts"),
    )
    checkpoints, model = (without_url_secrets(str(place)) if place else None for place in places)
    return checkpoints, model
