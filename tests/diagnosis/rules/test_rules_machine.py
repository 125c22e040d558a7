"""The rules for the machine: quota, other programs, clocks, threads, memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from diagnosis_checks import check
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.measure import measure_machine, measure_ranks
from headrace.session.machine import ForeignProgram, GpuSample
from headrace.session.model import Event, Session
from session_factory import MAIN_PID, make_session


def test_lowered_gpu_clock_is_thermal_throttle_from_its_step_on() -> None:
    session = make_session(cpu_s=0.001, compute_s=0.02, gpu_busy=0.99, throttle=("heat (software)",))
    gpus = tuple(replace(gpu, max_sm_clock_mhz=1980) for gpu in session.host.gpus)
    samples = tuple(
        replace(sample, gpus=tuple(replace(gpu, sm_clock_mhz=1200) for gpu in sample.gpus)) for sample in session.samples
    )
    steps = tuple(replace(step, compute_s=step.compute_s * (1.4 if n >= 60 else 1)) for n, step in enumerate(session.steps))
    diagnosis = check(replace(session, samples=samples, steps=steps, host=replace(session.host, gpus=gpus)), "THERMAL_THROTTLE")
    assert any("from step 60 on" in words for words in diagnosis.findings[0].evidence)


def on_gpus(session: Session, busy: tuple[float, ...], visible: str | None) -> Session:
    """Return the session on a machine with several GPUs. busy: of each. visible: CUDA_VISIBLE_DEVICES of the job."""
    gpus = tuple(GpuSample(index, busy=share) for index, share in enumerate(busy))
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return replace(
        session,
        samples=tuple(replace(sample, gpus=gpus) for sample in session.samples),
        processes=tuple(replace(process, environment=variables) for process in session.processes),
    )


@pytest.mark.parametrize(
    ("busy", "visible", "own"),
    [
        ((0.97, *[0.0] * 7), None, 0.97),
        ((0.4, 0.99, 0.99, 0.99), "0", 0.4),
        ((0.4, 0.99), "GPU-8932f937", 0.99),
        ((0.4, 0.99), "7", 0.99),
        ((0.2, 0.3, 0.9), "0,1", 0.3),
    ],
    ids=["others idle", "others belong to other users", "named by UUID", "another numbering", "the busiest visible one"],
)
def test_only_the_jobs_own_gpus_count(busy: tuple[float, ...], visible: str | None, own: float) -> None:
    session = on_gpus(make_session(cpu_s=0.001, compute_s=0.02), busy, visible)
    assert measure_machine(session, measure_ranks(session)).gpu_busy == pytest.approx(own)


def test_a_gpu_of_others_is_not_that_of_a_model_on_the_cpu() -> None:
    session = on_gpus(make_session(cpu_s=0.001, compute_s=0.02), (0.3,), None)
    assert any("kernels 30 %" in words for words in diagnose(session).findings[0].evidence)
    session = replace(session, facts={"configuration": {"device": "cpu"}})
    assert not any("kernels" in words for words in check(session, "COMPUTE_BOUND").findings[0].evidence)


def test_all_gpus_of_data_parallel_count() -> None:
    session = on_gpus(make_session(cpu_s=0.001, compute_s=0.02), (0.8, 0.6, 0.0, 0.0), None)
    session = replace(session, facts={"configuration": {"data_parallel": 2}})
    assert measure_machine(session, measure_ranks(session)).gpu_busy == pytest.approx(0.7)


def test_idle_gpus_of_the_machine_make_no_batch_too_small() -> None:
    session = on_gpus(make_session(cpu_s=0.001, compute_s=0.02, main_cpu_share=0.98), (0.97, *[0.0] * 7), None)
    steps = tuple(replace(step, gpu_wait_s=0.0001, gpu_step_s=0.02, drained=1) for step in session.steps)
    check(replace(session, steps=steps), "COMPUTE_BOUND")


def test_other_programs_that_delay_the_step_are_external_cpu() -> None:
    session = make_session(cpu_s=0.01, compute_s=0.05, cores=2, foreign_cores=1.2, queue_share=0.5)
    steps = tuple(replace(step, queue_s=0.025) for step in session.steps)
    diagnosis = check(replace(session, steps=steps), "EXTERNAL_CPU")
    assert diagnosis.noise is not None
    assert diagnosis.noise.startswith("high")


def test_other_programs_are_not_blamed_for_all_waits_where_the_job_itself_wants_too_many_cores() -> None:
    def diagnosed(own_cores: float) -> tuple[float, str]:
        session = make_session(cpu_s=0.01, compute_s=0.05, cores=2, foreign_cores=0.5, queue_share=0.55)
        steps = tuple(replace(step, queue_s=0.025) for step in session.steps)
        samples = tuple(replace(sample, own_cores=own_cores) for sample in session.samples)
        diagnosis = check(replace(session, steps=steps, samples=samples), "EXTERNAL_CPU")
        return diagnosis.confidence, " | ".join(diagnosis.findings[0].evidence)

    (sure, few_threads), (unsure, many_threads) = diagnosed(0.8), diagnosed(1.2)
    assert "other programs delay each step by about" in few_threads
    assert "the job's own threads want 2.7 of 2 cores" in many_threads
    assert "other programs cause a part" in many_threads and "other programs delay" not in many_threads
    assert unsure < sure - 0.2


def test_a_job_whose_own_threads_cause_most_of_the_waits_is_oversubscribed() -> None:
    """Four workers of eight threads on two cores, beside other programs on 0.8 of them: EXTERNAL_CPU had all waits, 81 %."""
    session = make_session(workers=4, cpu_s=0.01, compute_s=0.05, cores=2, foreign_cores=0.8, queue_share=0.85)
    steps = tuple(replace(step, queue_s=0.04) for step in session.steps)
    samples = tuple(replace(sample, own_cores=1.4) for sample in session.samples)
    processes = tuple(replace(each, torch_threads=8 if each.role == "worker" else 2) for each in session.processes)
    diagnosis = check(replace(session, steps=steps, samples=samples, processes=processes), "CPU_OVERSUBSCRIBED")
    assert "4 workers of 8 threads and 2 compute threads share 2 cores" in diagnosis.findings[0].evidence
    foreign = next(found for found in diagnosis.findings if found.kind == "EXTERNAL_CPU")
    assert foreign.share is not None and foreign.share < 0.1


def test_external_cpu_names_the_largest_programs() -> None:
    def words(*programs: ForeignProgram) -> str:
        session = make_session(cpu_s=0.01, compute_s=0.05, cores=2, foreign_cores=1.2, foreign_programs=programs)
        steps = tuple(replace(step, queue_s=0.025) for step in session.steps)
        diagnosis = check(replace(session, steps=steps), "EXTERNAL_CPU")
        assert diagnosis.foreign_programs == programs[:3]
        return " | ".join(diagnosis.findings[0].evidence)

    named = words(ForeignProgram(4711, "ffmpeg", 0.9), ForeignProgram(12, "cc1plus", 0.3))
    assert "ffmpeg (pid 4711) 0.9 cores, cc1plus (pid 12) 0.3 cores" in named
    assert "cannot be seen" not in named
    assert "cannot be seen" in words(ForeignProgram(12, "cc1plus", 0.2))
    many = words(*(ForeignProgram(number, "python", 0.15) for number in range(8)))
    assert "and 5 smaller programs with 0.8 cores together" in many or "and 5 smaller programs with 0.7 cores together" in many
    assert "cannot be seen" not in many, "they are seen, and too many to name"
    assert "cannot be seen" in words()


def test_named_programs_use_no_more_cores_than_all_other_programs() -> None:
    """No program is listed in a sample in which they use little; their mean counts that sample all the same."""
    session = make_session(cpu_s=0.01, compute_s=0.05, cores=2, foreign_cores=1.2)
    samples = tuple(
        replace(sample, foreign_cores=1.0, foreign_programs=(ForeignProgram(7, "ffmpeg", 1.0),))
        if number % 2
        else replace(sample, foreign_cores=0.1)
        for number, sample in enumerate(session.samples)
    )
    steps = tuple(replace(step, queue_s=0.025) for step in session.steps)
    diagnosis = check(replace(session, steps=steps, samples=samples), "EXTERNAL_CPU")
    assert diagnosis.foreign_programs is not None
    assert diagnosis.foreign_programs[0].cores == pytest.approx(0.5, abs=0.06)


def test_other_programs_that_do_not_delay_the_step_are_not_reported() -> None:
    session = make_session(cpu_s=0.01, compute_s=0.05, foreign_cores=1.2)
    steps = tuple(replace(step, queue_s=0.0001) for step in session.steps)
    assert [found.kind for found in check(replace(session, steps=steps), "COMPUTE_BOUND").findings] == ["COMPUTE_BOUND"]


def test_throttled_cgroup_is_cpu_quota() -> None:
    session = make_session(cpu_s=0.01, compute_s=0.05, throttled_share=1.2)
    host = replace(session.host, quota_cores=1.0)
    diagnosis = check(replace(session, host=host), "CPU_QUOTA")
    assert any("the limit is 1 core" in words for words in diagnosis.findings[0].evidence)


def test_quota_share_relates_throttling_to_the_cores_that_would_run() -> None:
    session = make_session(cpu_s=0.01, compute_s=0.05, throttled_share=2.0)
    samples = tuple(replace(sample, own_cores=2.0) for sample in session.samples)
    diagnosis = check(replace(session, samples=samples, host=replace(session.host, quota_cores=2.0)), "CPU_QUOTA")
    assert diagnosis.findings[0].share == pytest.approx(0.5, abs=0.01)
    assert any("50 %" in words for words in diagnosis.findings[0].evidence)


def test_time_that_the_quota_takes_is_a_part_of_the_bar_and_the_headline_agrees() -> None:
    """A stopped thread waits for a core. The bar once called that waiting for a core, and other programs' share."""
    session = make_session(
        workers=2, cpu_s=0.03, queue_s=0.06, compute_s=0.02, compute_queue_s=0.01, cores=8, queue_share=0.6, throttled_share=1.2
    )
    samples = tuple(replace(sample, own_cores=0.8) for sample in session.samples)
    session = replace(session, samples=samples, host=replace(session.host, quota_cores=1.0))
    diagnosis = check(session, "CPU_QUOTA")
    parts, shares = diagnosis.share_of_step, {one.kind: one.share or 0.0 for one in diagnosis.findings}
    assert shares["CPU_QUOTA"] == pytest.approx(parts["input_quota"] + parts["quota"], abs=0.001)
    assert parts["input_quota"] > 0.3 and parts["quota"] > 0.15
    assert parts["input_queue"] == parts["core_wait"] == 0, "the quota explains all waits"
    assert sum(shares.values()) <= 1.0, "each second counts once"
    waiting = sum(value for name, value in parts.items() if name.startswith("input_"))
    assert waiting == pytest.approx(diagnosis.wait_share, abs=0.001)

    half = replace(session, samples=tuple(replace(one, throttled_share=0.35, own_cores=0.8) for one in samples))
    parts = diagnose(half).share_of_step
    assert parts["input_quota"] == pytest.approx(parts["input_queue"], rel=0.05), "30 % of the time stopped, 60 % waited"


