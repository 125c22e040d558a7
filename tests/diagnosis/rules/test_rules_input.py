"""The rules for the input: which resource makes batches late."""

from __future__ import annotations

from dataclasses import replace

import pytest
from diagnosis_checks import check, fix
from headrace.diagnosis.diagnose import diagnose
from headrace.session.model import Event, Session
from headrace.session.stacks import Stack, StackFrame
from session_factory import MAIN_PID, make_session


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


def test_queueing_for_a_core_is_not_storage() -> None:
    session = make_session(workers=6, cpu_s=0.03, queue_s=0.27, blocked_s=0.0, compute_s=0.01, cores=2)
    assert diagnose(session).verdict in ("CPU_SATURATED", "CPU_OVERSUBSCRIBED")


def test_slow_collate_and_hand_over_is_collate_ipc() -> None:
    session = make_session(workers=2, cpu_s=0.04, collate_s=0.038, compute_s=0.005, transfer_s=0.03, jitter=0.0)
    check(session, "COLLATE_IPC")


def test_ready_small_batches_are_not_an_input_problem() -> None:
    session = make_session(cpu_s=0.0002, compute_s=0.005, transfer_s=0.0012, main_cpu_share=0.98, batch_size=2)
    small = tuple(replace(step, batch_bytes=128, wait_cpu_s=0.0009) for step in session.steps)
    session = replace(session, steps=small, events=(Event(MAIN_PID, "operators", 3.0, 0.1),))
    diagnosis = check(session, "OVERHEAD_BOUND")
    assert not any(found.kind == "COLLATE_IPC" for found in diagnosis.findings)


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


def test_storage_experiment_is_ignored_when_another_worker_was_busy() -> None:
    session = make_session(workers=2, cpu_s=0.002, blocked_s=0.06, compute_s=0.01)
    check(with_one_alone(session, 0.032), "STORAGE_BANDWIDTH")
    diagnosis = check(with_one_alone(session, 0.032, disturbed=True), "STORAGE_LATENCY")
    assert not any("alone" in words for words in diagnosis.findings[0].evidence)


def test_storage_experiment_compares_cold_batches_with_cold_batches() -> None:
    session = make_session(workers=2, cpu_s=0.002, blocked_s=0.06, compute_s=0.01, disk_bytes=3_500_000)
    warm = tuple(replace(b, disk_bytes=0, wall_s=0.003) if n < 38 else b for n, b in enumerate(session.batches))
    check(with_one_alone(replace(session, batches=warm), 0.032), "STORAGE_BANDWIDTH")


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
    assert any("0 % of the batches came at once" in words for words in check(session, "CPU_PREP").findings[0].evidence)


