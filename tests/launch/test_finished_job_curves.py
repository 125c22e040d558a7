"""Curves of finished jobs: bursts are work, long idle phases are phases, and a standstill at the end is a suspected hang."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import cache

import pytest
from headrace.cost.market.prices import PriceTable
from headrace.launch.finished_job.diagnose import JobDiagnosis, diagnose_job
from headrace.launch.finished_job.documents import JobDocuments
from job_curves import BEGIN_S, Curve, Machine, bursts, job_with_curves, noisy, phases, without_points

FULL: Curve = lambda time: 0.97  # noqa: E731
IDLE: Curve = lambda time: 0.0  # noqa: E731
LOW: Curve = lambda time: 0.05  # noqa: E731

RESOLUTIONS = ((0.5, False), (1.0, False), (60.0, True), (60.0, False))
"""Seconds between points, and whether they are means: the Debugger's, a curve of seconds, CloudWatch's."""


@cache
def prices() -> PriceTable:
    return PriceTable.load()


def found_in(documents: JobDocuments) -> JobDiagnosis:
    return diagnose_job(documents, prices())


def curve(
    training_s: float, gpu: Curve, cpu: Curve, resolution: tuple[float, bool] = (60.0, True), **more: object
) -> JobDiagnosis:
    return found_in(job_with_curves(training_s, gpu, noisy(cpu, 0.01, 3), interval_s=resolution[0], mean=resolution[1], **more))  # type: ignore[arg-type]


def kinds(found: JobDiagnosis) -> list[str]:
    return [one.kind for one in found.diagnosis.findings]


def lengths(resolution: tuple[float, bool]) -> float:
    return 900.0 if resolution[0] < 60 else 3600.0


@pytest.mark.parametrize("resolution", RESOLUTIONS)
@pytest.mark.parametrize(("busy_s", "period_s"), [(1, 3), (1, 4), (0.5, 2), (2, 7.3), (0.5, 20)])
def test_bursts_are_work_at_every_resolution(busy_s: float, period_s: float, resolution: tuple[float, bool]) -> None:
    found = curve(lengths(resolution), bursts(busy_s, period_s), FULL, resolution)
    if resolution == (60.0, False) and found.diagnosis.verdict == "INSUFFICIENT_DATA":
        return  # one moment of each minute, which may miss every burst
    assert found.diagnosis.verdict in ("CPU_SATURATED", "COMPUTE_BOUND"), kinds(found)  # moments in step with bursts look full
    assert "STARTUP" not in kinds(found) and "PERIODIC_STALL" not in kinds(found)
    assert found.account.idle_s["start"] <= 60


def test_bursts_of_minutes_are_work() -> None:
    for busy_s, period_s in ((60, 180), (60, 240), (30, 120)):
        found = curve(7200, bursts(busy_s, period_s), FULL)
        assert found.diagnosis.verdict == "CPU_SATURATED", kinds(found)
        assert found.account.idle_s["start"] <= 60


@pytest.mark.parametrize("resolution", [(2.0, False), (60.0, True)])
def test_a_start_before_bursts_is_a_start_with_and_without_a_test_of_the_gpu(resolution: tuple[float, bool]) -> None:
    work = bursts(1, 3, start_s=1500)
    for gpu in (work, lambda time: 0.6 if 100 <= time < 105 else work(time)):
        found = curve(3600, gpu, LOW, resolution)
        assert "STARTUP" in kinds(found)
        assert 1380 <= found.account.idle_s["start"] <= 1560


def test_a_slow_first_epoch_is_no_start() -> None:
    """An epoch from a cold store: the GPU is hardly busy, but works."""
    found = curve(6000, phases(noisy(lambda time: 0.07, 0.02), noisy(lambda time: 0.95, 0.03), 2400, 3600), LOW)
    assert "STARTUP" not in kinds(found) and found.account.idle_s["start"] <= 60


def test_a_gpu_that_works_rarely_is_used_and_one_that_was_only_tried_is_hardly_used() -> None:
    rare = curve(1200, bursts(1, 40), FULL, (1.0, False))
    assert rare.diagnosis.verdict == "CPU_SATURATED"  # its 95th percentile is 0 %
    tried = curve(1200, lambda time: 0.9 if 20 <= time < 24 else 0.0, FULL, (1.0, False))
    assert tried.diagnosis.verdict == "INSUFFICIENT_DATA"
    assert "the GPU hardly worked" in tried.diagnosis.summary and "never" not in tried.diagnosis.summary
    assert "the GPU was never used" in curve(1200, IDLE, FULL).diagnosis.summary


@pytest.mark.parametrize("resolution", [(5.0, False), (60.0, True)])
def test_validation_on_the_cpu_is_a_phase_and_training_is_judged_without_it(resolution: tuple[float, bool]) -> None:
    gpu = noisy(phases(lambda time: 0.95, IDLE, 3600, 1800), 0.04)
    found = curve(10_800, lambda time: gpu(time) if time % 5400 < 3600 else 0.0, phases(LOW, FULL, 3600, 1800), resolution)
    assert found.diagnosis.verdict == "PERIODIC_STALL"
    first = found.diagnosis.findings[0]
    assert first.share == pytest.approx(1 / 3, abs=0.03)
    assert "2 phases of 30 min" in first.evidence[0] or "2 phases of 29 min" in first.evidence[0], first.evidence
    assert "cores worked meanwhile" in first.evidence[1] and "validation" in first.evidence[1]
    assert "COMPUTE_BOUND" in kinds(found)
    assert found.account.idle_s["training"] < 0.15 * found.account.idle_s["pauses"]
    rules = {one.rule: one.fires for one in found.account.rules}
    assert rules["gpu_low_cpu_high"] is False and rules["all_low"] is False


def test_bursts_that_sparse_points_miss_make_no_phase() -> None:
    """Bursts of seven seconds about every 45, of which points of five seconds miss some for minutes."""
    missed = bursts(7, 45)
    found = curve(1800, lambda time: 0.0 if time % 600 > 440 else missed(time), LOW, (5.0, False))
    assert kinds(found) == ["STORAGE_LATENCY"]


def test_short_phases_of_a_slow_job_do_not_become_the_headline() -> None:
    gpu = phases(bursts(1, 4), IDLE, 3400, 200)
    found = curve(14_400, gpu, FULL)
    assert found.diagnosis.verdict == "CPU_SATURATED" and "PERIODIC_STALL" not in kinds(found)
    assert any("stood idle in 4 phases" in note.text for note in found.diagnosis.notes)


# What was not seen


@pytest.mark.parametrize("hole", [(3000, 4800), (120, 1800), (5400, 7200)])
def test_minutes_without_points_are_no_idle_phase_and_no_start(hole: tuple[float, float]) -> None:
    found = found_in(without_points(job_with_curves(7200, FULL, LOW, interval_s=60.0, mean=False), *hole))
    assert found.diagnosis.verdict == "COMPUTE_BOUND" and kinds(found) == ["COMPUTE_BOUND"]
    assert "pauses" not in found.account.idle_s and found.account.idle_s["start"] == 0


def test_a_file_of_each_fourth_minute_shows_phases_and_makes_none() -> None:
    """The Debugger's files, one a minute, of which every fourth was read."""
    for rest in (FULL, IDLE):
        documents = job_with_curves(14_400, phases(FULL, rest, 3600, 1800), LOW, interval_s=2.0, mean=False)
        for minute in range(0, 240, 4):
            documents = without_points(documents, 60 * minute + 60, 60 * minute + 240)
        found = found_in(documents)
        assert ("PERIODIC_STALL" in kinds(found)) == (rest is IDLE)
        assert found.account.idle_s.get("pauses", 0.0) == pytest.approx(3600 if rest is IDLE else 0, abs=500)