def test_waits_that_the_quota_causes_are_not_those_of_other_programs() -> None:
    session = make_session(workers=0, cpu_s=0.02, queue_s=0.06, compute_s=0.005, cores=4, foreign_cores=1.5, queue_share=0.7)
    stopped = replace(session, samples=tuple(replace(one, throttled_share=0.5, own_cores=0.5) for one in session.samples))
    alone = {one.kind: one.share or 0.0 for one in diagnose(session).findings}
    shares = {one.kind: one.share or 0.0 for one in diagnose(stopped).findings}
    assert shares["CPU_QUOTA"] + shares["EXTERNAL_CPU"] == pytest.approx(alone["EXTERNAL_CPU"], abs=0.01)


def test_idle_cores_beyond_the_quota_do_not_count_as_free() -> None:
    session = make_session(workers=4, cpu_s=0.02, queue_s=0.06, compute_s=0.005, cores=16)
    samples = tuple(replace(sample, own_cores=1.0, core_busy=(0.5, 0.5, *[0.0] * 14)) for sample in session.samples)
    session = replace(session, samples=samples, host=replace(session.host, quota_cores=1.0))
    assert diagnose(session).verdict == "CPU_SATURATED"


def test_more_threads_than_cores_is_cpu_oversubscribed() -> None:
    session = make_session(workers=8, cpu_s=0.03, queue_s=0.24, compute_s=0.03, cores=2, main_cpu_share=0.9)
    diagnosis = check(session, "CPU_OVERSUBSCRIBED")
    assert not any(finding.kind.startswith("STORAGE") for finding in diagnosis.findings)