def test_the_function_that_takes_the_time_is_evidence_of_slow_preparation() -> None:
    session = make_session(workers=1, cpu_s=0.06, compute_s=0.01, cores=8)
    frames = (StackFrame("Data.__getitem__", "/job/train.py", 41), StackFrame("GaussianBlur.forward", "torchvision/t.py", 9))
    stacks = (Stack(MAIN_PID + 1, "batch", 61, False, frames), Stack(MAIN_PID + 1, "batch", 39, False, frames[:1]))
    diagnosis = check(replace(session, stacks=stacks, cwd="/job"), "CPU_PREP")
    assert diagnosis.primary is not None
    assert "GaussianBlur takes 61 % of making a batch (train.py:41); Data.__getitem__ 39 %" in diagnosis.primary.evidence
    too_few = tuple(replace(stack, count=stack.count // 5) for stack in stacks)
    diagnosis = check(replace(session, stacks=too_few, cwd="/job"), "CPU_PREP")
    assert diagnosis.hot_functions == ()


def made_by(*frames: tuple[str, str], seen: int = 60) -> Session:
    """Batches without a known file, made in the training process by these functions of libraries."""
    session = make_session(workers=0, cpu_s=0.03, compute_s=0.01)
    loader = replace(session.loaders[0], take_over="part", take_over_reason="the decode only", image_folder=False)
    calls = (StackFrame("Rows.__getitem__", "/job/train.py", 8), *(StackFrame(name, file, 1) for name, file in frames))
    stacks = Stack(MAIN_PID, "batch", seen, False, calls, 0), Stack(MAIN_PID, "batch", 4, False, calls[:1], 0)
    return replace(session, loaders=(loader,), stacks=stacks, cwd="/job")


def test_decompressing_and_tensors_of_single_numbers_are_said() -> None:
    archive = check(made_by(("open", "PIL/Image.py"), ("GzipFile.seek", "gzip.py")), "NO_OVERLAP")
    assert any("94 % of making a batch is decompressing an archive" in words for words in archive.findings[0].evidence)
    numbers = (
        ("default_collate", "torch/utils/data/_utils/collate.py"),
        (
            "collate_float_fn",
            "torch/utils/data/_utils/collate.py",
        ),
    )
    columns = check(made_by(*numbers), "NO_OVERLAP")
    assert any("tensors of single Python numbers" in words for words in columns.findings[0].evidence)
    few = check(made_by(("GzipFile.seek", "gzip.py"), seen=10), "NO_OVERLAP")
    assert not any("decompressing" in words for words in few.findings[0].evidence)


def test_fixes_of_decoding_are_offered_only_where_images_are_opened() -> None:
    def offered(session: Session) -> set[str]:
        return {one.id for one in check(session, "NO_OVERLAP").fixes} & {"headrace_run", "pre_resize"}

    arrays = made_by(("NpzFile.__getitem__", "numpy/lib/_npyio_impl.py"))
    assert offered(arrays) == set()
    assert offered(made_by(("Image.convert", "PIL/Image.py"))) == {"headrace_run", "pre_resize"}
    assert offered(replace(arrays, stacks=())) == {"headrace_run", "pre_resize"}, "nothing was seen"
    by_opencv = replace(arrays.processes[0], thread_settings={"cv2": 2})
    assert offered(replace(arrays, processes=(by_opencv,))) == {"headrace_run", "pre_resize"}, "OpenCV leaves no function"


def test_traffic_of_other_programs_is_no_network_where_nothing_can_be_read_over_it() -> None:
    """29 MB/s of another program's download were named as what the workers of a local folder wait for."""
    session = make_session(workers=2, cpu_s=0.001, blocked_s=0.06, compute_s=0.01, network_receive_bytes_s=2e8)
    none = tuple(Event(MAIN_PID + 1 + worker, "tcp_connections", 3.0, 0.0, "0") for worker in range(2))
    session = replace(session, events=none)
    check(replace(session, host=replace(session.host, remote_mounts=1)), "NETWORK")
    check(replace(session, host=replace(session.host, remote_mounts=0)), "STORAGE_LATENCY")


def test_a_lock_that_workers_share_is_named_with_its_line() -> None:
    session = with_one_alone(make_session(workers=4, cpu_s=0.01, blocked_s=0.12, compute_s=0.005), 0.04)
    take = StackFrame("Files.read", "/job/files.py", 11), StackFrame("SemLock.__enter__", "multiprocessing/synchronize.py", 95)
    stacks = Stack(MAIN_PID + 1, "batch", 60, False, take, 0), Stack(MAIN_PID + 1, "batch", 20, False, take[:1], 0)
    diagnosis = check(replace(session, stacks=stacks, cwd="/job"), "LOCK_WAIT")
    words = " ".join(diagnosis.findings[0].evidence)
    assert "a lock that the workers share takes 75 % of making a batch (files.py:11)" in words
    check(replace(session, stacks=stacks[1:], cwd="/job"), "STORAGE_BANDWIDTH")


def test_transforms_of_whole_images_before_a_resize_are_said() -> None:
    def said(transform: str) -> bool:
        session = make_session(workers=2, cpu_s=0.08, compute_s=0.01, cores=2)
        jitter, resize = (StackFrame(f"{name}.forward", f"torchvision/{name}.py", 9) for name in ("ColorJitter", "Resize"))
        stacks = tuple(Stack(MAIN_PID + 1, "batch", 60, False, (frame,), 0) for frame in (jitter, resize))
        loader = replace(session.loaders[0], transform=transform)
        found = diagnose(replace(session, stacks=stacks, loaders=(loader,)))
        reduced = next((fix for fix in found.fixes if fix.id == "pre_resize"), None)
        words = " ".join(found.findings[0].evidence)
        is_said = "ColorJitter (50 % of making a batch) work on whole images, since Resize comes after them" in words
        assert reduced is None or not is_said or reduced.gain is None
        return is_said

    assert said("Compose(\n    ToTensor()\n    ColorJitter(hue=(0, 1))\n    Resize(size=64)\n)")
    assert not said("Compose(\n    Resize(size=64)\n    ColorJitter(hue=(0, 1))\n)")
    assert not said("Compose(ColorJitter(hue=(0, 1)))")


def test_of_a_librarys_dataset_the_decode_is_named() -> None:
    frames = ("DatasetFolder.__getitem__", "torchvision/datasets/folder.py"), ("pil_loader", "torchvision/datasets/folder.py")
    read = tuple(StackFrame(name, file, 1) for name, file in (*frames, ("Image.convert", "PIL/Image.py")))
    session = make_session(workers=0, cpu_s=0.03, compute_s=0.01)
    found = check(replace(session, stacks=(Stack(MAIN_PID, "batch", 60, False, read, 0),)), "NO_OVERLAP")
    assert [one.function for one in found.hot_functions] == ["Image.convert"]
