"""The rules on made-up sessions: the verdict, findings that must be absent, and the predicted gain of each fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.kinds import KINDS
from headrace.diagnosis.model import SHARES, Diagnosis, Fix
from headrace.session.model import Event, Host, Session, Step
from session_factory import MAIN_PID, make_session

STEPS = 120


def fix(diagnosis: Diagnosis, start: str) -> Fix:
    return next(item for item in diagnosis.fixes if item.id.startswith(start))


def check(session: Session, verdict: str) -> Diagnosis:
    diagnosis = diagnose(session)
    assert diagnosis.verdict == verdict, (diagnosis.verdict, diagnosis.findings)
    assert diagnosis.verdict in KINDS
    assert diagnosis.primary is not None
    assert diagnosis.primary.evidence
    assert sum(diagnosis.share_of_step.values()) == pytest.approx(1)
    assert list(diagnosis.share_of_step) == list(SHARES)
    assert all(share >= 0 for share in diagnosis.share_of_step.values())
    return diagnosis


def pauses(every: int, duration_s: float, name: str, steps: Iterable[Step]) -> tuple[Event, ...]:
    return tuple(
        Event(MAIN_PID, name, step.start_s + step.wait_s + 0.001, duration_s)
        for number, step in enumerate(steps)
        if number % every == every - 1
    )


def test_healthy_job_is_compute_bound_without_another_finding() -> None:
    diagnosis = check(make_session(compute_s=0.04, cpu_s=0.008, workers=1), "COMPUTE_BOUND")
    assert len(diagnosis.findings) == 1
    assert fix(diagnosis, "num_workers").gain == pytest.approx(1, abs=0.03)
    assert fix(diagnosis, "num_workers").change.startswith("≈ 0")


def test_compute_bound_job_reports_how_much_faster_the_input_could_go() -> None:
    diagnosis = check(make_session(compute_s=0.04, cpu_s=0.036, workers=1, jitter=0.02), "COMPUTE_BOUND")
    assert any("faster than the model takes it" in words for words in diagnosis.findings[0].evidence)


def test_storage_latency_is_predicted_to_gain_from_workers() -> None:
    session = make_session(workers=2, cpu_s=0.001, blocked_s=0.06, compute_s=0.01, cores=2)
    diagnosis = check(session, "STORAGE_LATENCY")
    workers = fix(diagnosis, "num_workers")
    assert workers.predicted_img_s is not None
    assert workers.predicted_img_s > 2 * (diagnosis.img_s or 0)
    assert workers.interval is not None
    assert workers.interval[0] <= workers.predicted_img_s <= workers.interval[1]


def with_one_alone(session: Session, wall_s: float, *, disturbed: bool = False) -> Session:
    """Add a batch that worker 0 makes in `wall_s` seconds while the other worker pauses; `disturbed`: does not pause."""
    first = session.batches[40]
    alone = replace(first, alone=1, wall_s=wall_s, pid=MAIN_PID + 1, worker=0)
    end_s = alone.start_s + wall_s
    others = [batch for batch in session.batches if disturbed or batch.pid == alone.pid or batch.start_s > end_s or
              batch.start_s + batch.wall_s < alone.start_s]  # fmt: skip
    return replace(session, batches=tuple(sorted([*others, alone], key=lambda batch: batch.start_s)))


def test_storage_bandwidth_is_predicted_not_to_gain_from_workers() -> None:
    session = make_session(workers=2, cpu_s=0.002, blocked_s=0.06, compute_s=0.01)
    session = with_one_alone(session, 0.032)
    diagnosis = check(session, "STORAGE_BANDWIDTH")
    assert fix(diagnosis, "num_workers").gain == pytest.approx(1, abs=0.03)
    assert fix(diagnosis, "num_workers").change.startswith("≈ 0")


def test_blocked_socket_reads_are_network() -> None:
    session = make_session(workers=2, cpu_s=0.001, blocked_s=0.06, compute_s=0.01)
    batches = tuple(replace(batch, socket_s=0.055) for batch in session.batches)
    check(replace(session, batches=batches), "NETWORK")


def test_no_workers_is_no_overlap_and_one_worker_is_proposed() -> None:
    diagnosis = check(make_session(workers=0, cpu_s=0.018, compute_s=0.02), "NO_OVERLAP")
    workers = fix(diagnosis, "num_workers=1")
    assert workers.change == "one loader worker instead of none"
    assert workers.predicted_img_s == pytest.approx(32 / 0.020, rel=0.1)


def test_too_few_workers_with_free_cores_is_cpu_prep() -> None:
    session = make_session(workers=1, cpu_s=0.03, compute_s=0.015, cores=2)
    diagnosis = check(session, "CPU_PREP")
    workers = fix(diagnosis, "num_workers=2")
    assert workers.predicted_img_s == pytest.approx(32 / 0.0165, rel=0.1)


def test_cpu_saturated_is_predicted_not_to_gain_from_workers() -> None:
    diagnosis = check(make_session(workers=2, cpu_s=0.08, compute_s=0.01, cores=2), "CPU_SATURATED")
    assert fix(diagnosis, "num_workers").gain == pytest.approx(1, abs=0.03)


def test_queueing_workers_beside_idle_cores_are_cpu_uneven() -> None:
    session = make_session(workers=4, cpu_s=0.02, queue_s=0.06, compute_s=0.005, cores=8)
    samples = tuple(replace(sample, core_busy=(1.0, 1.0, *[0.05] * 6)) for sample in session.samples)
    check(replace(session, samples=samples), "CPU_UNEVEN")


def test_more_threads_than_cores_is_cpu_oversubscribed() -> None:
    session = make_session(workers=8, cpu_s=0.03, queue_s=0.24, compute_s=0.03, cores=2, main_cpu_share=0.9)
    diagnosis = check(session, "CPU_OVERSUBSCRIBED")
    assert not any(finding.kind.startswith("STORAGE") for finding in diagnosis.findings)


def test_queueing_for_a_core_is_not_storage() -> None:
    session = make_session(workers=6, cpu_s=0.03, queue_s=0.27, blocked_s=0.0, compute_s=0.01, cores=2)
    assert diagnose(session).verdict in ("CPU_SATURATED", "CPU_OVERSUBSCRIBED")


def test_slow_collate_and_hand_over_is_collate_ipc() -> None:
    session = make_session(workers=2, cpu_s=0.04, collate_s=0.038, compute_s=0.005, transfer_s=0.03, jitter=0.0)
    check(session, "COLLATE_IPC")


def test_periodic_saves_are_a_periodic_stall_with_their_period() -> None:
    plain = make_session(cpu_s=0.005, compute_s=0.025, steps=STEPS)
    paused = with_pause(plain.steps, 40, 1.0)
    session = replace(plain, steps=paused, events=pauses(40, 1.0, "save", paused))
    diagnosis = check(session, "PERIODIC_STALL")
    assert any("every 40 steps" in words for words in diagnosis.findings[0].evidence)
    assert any("torch.save" in words for words in diagnosis.findings[0].evidence)
    gained = fix(diagnosis, "async_checkpoint").gain
    assert gained == pytest.approx((40 * 0.0255 + 1) / (40 * 0.0255), rel=0.1)


def test_two_long_pauses_of_unknown_cause_are_a_periodic_stall() -> None:
    plain = make_session(cpu_s=0.005, compute_s=0.025, steps=90)
    check(replace(plain, steps=with_pause(plain.steps, 40, 1.0)), "PERIODIC_STALL")


def test_irregular_short_delays_are_not_reported() -> None:
    plain = make_session(cpu_s=0.005, compute_s=0.025, steps=STEPS)
    slow = {7, 18, 22, 51, 60, 83, 111}
    steps = tuple(replace(s, compute_s=s.compute_s + (0.03 if n in slow else 0)) for n, s in enumerate(plain.steps))
    check(replace(plain, steps=steps), "COMPUTE_BOUND")


def test_garbage_collection_is_gc_pause_and_gc_freeze_removes_it() -> None:
    plain = make_session(cpu_s=0.005, compute_s=0.01, steps=STEPS)
    paused = with_pause(plain.steps, 13, 0.4)
    session = replace(plain, steps=paused, events=pauses(13, 0.4, "gc", paused))
    diagnosis = check(session, "GC_PAUSE")
    step_s, lost_s = 0.0105, 0.4 / 13
    assert fix(diagnosis, "gc_freeze").gain == pytest.approx((step_s + lost_s) / step_s, rel=0.1)


def with_pause(steps: tuple[Step, ...], every: int, duration_s: float) -> tuple[Step, ...]:
    """Add a pause to the compute of every n-th step; the steps after it start later."""
    paused: list[Step] = []
    for number, step in enumerate(steps):
        pause_s = duration_s if number % every == every - 1 else 0.0
        late_s = number // every * duration_s
        paused.append(replace(step, start_s=step.start_s + late_s, compute_s=step.compute_s + pause_s))
    return tuple(paused)


def test_several_waits_for_the_device_per_step_are_sync_bound() -> None:
    session = make_session(cpu_s=0.002, compute_s=0.03, sync_s=0.02, sync_count=5, main_cpu_share=0.3)
    diagnosis = check(session, "SYNC_BOUND")
    assert fix(diagnosis, "remove_sync").predicted_img_s == pytest.approx(32 / 0.0205, rel=0.1)


def test_one_wait_for_the_device_per_step_is_not_reported() -> None:
    check(make_session(cpu_s=0.002, compute_s=0.03, sync_s=0.02, sync_count=1), "COMPUTE_BOUND")


def test_little_time_in_operators_is_overhead_bound() -> None:
    session = make_session(cpu_s=0.001, compute_s=0.006, batch_size=2, main_cpu_share=0.98)
    session = replace(session, events=(Event(MAIN_PID, "operators", 3.0, 0.15),))
    diagnosis = check(session, "OVERHEAD_BOUND")
    assert fix(diagnosis, "batch_size=8").gain == pytest.approx(4 / (0.85 + 4 * 0.15), rel=0.15)


def test_idle_gpu_beside_a_busy_training_thread_is_overhead_bound() -> None:
    session = make_session(cpu_s=0.001, compute_s=0.006, batch_size=2, main_cpu_share=0.98, gpu_busy=0.2)
    steps = tuple(replace(step, gpu_wait_s=0.0001, gpu_step_s=0.006, drained=1) for step in session.steps)
    check(replace(session, steps=steps), "OVERHEAD_BOUND")


def test_long_copies_to_the_gpu_are_h2d_bound_and_pinning_hides_them() -> None:
    session = make_session(cpu_s=0.001, compute_s=0.03, gpu_busy=0.7)
    steps = tuple(replace(step, gpu_wait_s=0.0001, gpu_step_s=0.03, h2d_s=0.012) for step in session.steps)
    diagnosis = check(replace(session, steps=steps), "H2D_BOUND")
    assert fix(diagnosis, "pin_memory").gain == pytest.approx(0.0305 / (0.0305 - 0.8 * 0.012), rel=0.05)
    assert not any(item.id == "pin_memory" for item in diagnose(with_pinned_batches(session, steps)).fixes)


def with_pinned_batches(session: Session, steps: tuple[Step, ...]) -> Session:
    return replace(session, steps=steps, loaders=tuple(replace(loader, pin_memory=True) for loader in session.loaders))


def test_lowered_gpu_clock_is_thermal_throttle_from_its_step_on() -> None:
    session = make_session(cpu_s=0.001, compute_s=0.02, gpu_busy=0.99, throttle=("heat (software)",))
    gpus = tuple(replace(gpu, max_sm_clock_mhz=1980) for gpu in session.host.gpus)
    samples = tuple(
        replace(sample, gpus=tuple(replace(gpu, sm_clock_mhz=1200) for gpu in sample.gpus)) for sample in session.samples
    )
    steps = tuple(replace(step, compute_s=step.compute_s * (1.4 if n >= 60 else 1)) for n, step in enumerate(session.steps))
    diagnosis = check(replace(session, samples=samples, steps=steps, host=replace(session.host, gpus=gpus)), "THERMAL_THROTTLE")
    assert any("from step 60 on" in words for words in diagnosis.findings[0].evidence)


def test_other_programs_that_delay_the_step_are_external_cpu() -> None:
    session = make_session(cpu_s=0.01, compute_s=0.05, cores=2, foreign_cores=1.2, queue_share=0.5)
    steps = tuple(replace(step, queue_s=0.025) for step in session.steps)
    diagnosis = check(replace(session, steps=steps), "EXTERNAL_CPU")
    assert diagnosis.noise is not None
    assert diagnosis.noise.startswith("high")


def test_throttled_cgroup_is_cpu_quota() -> None:
    session = make_session(cpu_s=0.01, compute_s=0.05, throttled_share=0.4)
    host = replace(session.host, quota_cores=1.0)
    diagnosis = check(replace(session, host=host), "CPU_QUOTA")
    assert any("the limit is 1 core" in words for words in diagnosis.findings[0].evidence)


def test_slow_starts_of_epochs_are_startup() -> None:
    one = make_session(cpu_s=0.005, compute_s=0.02, steps=40)
    steps: list[Step] = []
    for epoch in range(4):
        shift_s = epoch * (steps_length_s(one) + 2.0)
        for number, step in enumerate(one.steps):
            extra_s = 2.0 if number == 0 else 0.0
            steps.append(replace(step, epoch=epoch, start_s=step.start_s + shift_s, wait_s=step.wait_s + extra_s))
    diagnosis = check(replace(one, steps=tuple(steps)), "STARTUP")
    assert fix(diagnosis, "persistent_workers").gain == pytest.approx(2, rel=0.3)


def steps_length_s(session: Session) -> float:
    return sum(step.step_s for step in session.steps)


def two_ranks(slow: dict[str, float], collective_s: float = 0.001) -> Session:
    """A job in which rank 1 is slower in the given phases, and rank 0 waits for it."""
    extra_s = sum(slow.values())
    sessions = [make_session(cpu_s=0.002, compute_s=0.05 + extra_s, rank=rank, world_size=2) for rank in (0, 1)]
    steps: list[Step] = []
    for rank, session in enumerate(sessions):
        for step in session.steps:
            own = {name: slow.get(name, 0.0) * rank for name in ("wait_s", "forward_s", "backward_s")}
            steps.append(
                replace(
                    step,
                    wait_s=step.wait_s + own["wait_s"],
                    compute_s=step.compute_s - own["wait_s"],
                    forward_s=0.015 + own["forward_s"],
                    backward_s=0.03 + own["backward_s"],
                    collective_s=collective_s + (extra_s if rank == 0 else 0.0),
                )
            )
    merged = {name: sum((getattr(session, name) for session in sessions), ()) for name in ("processes", "loaders", "batches")}
    return replace(sessions[0], steps=tuple(sorted(steps, key=lambda step: step.start_s)), **merged)


@pytest.mark.parametrize(("phase", "words"), [("wait_s", "the loader"), ("forward_s", "forward"), ("backward_s", "backward")])
def test_slow_rank_is_reported_with_its_phase(phase: str, words: str) -> None:
    diagnosis = check(two_ranks({phase: 0.02}), "RANK_STRAGGLER")
    assert any("rank 1 needs" in line for line in diagnosis.findings[0].evidence)
    assert any(f"slow in {words}" in line for line in diagnosis.findings[0].evidence)
    assert [row.rank for row in diagnosis.rank_rows] == [0, 1]
    assert diagnosis.rank_rows[1].slow_in == words


def test_all_ranks_short_of_input_are_not_stragglers() -> None:
    sessions = [make_session(cpu_s=0.08, compute_s=0.01, workers=1, rank=rank, world_size=2) for rank in (0, 1)]
    merged = {
        name: sum((getattr(session, name) for session in sessions), ()) for name in ("processes", "loaders", "batches", "steps")
    }
    steps = tuple(replace(step, forward_s=0.003, backward_s=0.004, collective_s=0.001) for step in merged.pop("steps"))
    check(replace(sessions[0], steps=steps, **merged), "CPU_PREP")


def test_ready_small_batches_are_not_an_input_problem() -> None:
    session = make_session(cpu_s=0.0002, compute_s=0.005, transfer_s=0.0012, main_cpu_share=0.98, batch_size=2)
    small = tuple(replace(step, batch_bytes=128, wait_cpu_s=0.0009) for step in session.steps)
    session = replace(session, steps=small, events=(Event(MAIN_PID, "operators", 3.0, 0.1),))
    diagnosis = check(session, "OVERHEAD_BOUND")
    assert not any(found.kind == "COLLATE_IPC" for found in diagnosis.findings)


def test_idle_gpu_of_the_machine_is_not_taken_for_the_jobs() -> None:
    session = make_session(cpu_s=0.002, compute_s=0.03, sync_s=0.02, sync_count=5, gpu_busy=0.0)
    diagnosis = check(session, "SYNC_BOUND")
    assert not any("GPU's clock" in words for words in diagnosis.not_measured)
    used = replace(session, samples=make_session(cpu_s=0.002, compute_s=0.03, gpu_busy=0.3).samples)
    assert any("GPU's clock" in words for words in diagnose(used).not_measured)


def test_waits_of_all_ranks_for_gradients_are_communication() -> None:
    check(two_ranks({}, collective_s=0.02), "COMMUNICATION")


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


@pytest.mark.parametrize(
    ("session", "words"),
    [
        (Session(command=("ls",)), "no PyTorch DataLoader was seen"),
        (replace(make_session(), steps=(), batches=(), loaders=(), samples=()), "no DataLoader was iterated"),
        (replace(make_session(), steps=(), batches=()), "gave no step"),
        (replace(make_session(), steps=make_session().steps[:5]), "only 5 steps"),
    ],
    ids=["nothing", "no loader", "no step", "five steps"],
)
def test_insufficient_data_says_what_was_missing(session: Session, words: str) -> None:
    diagnosis = check(session, "INSUFFICIENT_DATA")
    assert words in diagnosis.findings[0].evidence[0]
    assert diagnosis.img_s is None


def test_missing_sources_are_listed_and_give_none_instead_of_zero() -> None:
    session = make_session(workers=2, cpu_s=0.05, compute_s=0.01, cores=2)
    batches = tuple(replace(batch, queue_s=None) for batch in session.batches)
    diagnosis = diagnose(replace(session, batches=batches, samples=(), host=Host()))
    assert any("scheduler statistics" in words for words in diagnosis.not_measured)
    assert any("no samples" in words for words in diagnosis.not_measured)
    assert diagnosis.heat_map is None
    assert diagnosis.noise is None


def test_confidence_falls_when_other_programs_use_the_cpu() -> None:
    quiet = diagnose(make_session(workers=1, cpu_s=0.03, compute_s=0.015))
    noisy = diagnose(make_session(workers=1, cpu_s=0.03, compute_s=0.015, foreign_cores=1.0))
    assert noisy.confidence < quiet.confidence


def with_benchmark(session: Session) -> Session:
    return replace(session, facts={"image_benchmark": {"plain_s": 0.0025, "headrace_s": 0.0006, "pre_resized_s": 0.0012}})


def test_headrace_run_is_proposed_only_with_an_image_benchmark() -> None:
    session = make_session(workers=2, cpu_s=0.08, compute_s=0.01, cores=2)
    assert not any(item.id == "headrace_run" for item in diagnose(session).fixes)
    found = fix(diagnose(with_benchmark(session)), "headrace_run")
    assert found.gain == pytest.approx(4.1, rel=0.1)


def test_pre_resize_is_not_proposed_for_small_images() -> None:
    session = make_session(workers=2, cpu_s=0.08, compute_s=0.01, cores=2)
    large, small = diagnose(with_benchmark(session)), {"plain_s": 0.0005, "headrace_s": 0.0001, "pre_resized_s": None}
    assert fix(large, "pre_resize")
    assert not any(item.id == "pre_resize" for item in diagnose(replace(session, facts={"image_benchmark": small})).fixes)


def test_headrace_run_keeps_cpu_time_beyond_decoding() -> None:
    session = make_session(workers=2, cpu_s=0.32, compute_s=0.01, cores=2)  # 10 ms per image, 2.5 of them decoding
    found = fix(diagnose(with_benchmark(session)), "headrace_run")
    assert found.gain == pytest.approx(10 / 8.1, rel=0.1)


def test_network_traffic_counts_only_for_processes_that_read_from_the_network() -> None:
    session = make_session(workers=2, cpu_s=0.001, blocked_s=0.06, compute_s=0.01, read_bytes=2000, network_receive_bytes_s=9e6)
    none = Event(MAIN_PID + 1, "tcp_connections", 3.0, 0.0, "0")
    check(replace(session, events=(none,)), "STORAGE_LATENCY")
    check(replace(session, events=(replace(none, detail="2"),)), "NETWORK")
    mounted = make_session(
        workers=2, cpu_s=0.001, blocked_s=0.06, compute_s=0.01, read_bytes=300_000, network_receive_bytes_s=9e6
    )
    check(replace(mounted, events=(none,)), "NETWORK")  # a network file system: the kernel holds the connection


def test_gradient_traffic_between_ranks_is_not_network_input() -> None:
    sessions = [make_session(cpu_s=0.001, blocked_s=0.08, compute_s=0.01, rank=rank, world_size=2) for rank in (0, 1)]
    names = ("processes", "loaders", "batches", "steps")
    merged = {name: sum((getattr(session, name) for session in sessions), ()) for name in names}
    samples = tuple(
        replace(sample, loopback_receive_bytes_s=2e8, network_receive_bytes_s=0.0) for sample in sessions[0].samples
    )
    session = replace(sessions[0], samples=samples, **merged)
    check(session, "STORAGE_LATENCY")
    own = Event(MAIN_PID + 1, "tcp_connections", 3.0, 0.0, "1")
    check(replace(session, events=(own,)), "NETWORK")


def test_quota_share_relates_throttling_to_the_cores_that_would_run() -> None:
    session = make_session(cpu_s=0.01, compute_s=0.05, throttled_share=2.0)
    samples = tuple(replace(sample, own_cores=2.0) for sample in session.samples)
    diagnosis = check(replace(session, samples=samples, host=replace(session.host, quota_cores=2.0)), "CPU_QUOTA")
    assert diagnosis.findings[0].share == pytest.approx(0.5)
    assert any("50%" in words for words in diagnosis.findings[0].evidence)


def test_idle_cores_beyond_the_quota_do_not_count_as_free() -> None:
    session = make_session(workers=4, cpu_s=0.02, queue_s=0.06, compute_s=0.005, cores=16)
    samples = tuple(replace(sample, own_cores=1.0, core_busy=(0.5, 0.5, *[0.0] * 14)) for sample in session.samples)
    session = replace(session, samples=samples, host=replace(session.host, quota_cores=1.0))
    assert diagnose(session).verdict == "CPU_SATURATED"


def test_other_programs_that_do_not_delay_the_step_are_not_reported() -> None:
    session = make_session(cpu_s=0.01, compute_s=0.05, foreign_cores=1.2)
    steps = tuple(replace(step, queue_s=0.0001) for step in session.steps)
    assert [found.kind for found in check(replace(session, steps=steps), "COMPUTE_BOUND").findings] == ["COMPUTE_BOUND"]


def in_epochs(session: Session, epochs: int, between_s: float, first_wait_s: float = 0.0) -> Session:
    length_s = steps_length_s(session) + between_s
    steps = [
        replace(step, epoch=epoch, start_s=step.start_s + epoch * length_s)
        for epoch in range(epochs)
        for number, step in enumerate(session.steps)
    ]
    return replace(session, steps=tuple(steps))


def test_long_gaps_between_epochs_are_a_periodic_stall_of_the_run() -> None:
    plain = make_session(cpu_s=0.005, compute_s=0.02, steps=40)
    check(in_epochs(plain, 4, 0.1), "COMPUTE_BOUND")
    session = in_epochs(plain, 4, 0.8)
    steps = [step for step in session.steps if step.epoch < 3]
    ends = [max(step.start_s + step.step_s for step in steps if step.epoch == epoch) for epoch in range(3)]
    validation = tuple(replace(steps[0], loader=1, start_s=end, compute_s=0.6, optimizer_steps=0) for end in ends)
    session = replace(
        session, steps=(*session.steps, *validation), loaders=(*session.loaders, replace(session.loaders[0], loader=1))
    )
    diagnosis = check(session, "PERIODIC_STALL")
    assert diagnosis.findings[0].share_of == "run"
    assert any("validation" in words for words in diagnosis.findings[0].evidence)
    assert (diagnosis.wasted_gpu_hours_per_100 or 0) > 30


def test_short_epochs_without_workers_are_not_startup() -> None:
    session = in_epochs(make_session(workers=0, cpu_s=0.05, compute_s=0.01, steps=5), 12, 0.0)
    assert [found.kind for found in check(session, "NO_OVERLAP").findings] == ["NO_OVERLAP"]


def test_process_that_ran_before_the_training_is_not_a_rank() -> None:
    early, late = (make_session(cpu_s=0.002, compute_s=0.05, rank=rank, steps=steps) for rank, steps in ((0, 60), (1, 120)))
    moved = tuple(replace(step, start_s=step.start_s + 60) for step in late.steps)
    names = ("processes", "loaders", "batches")
    merged = {name: getattr(early, name) + getattr(late, name) for name in names}
    diagnosis = diagnose(replace(early, steps=(*early.steps, *moved), **merged))
    assert diagnosis.ranks == 1
    assert diagnosis.img_s == pytest.approx(32 / 0.0505, rel=0.05)


def uint8_fix(session: Session, batch_format: str | None) -> list[Fix]:
    loaders = tuple(replace(loader, batch_format=batch_format) for loader in session.loaders)
    return [item for item in diagnose(replace(session, loaders=loaders)).fixes if item.id == "uint8_batches"]


def test_uint8_batches_is_not_proposed_for_uint8_batches() -> None:
    session = make_session(workers=2, cpu_s=0.04, collate_s=0.038, compute_s=0.005, transfer_s=0.03, jitter=0.0)
    assert uint8_fix(session, "uint8") == []
    whole, half = uint8_fix(session, None)[0].gain, uint8_fix(session, "float16")[0].gain
    assert whole is not None
    assert half is not None
    assert 1 < half < whole


def test_headrace_run_proposes_the_loader_for_a_dataset_class_of_the_script() -> None:
    session = with_benchmark(make_session(workers=2, cpu_s=0.08, compute_s=0.01, cores=2))
    own = replace(session, loaders=tuple(replace(loader, image_folder=False) for loader in session.loaders))
    assert (fix(diagnose(session), "headrace_run").command or "").startswith("headrace run")
    assert "headrace.Loader" in (fix(diagnose(own), "headrace_run").command or "")


def test_num_workers_warns_that_an_iterable_dataset_must_split_itself() -> None:
    session = make_session(workers=1, cpu_s=0.03, compute_s=0.015, cores=2)
    loaders = tuple(replace(loader, iterable=True, dataset_length=None) for loader in session.loaders)
    assert "get_worker_info" in fix(diagnose(replace(session, loaders=loaders)), "num_workers=2").change
    assert "get_worker_info" not in fix(diagnose(session), "num_workers=2").change


def test_cache_is_not_proposed_for_a_dataset_of_unknown_length() -> None:
    session = make_session(workers=2, cpu_s=0.001, blocked_s=0.06, compute_s=0.01)
    assert any(item.id == "cache" for item in diagnose(session).fixes)
    loaders = tuple(replace(loader, dataset_length=None) for loader in session.loaders)
    assert not any(item.id == "cache" for item in diagnose(replace(session, loaders=loaders)).fixes)


def test_async_checkpoint_is_not_proposed_without_a_save() -> None:
    plain = make_session(cpu_s=0.005, compute_s=0.025, steps=STEPS)
    diagnosis = check(replace(plain, steps=with_pause(plain.steps, 20, 0.5)), "PERIODIC_STALL")
    assert not any(item.id == "async_checkpoint" for item in diagnosis.fixes)


def test_spread_workers_is_predicted_from_the_queueing() -> None:
    session = make_session(workers=2, cpu_s=0.03, queue_s=0.03, compute_s=0.005, cores=2)
    samples = tuple(replace(sample, core_busy=(1.0, 0.05), own_cores=1.05) for sample in session.samples)
    found = fix(check(replace(session, samples=samples), "CPU_UNEVEN"), "spread_workers")
    assert found.gain == pytest.approx(2, rel=0.15)


def test_storage_experiment_is_ignored_when_another_worker_was_busy() -> None:
    session = make_session(workers=2, cpu_s=0.002, blocked_s=0.06, compute_s=0.01)
    check(with_one_alone(session, 0.032), "STORAGE_BANDWIDTH")
    diagnosis = check(with_one_alone(session, 0.032, disturbed=True), "STORAGE_LATENCY")
    assert not any("alone" in words for words in diagnosis.findings[0].evidence)


def test_storage_experiment_compares_cold_batches_with_cold_batches() -> None:
    session = make_session(workers=2, cpu_s=0.002, blocked_s=0.06, compute_s=0.01, disk_bytes=3_500_000)
    warm = tuple(replace(b, disk_bytes=0, wall_s=0.003) if n < 38 else b for n, b in enumerate(session.batches))
    check(with_one_alone(replace(session, batches=warm), 0.032), "STORAGE_BANDWIDTH")


def test_needed_workers_are_not_reported_as_too_many_threads() -> None:
    session = make_session(workers=2, cpu_s=0.05, queue_s=0.02, collate_s=0.049, compute_s=0.03, transfer_s=0.002, cores=2)
    steps = tuple(replace(step, queue_s=0.012) for step in session.steps)
    samples = tuple(replace(sample, foreign_cores=0.0, core_busy=(1.0, 1.0)) for sample in session.samples)
    diagnosis = check(replace(session, steps=steps, samples=samples), "COLLATE_IPC")
    assert not any(found.kind == "CPU_OVERSUBSCRIBED" for found in diagnosis.findings)
    assert diagnosis.findings[0].share == pytest.approx((diagnosis.wait_share or 0) + 0.012 / (diagnosis.step_s or 1), abs=0.1)


def test_rank_that_is_slow_in_its_loader_gets_the_fixes_of_its_input() -> None:
    sessions = [
        make_session(workers=2, cpu_s=0.002, blocked_s=blocked_s, compute_s=0.02, rank=rank, world_size=2)
        for rank, blocked_s in enumerate((0.002, 0.1))
    ]
    merged = {name: sum((getattr(one, name) for one in sessions), ()) for name in ("processes", "loaders", "batches")}
    late_s = sum(step.wait_s for step in sessions[1].steps) / len(sessions[1].steps)
    waits = (0.001 + late_s, 0.001)
    steps = [
        replace(step, compute_s=0.02 + waits[rank], forward_s=0.005, backward_s=0.01, collective_s=waits[rank])
        for rank, one in enumerate(sessions)
        for step in one.steps
    ]
    diagnosis = check(
        replace(sessions[0], steps=tuple(sorted(steps, key=lambda step: step.start_s)), **merged), "RANK_STRAGGLER"
    )
    assert any("blocked" in words for words in diagnosis.findings[0].evidence)
    assert fix(diagnosis, "num_workers").gain == pytest.approx(2.3, rel=0.2)


def test_slowest_of_several_loaders_iterated_together_is_diagnosed() -> None:
    plain = make_session(workers=1, cpu_s=0.06, compute_s=0.01, cores=4)
    fast = tuple(
        replace(step, loader=1, start_s=step.start_s - 0.001, wait_s=0.001, compute_s=step.step_s - 0.001, optimizer_steps=1)
        for step in plain.steps
    )
    slow = tuple(replace(step, optimizer_steps=0) for step in plain.steps)
    loaders = (*plain.loaders, replace(plain.loaders[0], loader=1))
    session = replace(plain, loaders=loaders, steps=tuple(sorted((*fast, *slow), key=lambda step: step.start_s)))
    check(session, "CPU_PREP")


def test_share_of_batches_at_once_follows_the_waits_not_the_queue() -> None:
    session = make_session(workers=1, cpu_s=0.03, compute_s=0.015, cores=2)
    session = replace(session, steps=tuple(replace(step, ready=1) for step in session.steps))
    assert any("0% of the batches came at once" in words for words in check(session, "CPU_PREP").findings[0].evidence)


def test_loader_iterated_by_another_thread_has_no_ceiling() -> None:
    session = make_session(workers=1, cpu_s=0.03, compute_s=0.0001, cores=2)
    elsewhere = replace(session, events=(Event(MAIN_PID, "iterated_elsewhere", 3.0, 0.0, "loader 0"),))
    seen, unseen = diagnose(session), diagnose(elsewhere)
    assert seen.ceiling_img_s is not None
    assert unseen.ceiling_img_s is None
    assert unseen.wasted_gpu_hours_per_100 is None
    assert unseen.confidence < seen.confidence
    assert any("another thread" in words for words in unseen.not_measured)
