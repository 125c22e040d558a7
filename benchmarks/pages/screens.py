"""Pictures of what `headrace launch sagemaker` and `launch follow` print, made from their real output.

The commands run as they are. Only AWS is played: it accepts the request, and answers with the statuses, times and log lines
of a job that `headrace launch local` ran with an interruption. `benchmarks/pages/spot_job.json` holds them; to record another:

    headrace launch local --name flowers-1 … --spot --interrupt 20 --out job
    python benchmarks/pages/screens.py job
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import time
import unicodedata
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any
from unittest import mock

COLUMNS = 108
"""Longer lines go on in the next one, as in a terminal of this width."""

LINE, WIDTH, MARGIN, TITLE = 18, 7.83, 16, 30
"""Height of a line, width of a character at 13 px, margin and title bar of the window, in pixels."""

ARN = "arn:aws:sagemaker:us-east-1:123456789012:training-job/flowers-1"
SEND = (
    "launch sagemaker --name flowers-1 --model resnet50 --data s3://my-bucket/flowers/train --epochs 90 "
    "--images 3670 --objects 2 --instance ml.g5.2xlarge --spot --max-hours 6 "
    "--role arn:aws:iam::123456789012:role/SageMakerTraining --bucket my-bucket"
)
RECORDED = Path(__file__).with_name("spot_job.json")
STATUSES = ("Starting", "Downloading", "Training", "Interrupted", "Uploading", "Completed")

SHOWN = 6
"""Lines of the log of each attempt: the first half of them and the last."""


class PlayedAWS:
    """SageMaker, its logs and S3: the recorded job, whose status moves on with each question."""

    def __init__(self) -> None:
        recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
        self.description, self.attempts = recorded["description"], recorded["attempts"]
        self.transitions = self.description["SecondaryStatusTransitions"]
        self.seen = self.shown = 0
        self.tags: list[dict[str, str]] = []

    def put_object(self, **_: Any) -> dict[str, Any]:
        return {}

    def create_training_job(self, **request: Any) -> dict[str, str]:
        self.tags = request["Tags"]
        return {"TrainingJobArn": ARN}

    def list_tags(self, **_: Any) -> dict[str, Any]:
        return {"Tags": self.tags}

    def describe_training_job(self, **_: Any) -> dict[str, Any]:
        self.seen = min(self.seen + 1, len(self.transitions))
        over = self.seen == len(self.transitions)
        now = {} if over else {"TrainingJobStatus": "InProgress", "SecondaryStatus": self.transitions[self.seen - 1]["Status"]}
        shown = self.transitions[: self.seen]
        return {**self.description, **now, "TrainingJobArn": ARN, "SecondaryStatusTransitions": shown}

    def describe_log_streams(self, **_: Any) -> dict[str, Any]:
        return {"logStreams": [{"logStreamName": "flowers-1/algo-1-1"}]}

    def get_log_events(self, **_: Any) -> dict[str, Any]:
        lines: list[str] = []
        if self.seen > self.shown and self.transitions[self.seen - 1]["Status"] == "Training":
            attempt = sum(one["Status"] == "Training" for one in self.transitions[: self.seen]) - 1
            lines = self.attempts[attempt]
        self.shown = self.seen
        return {"events": [{"message": line} for line in lines], "nextForwardToken": f"f/{self.seen}"}


@contextlib.contextmanager
def _played(aws: PlayedAWS) -> Iterator[None]:
    from headrace.cli.cloud import launch

    with tempfile.TemporaryDirectory() as prices, contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"HEADRACE_PRICES": prices, "NO_COLOR": "1"}))
        stack.enter_context(mock.patch.object(launch, "aws_client", lambda *_: aws))
        stack.enter_context(mock.patch.object(time, "sleep", lambda _: None))
        yield


class _Answering(io.StringIO):
    """A terminal at which somebody types y."""

    def isatty(self) -> bool:
        return True


def _printed(words: str, aws: PlayedAWS) -> list[str]:
    """Return what a command shows on a terminal: stderr and stdout together."""
    from headrace.cli.main import main

    screen = io.StringIO()
    answering = mock.patch.object(sys, "stdin", _Answering("y\n"))
    with _played(aws), contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen), answering:
        main(words.split())
    return screen.getvalue().replace("[y/N] ", "[y/N] y\n").splitlines()


def _wrapped(line: str) -> list[str]:
    return [line[at : at + COLUMNS] for at in range(0, max(1, len(line)), COLUMNS)]


def _kind(line: str) -> str:
    if line.startswith("$ "):
        return "cmd"
    status = line.partition(":")[0]
    if status in STATUSES:
        return "warn" if status == "Interrupted" else "status"
    return "log" if line.startswith("  ") else "out"


def picture(title: str, lines: list[str]) -> str:
    """Return an SVG of a terminal with these lines."""
    rows = [(part, _kind(line)) for line in lines for part in _wrapped(line)]
    width, height = round(2 * MARGIN + COLUMNS * WIDTH), TITLE + 2 * MARGIN + LINE * len(rows)
    texts = []
    for number, (text, kind) in enumerate(rows):
        assert all(unicodedata.east_asian_width(one) not in "WF" for one in text)
        y = TITLE + MARGIN + LINE * number + 13
        length = f' textLength="{len(text) * WIDTH:.1f}" lengthAdjust="spacingAndGlyphs"' if text.strip() else ""
        texts.append(f'<text class="s-{kind}" x="{MARGIN}" y="{y}" xml:space="preserve"{length}>{escape(text)}</text>')
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">
<title>{escape(title)}</title>
<style>
text{{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;font-size:13px;white-space:pre}}
.s-cmd{{fill:#f2f2f5;font-weight:600}}.s-out{{fill:#d6d8e0}}.s-log{{fill:#8f96a8}}.s-status{{fill:#4db6ac}}.s-warn{{fill:#f0a83c}}
.s-name{{fill:#8f96a8}}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#1d1f27"/>
<text class="s-name" x="{width / 2:g}" y="20" text-anchor="middle">{escape(title)}</text>
{chr(10).join(texts)}
</svg>
"""