def test_needed_workers_are_not_reported_as_too_many_threads() -> None:
    session = make_session(workers=2, cpu_s=0.05, queue_s=0.02, collate_s=0.049, compute_s=0.03, transfer_s=0.002, cores=2)
    steps = tuple(replace(step, queue_s=0.012) for step in session.steps)
    samples = tuple(replace(sample, foreign_cores=0.0, core_busy=(1.0, 1.0)) for sample in session.samples)
    diagnosis = check(replace(session, steps=steps, samples=samples), "COLLATE_IPC")
    assert not any(found.kind == "CPU_OVERSUBSCRIBED" for found in diagnosis.findings)
    assert diagnosis.findings[0].share == pytest.approx((diagnosis.wait_share or 0) + 0.012 / (diagnosis.step_s or 1), abs=0.1)


def with_memory(*held_mb: float, interval_s: float = 0.5) -> Session:
    """A job whose own memory has these values (MB), one per sample."""
    session = make_session(cpu_s=0.001, compute_s=0.1, steps=200)
    samples = tuple(
        replace(
            session.samples[0],
            time_s=interval_s * (number + 1),
            processes=3,
            own_memory_bytes=int(held * 1e6),
            memory_used_bytes=int(4e9 + held * 1e6),
        )
        for number, held in enumerate(held_mb)
    )
    return replace(session, samples=samples)


