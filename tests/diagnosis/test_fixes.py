"""The fixes: when each is proposed, what it is predicted to bring, and how a re-run applies it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from diagnosis_checks import check, fix
from headrace.attach.thread_settings import THREAD_VARIABLES
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.fixes.fix_kind import Rerun
from headrace.diagnosis.fixes.registry import FIXES, needs_replay, rerun_with
from headrace.diagnosis.kinds import KINDS, SETTINGS
from headrace.diagnosis.model import Fix
from headrace.session.model import Session
from session_factory import make_session


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


def test_spread_workers_is_predicted_from_the_queueing() -> None:
    session = make_session(workers=2, cpu_s=0.03, queue_s=0.03, compute_s=0.005, cores=2)
    samples = tuple(replace(sample, core_busy=(1.0, 0.05), own_cores=1.05) for sample in session.samples)
    found = fix(check(replace(session, samples=samples), "CPU_UNEVEN"), "spread_workers")
    assert found.gain == pytest.approx(2, rel=0.15)


def test_every_fix_of_a_kind_is_registered() -> None:
    names = {name for kind in (*KINDS.values(), *SETTINGS.values()) for name in kind.fixes}
    assert names <= FIXES.keys()
    assert FIXES.keys() - names == {"prefetch"}, "tf.data alone offers prefetch"


def test_all_fix_ids_of_the_interface_are_registered() -> None:
    ids = {
        "num_workers", "batch_size", "threads", "prefetch", "pin_memory", "headrace_run", "pack", "pre_resize", "cache", "amp",
        "channels_last", "compile", "uint8_batches", "remove_sync", "async_checkpoint", "gc_freeze", "more_gpus",
    }  # fmt: skip
    assert FIXES.keys() == ids | {"persistent_workers", "spread_workers"}


@pytest.mark.parametrize(
    ("fix_id", "rerun"),
    [
        ("num_workers=6", Rerun(loader_arguments={"num_workers": 6})),
        ("batch_size=64", Rerun(loader_arguments={"batch_size": 64})),
        ("prefetch=4", Rerun(loader_arguments={"prefetch_factor": 4})),
        ("pin_memory", Rerun(loader_arguments={"pin_memory": True})),
        ("persistent_workers", Rerun(loader_arguments={"persistent_workers": True})),
        ("threads=1", Rerun(environment=dict.fromkeys(THREAD_VARIABLES, "1"), threads=1)),
        ("headrace_run", Rerun(headrace_run=True)),
        ("num_workers=many", None),
        ("pack", None),
        ("amp", None),
        ("unheard_of", None),
    ],
)
def test_rerun_applies_a_fix_from_outside_the_script(fix_id: str, rerun: Rerun | None) -> None:
    assert rerun_with(fix_id, make_session().loaders[0]) == rerun


def test_rerun_is_refused_where_it_would_change_nothing() -> None:
    loader = make_session().loaders[0]
    assert rerun_with("headrace_run", replace(loader, image_folder=False)) is None
    assert rerun_with("persistent_workers", replace(loader, remade=3)) is None


def test_replay_is_needed_for_fixes_of_the_computation() -> None:
    assert needs_replay([], "COMPUTE_BOUND") and needs_replay([], "OVERHEAD_BOUND")
    assert needs_replay(["batch_size=64"], "CPU_PREP") and needs_replay(["amp"], "CPU_PREP")
    assert not needs_replay(["num_workers=4", "compile"], "CPU_PREP")


@pytest.mark.parametrize(("images", "words"), [(1000, "epoch on"), (188_000, "epoch on, 50 % of them")])
def test_cache_says_how_much_of_the_dataset_fits_into_free_memory(images: int, words: str) -> None:
    session = make_session(workers=2, cpu_s=0.001, blocked_s=0.06, compute_s=0.01)
    loaders = tuple(replace(loader, dataset_length=images) for loader in session.loaders)
    assert fix(diagnose(replace(session, loaders=loaders)), "cache").change.endswith(words)


def test_pack_leaves_a_tenth_of_the_waits() -> None:
    diagnosis = diagnose(make_session(workers=1, cpu_s=0.001, blocked_s=0.2, compute_s=0.01))
    assert fix(diagnosis, "pack").gain == pytest.approx(0.2012 / 0.0212, rel=0.05)