def record(folder: Path) -> None:
    """Keep what a job of `headrace launch local` in `folder` left: its description, and lines of its log by attempt."""
    found = json.loads((folder / "description.json").read_text(encoding="utf-8"))
    names = ("TrainingJobName", "TrainingJobStatus", "SecondaryStatus", "SecondaryStatusTransitions", "TrainingTimeInSeconds",
             "BillableTimeInSeconds", "ResourceConfig", "EnableManagedSpotTraining", "ModelArtifacts")  # fmt: skip
    attempts: list[list[str]] = []
    for line in (folder / "logs" / "algo-1.log").read_text(encoding="utf-8").splitlines():
        if line.startswith("options:"):
            attempts.append([])
        if "report.html" in line:  # the verdict on the recording machine is no part of the picture
            continue
        attempts[-1].append(line.replace(str((folder / "hosts" / "algo-1").absolute()), "/opt/ml"))
    short = [lines if len(lines) <= SHOWN else [*lines[: SHOWN // 2], *lines[-SHOWN // 2 :]] for lines in attempts]
    kept = {"description": {name: found[name] for name in names if name in found}, "attempts": short}
    RECORDED.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def render() -> dict[str, str]:
    """Return the pictures by file name."""
    sent = _printed(f"{SEND} --no-follow", PlayedAWS())
    followed = _printed("launch follow flowers-1", PlayedAWS())
    return {
        "launch-sagemaker.svg": picture("A spot job is checked, priced and sent", [f"$ headrace {SEND} --no-follow", *sent]),
        "launch-follow.svg": picture("A spot job is followed to its end", ["$ headrace launch follow flowers-1", *followed]),
    }


if __name__ == "__main__":
    record(Path(sys.argv[1]))