def growth_of(session: Session) -> list[str]:
    return [words for found in diagnose(session).findings if found.kind == "MEMORY_GROWTH" for words in found.evidence]


def test_steady_memory_growth_is_reported_with_its_rate() -> None:
    found = growth_of(with_memory(*(1000 + 25 * number for number in range(40))))
    assert any("50.0 MB/s" in words for words in found)


def test_memory_growth_of_the_first_minutes_is_not_reported() -> None:
    assert not growth_of(with_memory(*(1250 + 3.5 * number for number in range(30)))), "forked workers copy pages"
    assert not growth_of(with_memory(*(1000 + 60 * number**0.5 for number in range(60)))), "growth that slows down"
    slow = [1250 + 4 * number for number in range(200)]
    assert growth_of(with_memory(*slow, interval_s=4.0)), "growth that goes on for minutes is a leak"


def test_memory_that_imports_take_before_the_first_step_is_no_growth() -> None:
    """A start of eight seconds with one process, then a training with two: most samples are those of the start."""
    session = with_memory(*(300 + 30 * number for number in range(16)), *(780 for _ in range(12)))
    later = tuple(replace(step, start_s=step.start_s + 6.0) for step in session.steps)
    samples = tuple(replace(one, processes=1 if one.time_s <= 8 else 2) for one in session.samples)
    assert not growth_of(replace(session, steps=later, samples=samples))


def test_memory_growth_is_the_verdict_when_memory_is_full_within_the_hour() -> None:
    check(with_memory(*(1000 + 25 * number for number in range(40))), "MEMORY_GROWTH")
    slow = check(with_memory(*(1250 + 4 * number for number in range(200)), interval_s=4.0), "COMPUTE_BOUND")
    assert slow.findings[-1].kind == "MEMORY_GROWTH"


def test_growth_names_workers_or_the_training_process() -> None:
    session = with_memory(*(1000 + 25 * number for number in range(40)))
    assert any(words.startswith("the training process grows") for words in growth_of(session))
    held = tuple(replace(one, workers_memory_bytes=(one.own_memory_bytes or 0) - 500_000_000) for one in session.samples)
    assert any(words == "the loader's workers grow" for words in growth_of(replace(session, samples=held)))