def test_a_hole_behind_a_few_idle_points_is_no_idle_phase() -> None:
    gpu = until(FULL, 10_800, IDLE)
    documents = without_points(job_with_curves(14_400, gpu, LOW, interval_s=60.0, mean=False), 11_100, 14_400)
    assert kinds(found_in(documents)) == ["COMPUTE_BOUND"]


# Standstills


def until(curve: Curve, end_s: float, then: Curve) -> Curve:
    return lambda time: (curve if time < end_s else then)(time)


WORK = noisy(lambda time: 0.8, 0.1)
CORES = noisy(lambda time: 0.5, 0.1, 5)


RANKS: Machine = ("ml.g5.12xlarge", 48, 4)


@pytest.mark.parametrize("status", ["MaxRuntimeExceeded", "Stopped", "Failed", "InProgress"])
@pytest.mark.parametrize(("gpu", "cpu"), [(IDLE, noisy(lambda time: 0.004, 0.003)), (lambda time: 1.0, lambda time: 0.25)])
def test_work_that_ends_long_before_the_job_is_a_suspected_hang(gpu: Curve, cpu: Curve, status: str) -> None:
    documents = job_with_curves(
        14_400, until(WORK, 7200, gpu), until(CORES, 7200, cpu), interval_s=60.0, mean=False, machine=RANKS, status=status
    )
    found = found_in(documents)
    assert found.diagnosis.verdict == "HANG" and "suspected" in found.diagnosis.summary
    assert 0.3 <= found.diagnosis.confidence <= 0.7
    assert found.diagnosis.findings[0].share == pytest.approx(0.5, abs=0.02)
    assert found.account.idle_s["standstill"] == pytest.approx(7200, abs=180)
    text = " ".join(found.diagnosis.findings[0].evidence)
    assert ("MaxRuntimeInSeconds" in text) == (status == "MaxRuntimeExceeded")
    assert ("to the digit" in text) == (gpu is not IDLE)


