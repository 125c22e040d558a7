"""Jobs whose loader no hook knows: the rules of a finished job on the sampler's curves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.model import Diagnosis
from headrace.diagnosis.rules.curves import watched_use
from headrace.report.pages import html
from headrace.report.text import terminal
from headrace.session.machine import GpuSample, Sample
from headrace.session.model import Process, Session
from session_factory import make_session


def watched(
    gpu: float | None,
    own_cores: float,
    *,
    seconds: float = 60.0,
    torch: str | None = None,
    exit_code: int | None = 0,
    **values: Any,
) -> Diagnosis:
    """Diagnose a job that no hook timed: 20 s of start, then so much use of the machine. gpu: None without a GPU."""
    made = make_session(cores=8, gpu_busy=gpu)
    samples = [Sample(0.5 * n, 0.5, own_cores=1.0, gpus=() if gpu is None else (GpuSample(0, busy=0.0),)) for n in range(40)]
    for n in range(int(2 * seconds)):
        gpus = () if gpu is None else (GpuSample(0, busy=min(1.0, 2 * gpu) if n % 2 else max(0.0, 2 * gpu - 1)),)
        samples.append(Sample(20 + 0.5 * n, 0.5, own_cores=own_cores, gpus=gpus, **values))
    processes = (Process(1, 0, "main", 0.0, torch=torch),) if torch else ()
    kept = Session(
        command=("train",), host=made.host, samples=tuple(samples), processes=processes, exit_code=exit_code, duration_s=90.0
    )
    return diagnose(kept)


@pytest.mark.parametrize(
    ("kind", "confidence", "use"),
    [
        ("COMPUTE_BOUND", 0.65, {"gpu": 0.93, "own_cores": 1.2}),
        ("CPU_SATURATED", 0.65, {"gpu": 0.4, "own_cores": 7.5}),
        ("CPU_PREP", 0.55, {"gpu": 0.4, "own_cores": 3.4}),
        ("CPU_PREP", 0.4, {"gpu": 0.4, "own_cores": 1.6}),
        ("STORAGE_LATENCY", 0.5, {"gpu": 0.3, "own_cores": 0.4, "pressure_io": 0.6}),
        ("NETWORK", 0.4, {"gpu": 0.3, "own_cores": 0.4, "network_receive_bytes_s": 40e6}),
        ("STORAGE_LATENCY", 0.35, {"gpu": 0.3, "own_cores": 0.4}),
        ("CPU_PREP", 0.45, {"gpu": 0.4, "own_cores": 3.4, "foreign_cores": 3.0}),
        ("STORAGE_LATENCY", 0.5, {"gpu": None, "own_cores": 0.3, "pressure_io": 0.6}),
        ("EXTERNAL_CPU", 0.5, {"gpu": None, "own_cores": 0.9, "foreign_cores": 6.5, "queue_share": 0.8}),
    ],
)
def test_use_of_the_machine_gives_a_verdict_with_its_confidence(kind: str, confidence: float, use: dict[str, float]) -> None:
    found = watched(**use)  # type: ignore[arg-type]
    assert (found.verdict, found.confidence) == (kind, confidence)
    assert found.not_measured[0].startswith("steps:") and found.share_of_step == {}
    evidence = " ".join(found.findings[0].evidence)
    assert "the CPU was busy" in evidence and ("the GPU was busy" in evidence) == (use["gpu"] is not None)
    screen = terminal.render(found, width=80).plain
    assert "no step was timed" not in screen and kind in screen
    assert kind in html.render(found)


@pytest.mark.parametrize(
    ("why", "use"),
    [
        ("curves do not tell the model's work", {"gpu": None, "own_cores": 7.0}),
        ("curves do not tell the model's work", {"gpu": 0.0, "own_cores": 1.0}),
        ("no DataLoader was iterated", {"gpu": None, "own_cores": 0.3, "pressure_io": 0.6, "torch": "2.9"}),
    ],
)
def test_what_curves_cannot_tell_stays_without_a_verdict(why: str, use: dict[str, float]) -> None:
    found = watched(**use)  # type: ignore[arg-type]
    assert found.verdict == "INSUFFICIENT_DATA"
    assert why in " ".join(found.findings[0].evidence)


def test_short_and_failed_jobs_have_no_verdict_by_curves() -> None:
    assert watched(0.4, 3.4, seconds=20).verdict == "INSUFFICIENT_DATA"
    assert watched(0.4, 3.4, exit_code=1).verdict == "INSUFFICIENT_DATA"
    assert watched(0.4, 3.4, exit_code=None).verdict == "CPU_PREP", "a command that still runs"


def test_timed_steps_come_before_curves() -> None:
    made = make_session(workers=2, cpu_s=0.09, compute_s=0.01, cores=3, gpu_busy=0.2)
    assert diagnose(made).steps > 0
    untimed = replace(made, steps=(), batches=())
    assert diagnose(untimed).verdict == "INSUFFICIENT_DATA", "a loader that gave no step is no unknown one"


def test_gpus_of_other_users_do_not_count() -> None:
    gpus = (GpuSample(0, busy=0.4), GpuSample(1, busy=1.0))
    samples = tuple(Sample(0.5 * number, 0.5, own_cores=1.0, gpus=gpus) for number in range(100))
    process = Process(1, 0, "main", 0.0, environment={"CUDA_VISIBLE_DEVICES": "0"})
    use = watched_use(Session(command=("train",), samples=samples, processes=(process,)))
    assert use is not None and use.gpu == pytest.approx(0.4)