def test_batches_that_the_script_keeps_fill_shared_memory() -> None:
    session = make_session(cpu_s=0.01, compute_s=0.08)
    free = tuple(
        replace(one, shared_memory_free_bytes=int(20e9 - 40e6 * one.time_s), memory_left_bytes=int(12e9))
        for one in session.samples
    )
    diagnosis = check(replace(session, samples=free), "MEMORY_GROWTH")
    words = " ".join(diagnosis.findings[0].evidence)
    assert "what lies in /dev/shm grows by 40.0 MB/s; full in 5 min" in words and "tensors of past batches" in words
    alone = make_session(workers=0, cpu_s=0.01, compute_s=0.08)
    other = tuple(replace(one, shared_memory_free_bytes=int(20e9 - 40e6 * one.time_s)) for one in alone.samples)
    assert "MEMORY_GROWTH" not in [found.kind for found in diagnose(replace(alone, samples=other)).findings], "no worker sends"


def copying(session: Session, *shared_mb: float) -> Session:
    """The session with readings of what the fork shares with each of two workers, 10 s apart."""
    events = [
        Event(MAIN_PID + 1 + worker, "worker_shared_memory", 3.0 + 10 * number, 0.0, str(int(held * 1e6)))
        for worker in range(2)
        for number, held in enumerate(shared_mb)
    ]
    return replace(session, events=(*session.events, *sorted(events, key=lambda event: event.start_s)))


def test_workers_that_copy_shared_pages_are_named_and_no_further_worker_is_advised() -> None:
    slow = make_session(cpu_s=0.08, compute_s=0.01, cores=8)
    assert any(item.id.startswith("num_workers") for item in diagnose(slow).fixes)
    diagnosis = diagnose(copying(slow, 700, 600, 500))
    found = next(one for one in diagnosis.findings if one.kind == "MEMORY_GROWTH")
    words = "2 loader workers copy Python objects that the fork shares: memory grows by 20.0 MB/s (keep labels in an array)"
    assert found.summary == words
    assert any("keep labels and paths in an array" in words for words in found.evidence)
    assert any("which has room" in words for words in found.evidence)
    assert not any(item.id.startswith("num_workers") for item in diagnosis.fixes)
    assert any("no more workers are advised" in words for words in diagnosis.findings[0].evidence)


def test_pages_that_stay_shared_are_no_growth() -> None:
    session = make_session(cpu_s=0.08, compute_s=0.01, cores=8)
    assert not growth_of(copying(session, 700, 699, 698))
    assert not growth_of(copying(session, 10, 1))
    assert not growth_of(copying(session, 472, 376, 376)), "a collection of garbage writes to all objects once"
    assert not growth_of(copying(session, 472, 376))


def test_copying_that_does_not_fit_is_full_soon() -> None:
    session = make_session(cpu_s=0.001, compute_s=0.1, memory_left_bytes=900_000_000)
    diagnosis = check(copying(session, 700, 600, 500), "MEMORY_GROWTH")
    assert any("full in 1 min" in words for words in diagnosis.findings[0].evidence)
    assert diagnosis.summary.startswith("2 loader workers copy")


def test_cores_that_the_script_gave_up_are_not_counted() -> None:
    session = make_session(cpu_s=0.03, compute_s=0.02, cores=4)
    samples = tuple(replace(one, affinity=(2,) if one.time_s > 1 else None, niceness=5) for one in session.samples)
    machine = measure_machine(replace(session, samples=samples), ())
    assert (machine.cores, machine.core_count, len(machine.core_busy), machine.niceness) == (1.0, 1, 1, 5)
    notes = diagnose(replace(session, samples=samples)).notes
    assert any("may use 1 core instead of 4 (its affinity was changed)" in note.text for note in notes)


def test_a_quota_that_was_changed_meanwhile_is_the_one_that_counts() -> None:
    diagnosis = diagnose(make_session(cpu_s=0.03, compute_s=0.02, cores=4, throttled_share=0.5, quota_cores=1.5))
    found = next(one for one in diagnosis.findings if one.kind == "CPU_QUOTA")
    assert any("the limit is 1.5 cores" in words for words in found.evidence)
