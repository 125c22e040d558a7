"""Metric definitions whose patterns match the log lines of `headrace train`.

SageMaker reads the log of a job and keeps what the one group of each pattern matches, as a curve in CloudWatch.
"""

from __future__ import annotations

__all__ = ["METRICS", "metric_definitions"]

METRICS = {
    "train:loss": r"step \d+/\d+ .*?\bloss ([0-9.]+(?:e[+-]?[0-9]+)?)",
    "train:images_per_second": r", ([0-9.,]+) img/s \(steps alone\)",
    "train:wait_percent": r"\bwait <?([0-9.]+) %",
    "validation:top1_percent": r"\btop-1 ([0-9.]+) %",
}
"""Name and pattern of each metric: the line is `resnet50 epoch 1 step 21/25 loss 1.376 wait <1 %: 336/400 img, 3.8 img/s …`."""


def metric_definitions() -> list[dict[str, str]]:
    """Return `METRICS` in the form of a request's `AlgorithmSpecification.MetricDefinitions`."""
    return [{"Name": name, "Regex": pattern} for name, pattern in METRICS.items()]
