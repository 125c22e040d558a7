"""What is proposed to a job that reads with headrace's own loader: `headrace train`, or `headrace.Loader` in a script."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.model import Diagnosis, Fix
from headrace.session.model import Session

from tests.helpers.session_factory import make_session

PATHS = ("/data/train/a/1.jpg", "/data/train/b/1.jpg", "/data/train/c/2.jpg")
TRAIN = ("python", "/usr/bin/headrace", "train", "--model", "resnet18", "--data", "/data/train")
BENCHMARK = {"plain_s": 4e-3, "headrace_s": 1e-3, "headrace_pre_resized_s": 5e-4, "pre_resized_bytes_ratio": 0.3}


def native(*, benchmark: bool = True, command: tuple[str, ...] = TRAIN, **options: Any) -> Session:
    """A session of a job whose `workers` are threads of headrace's loader."""
    session = make_session(**options)
    loaders = tuple(replace(one, family="headrace", sample_paths=PATHS, persistent_workers=True) for one in session.loaders)
    batches = tuple(replace(one, pid=session.loaders[0].pid, worker=-1) for one in session.batches)
    facts = {"image_benchmark": BENCHMARK} if benchmark else {}
    return replace(session, loaders=loaders, batches=batches, facts=facts, command=command, processes=session.processes[:1])


def cpu_bound(**options: Any) -> Session:
    return native(**{"workers": 1, "cpu_s": 0.06, "compute_s": 0.01, "cores": 4} | options)


def fix(diagnosis: Diagnosis, name: str) -> Fix:
    found = [item for item in diagnosis.fixes if item.id.partition("=")[0] == name]
    assert len(found) == 1, [item.id for item in diagnosis.fixes]
    return found[0]


def test_more_threads_are_predicted_and_named_as_an_option_of_train() -> None:
    diagnosis = diagnose(cpu_bound())
    assert diagnosis.verdict == "CPU_PREP"
    proposed = fix(diagnosis, "num_workers")
    assert (proposed.gain or 0.0) > 2 and proposed.id != "num_workers=1"
    assert "headrace train" in (proposed.command or "") and "--threads" in (proposed.command or "")
    assert "loader threads instead of 1" in proposed.change


def test_more_threads_in_a_script_are_an_argument_of_its_loader() -> None:
    proposed = fix(diagnose(cpu_bound(command=("python", "train.py"))), "num_workers")
    assert (proposed.command or "").startswith("headrace.Loader(") and "threads=" in (proposed.command or "")


def test_pre_resize_of_a_train_run_is_predicted_from_headraces_own_decode() -> None:
    proposed = fix(diagnose(cpu_bound()), "pre_resize")
    assert 1.7 < (proposed.gain or 0.0) < 2.3  # half the CPU time, which sets the pace
    assert (proposed.command or "").startswith("headrace pack --short-side 256 /data/train /data/train-256 && ")
    assert (proposed.command or "").endswith(" --data /data/train-256")
    assert "other pixels" in proposed.change


def test_pre_resize_is_not_proposed_if_no_image_is_larger() -> None:
    assert not [item for item in diagnose(cpu_bound(benchmark=False)).fixes if item.id == "pre_resize"]


def test_no_fix_is_proposed_that_headraces_own_loader_has_no_use_for() -> None:
    useless = {"headrace_run", "batch_size", "uint8_batches", "persistent_workers", "prefetch"}
    kinds = (
        {"cpu_s": 0.001, "blocked_s": 0.06, "disk_bytes": 3_500_000},
        {"workers": 4, "cpu_s": 0.06, "queue_s": 0.06, "foreign_cores": 2.5},
        {"workers": 4, "cpu_s": 0.06, "compute_s": 0.001},
    )
    for options in kinds:
        diagnosis = diagnose(cpu_bound(**options))
        proposed = {item.id.partition("=")[0] for found in diagnosis.findings for item in found.fixes}
        assert proposed and not proposed & useless, (diagnosis.verdict, proposed)


def test_slow_storage_is_answered_by_threads_and_a_pack_that_train_reads() -> None:
    diagnosis = diagnose(cpu_bound(workers=4, cpu_s=0.002, blocked_s=0.2, disk_bytes=3_500_000))
    assert diagnosis.verdict == "STORAGE_LATENCY"
    assert (fix(diagnosis, "num_workers").gain or 0.0) > 1.5
    packed = "/data/train-packed"
    assert fix(diagnosis, "pack").command == f"headrace pack /data/train {packed} && headrace train … --data {packed}"


def test_threads_that_queue_beside_a_busy_model_are_full_cores_and_not_too_many_threads() -> None:
    session = cpu_bound(workers=4, cpu_s=0.03, queue_s=0.03, compute_s=0.004, main_cpu_share=1.0)
    assert diagnose(session).verdict in ("CPU_SATURATED", "CPU_UNEVEN")
    assert not any("worker" in words for found in diagnose(session).findings for words in found.evidence)
