"""Commands with the own script, options and paths of a job that already ran, from AWS's description of the job."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from headrace.diagnosis.fixes.images import READ_SHARDS, places_words
from headrace.diagnosis.result.model import Fix
from headrace.system.text.redaction import redact_words, without_url_secrets

__all__ = ["pack_fix", "run_fix", "shrink_fix", "training_words"]

TAKES_OVER = "if headrace run takes its loader over, which it says when the script starts (`--explain`)"


def training_words(description: Mapping[str, Any]) -> list[str]:
    """Return the command line of the training, without secrets. `python train.py` where the description names no script."""
    values = {str(name): str(value).strip('"') for name, value in (description.get("HyperParameters") or {}).items()}
    script = (description.get("Environment") or {}).get("HEADRACE_SCRIPT") or values.get("sagemaker_program")
    if script:
        words = ["python", str(script)]
    elif _is_headrace_train(description):
        words = ["headrace", "train", "--data", _train_uri(description) or "DATA"]
    else:
        words = ["python", "train.py"]
        values = {}
    for name, value in sorted(values.items()):
        if not name.startswith("sagemaker_"):
            words += [f"--{name}", value]
    return redact_words(words)


def run_fix(description: Mapping[str, Any]) -> tuple[Fix, ...]:
    """Propose `headrace run` for the job's script. Nothing for `headrace train`, which has headrace's input already."""
    words = training_words(description)
    if words[0] == "headrace":
        return ()
    return (
        Fix(
            "headrace_run",
            f"the same script with headrace's image input, {TAKES_OVER}",
            command=shlex.join(["headrace", "run", "--", *words]),
            effort="no edit",
        ),
    )


def shrink_fix(description: Mapping[str, Any]) -> Fix:
    """Propose to shrink the job's images once."""
    source, copy = _places(description, "-256")
    change = "images shrunk to a short side of 256 once" + _read_words(description) + places_words(source)
    return Fix(
        "pre_resize", change, command=shlex.join(["headrace", "pack", "--short-side", "256", source, copy]), effort="once"
    )


def pack_fix(description: Mapping[str, Any], why: str) -> Fix:
    """Propose to pack the job's images into shards. why: what that saves, after the first words."""
    source, packed = _places(description, "-packed")
    change = "pack the images into shards" + why + _read_words(description) + places_words(source)
    return Fix("pack", change, command=shlex.join(["headrace", "pack", source, packed]), effort="once")


def _read_words(description: Mapping[str, Any]) -> str:
    """How the training reads the shards: `headrace train` does so as it is."""
    return "" if training_words(description)[0] == "headrace" else READ_SHARDS


def _is_headrace_train(description: Mapping[str, Any]) -> bool:
    entry = " ".join((description.get("AlgorithmSpecification") or {}).get("ContainerEntrypoint") or [])
    return "headrace.launch.entry" in entry


def _places(description: Mapping[str, Any], ending: str) -> tuple[str, str]:
    """Return the prefix that the job reads and the name of a new one beside it; `SRC` and `DST` where it is not known."""
    source = _train_uri(description)
    return (source, source + ending) if source else ("SRC", "DST")


def _train_uri(description: Mapping[str, Any]) -> str | None:
    """Return the prefix of the training channel, without a slash at its end."""
    channels = [one for one in description.get("InputDataConfig") or [] if isinstance(one, dict)]
    first = next((one for one in channels if one.get("ChannelName") in ("train", "training")), channels[0] if channels else {})
    uri = ((first.get("DataSource") or {}).get("S3DataSource") or {}).get("S3Uri")
    return without_url_secrets(str(uri)).rstrip("/") if uri else None