def test_a_machine_without_a_gpu_hangs_too() -> None:
    cpu = until(CORES, 3600, noisy(lambda time: 0.01, 0.005))
    resources = {"InstanceType": "ml.m5.xlarge", "InstanceCount": 1}
    for end, kind in (("Completed", "INSUFFICIENT_DATA"), ("MaxRuntimeExceeded", "HANG")):
        drawn = job_with_curves(7200, IDLE, cpu, interval_s=60.0, mean=False, status=end, ResourceConfig=resources)
        metrics = {host: {name: one for name, one in all_.items() if "GPU" not in name} for host, all_ in drawn.metrics.items()}
        found = found_in(JobDocuments(drawn.description, metrics))
        assert found.diagnosis.verdict == kind
    assert "nothing had worked" not in " ".join(found.diagnosis.findings[0].evidence)


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_a_job_whose_first_batch_never_comes_is_a_suspected_hang(level: float) -> None:
    documents = job_with_curves(
        7200, lambda time: level, lambda time: 0.005 + 0.08 * level, interval_s=60.0, mean=False, machine=RANKS,
        status="MaxRuntimeExceeded",
    )  # fmt: skip
    assert found_in(documents).diagnosis.verdict == "HANG"


def healthy() -> Iterable[tuple[str, Curve, Curve]]:
    yield "flat", noisy(lambda time: 0.999, 0.0005), noisy(lambda time: 0.3, 0.02)
    yield "at 100 %", lambda time: 1.0, noisy(lambda time: 0.3, 0.03)
    yield "even at 100 %", until(WORK, 180, lambda time: 1.0), until(CORES, 180, noisy(lambda time: 0.2525, 0.0025))
    yield "validates without the GPU", until(WORK, 7200, lambda time: WORK(time) if time > 9000 else 0.0), CORES
    yield "idles as long as before", phases(WORK, IDLE, 3600, 1200), phases(CORES, lambda time: 0.01, 3600, 1200)
    yield "ends with the CPU at work", until(WORK, 10_800, IDLE), CORES
    yield "slow store", noisy(bursts(1, 25), 0.0), noisy(lambda time: 0.03, 0.01)
    yield "bursts", bursts(60, 240), noisy(lambda time: 0.04, 0.01)


@pytest.mark.parametrize(("name", "gpu", "cpu"), list(healthy()), ids=[name for name, *_ in healthy()])
def test_slow_and_flat_jobs_that_are_stopped_do_not_hang(name: str, gpu: Curve, cpu: Curve) -> None:
    documents = job_with_curves(14_400, gpu, cpu, interval_s=60.0, mean=name in ("slow store",), status="MaxRuntimeExceeded")
    assert "HANG" not in kinds(found_in(documents))


def test_a_core_at_work_on_a_large_machine_is_no_hang() -> None:
    cpu = until(CORES, 10_800, noisy(lambda time: 1.05 / 96, 0.1 / 96))
    for one, hangs in ((cpu, False), (until(CORES, 10_800, noisy(lambda time: 0.5 / 96, 0.1 / 96)), True)):
        documents = job_with_curves(
            14_400, until(WORK, 10_800, IDLE), one, interval_s=60.0, mean=False, machine=("ml.p4d.24xlarge", 96, 8),
            status="Stopped",
        )  # fmt: skip
        assert ("HANG" in kinds(found_in(documents))) == hangs


def test_a_point_after_a_hole_is_no_hang_and_nor_is_memory_alone() -> None:
    documents = job_with_curves(
        7920, until(WORK, 7200, IDLE), until(CORES, 7200, IDLE), interval_s=60.0, mean=False, status="Failed"
    )
    assert "HANG" in kinds(found_in(documents))
    assert "HANG" not in kinds(found_in(without_points(documents, 7200, 7860)))
    memory = {name: documents.metrics["algo-1"][name] for name in ("MemoryUtilization",)}
    kept = without_points(documents, 7200, 7920).metrics["algo-1"]
    assert "HANG" not in kinds(found_in(JobDocuments(documents.description, {"algo-1": {**kept, **memory}})))


def test_a_job_that_still_runs_runs_until_its_last_point() -> None:
    """AWS gives its last status no end, and the time at which that status began as that of its last change."""
    documents = job_with_curves(
        14_400, until(WORK, 7200, IDLE), until(CORES, 7200, IDLE), interval_s=60.0, mean=False, status="InProgress"
    )
    description = {**documents.description, "LastModifiedTime": BEGIN_S, "SecondaryStatus": "Training"}
    downloading, training, *_ = description["SecondaryStatusTransitions"]
    description["SecondaryStatusTransitions"] = [downloading, {"Status": "Training", "StartTime": training["StartTime"]}]
    found = found_in(JobDocuments(description, documents.metrics))
    assert found.diagnosis.verdict == "HANG"
    assert found.account.seconds["Training"] == pytest.approx(14_400)
    assert found.account.idle_s["standstill"] == pytest.approx(7200, abs=180)


def test_a_job_that_ended_by_itself_did_not_hang() -> None:
    documents = job_with_curves(14_400, until(WORK, 7200, IDLE), until(CORES, 7200, LOW), interval_s=60.0, mean=False)
    assert kinds(found_in(documents))[0] == "PERIODIC_STALL"


def test_the_host_that_stood_first_is_named() -> None:
    """One host's process has ended; the other spins in a collective."""
    hosts = (
        (until(WORK, 7200, lambda time: 1.0), until(CORES, 7200, lambda time: 0.25)),
        (until(WORK, 6600, IDLE), until(CORES, 6600, lambda time: 0.01)),
    )
    documents = job_with_curves(14_400, WORK, CORES, interval_s=60.0, mean=False, hosts=hosts, status="MaxRuntimeExceeded")
    found = found_in(documents)
    assert found.diagnosis.verdict == "HANG"
    assert any("algo-2 stood still first" in words for words in found.diagnosis.findings[0].evidence)
    alive = (hosts[0], (WORK, CORES))
    documents = job_with_curves(14_400, WORK, CORES, interval_s=60.0, mean=False, hosts=alive, status="MaxRuntimeExceeded")
    assert "HANG" not in kinds(found_in(documents))


def test_a_moment_of_an_agent_does_not_end_a_standstill() -> None:
    """Half-second points: a core works for a second of each minute."""
    cpu = until(CORES, 900, bursts(1, 60, level=0.25))
    documents = job_with_curves(2700, until(WORK, 900, IDLE), cpu, interval_s=2.0, mean=False, status="Stopped")
    assert found_in(documents).diagnosis.verdict == "HANG"


def test_curves_without_a_gpu_tell_no_hang_from_a_low_cpu() -> None:
    documents = job_with_curves(7200, IDLE, lambda time: 0.02, interval_s=60.0, mean=False, status="MaxRuntimeExceeded")
    metrics = {host: {name: one for name, one in all_.items() if "GPU" not in name} for host, all_ in documents.metrics.items()}
    assert "HANG" not in kinds(found_in(JobDocuments(documents.description, metrics)))


def test_noise_of_every_kind_makes_no_phase_and_no_start() -> None:
    for seed, level in itertools.product(range(3), (0.08, 0.4)):
        found = curve(7200, noisy(lambda time, level=level: level, level, seed), FULL)  # type: ignore[misc]
        assert found.diagnosis.verdict == "CPU_SATURATED" and found.account.idle_s["start"] <= 180, kinds(found)
