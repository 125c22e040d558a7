"""The fixes: when each is proposed, what it is predicted to bring, and how a re-run applies it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from diagnosis_checks import check, fix
from headrace.attach.machine.thread_settings import THREAD_VARIABLES
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.fixes.fix_kind import Rerun
from headrace.diagnosis.fixes.registry import FIXES, needs_replay, propose_fixes, rerun_with
from headrace.diagnosis.measure import measure_machine, measure_ranks
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.step_model import build_model
from headrace.diagnosis.result.kinds import KINDS, SETTINGS
from headrace.diagnosis.result.model import Fix
from headrace.session.model import Event, Session
from session_factory import MAIN_PID, make_session


def with_benchmark(session: Session) -> Session:
    return replace(session, facts={"image_benchmark": {"plain_s": 0.0025, "headrace_s": 0.0006, "pre_resized_s": 0.0012}})


def test_headrace_run_is_proposed_only_with_an_image_benchmark() -> None:
    session = make_session(workers=2, cpu_s=0.08, compute_s=0.01, cores=2)
    assert not any(item.id == "headrace_run" for item in diagnose(session).fixes)
    found = fix(diagnose(with_benchmark(session)), "headrace_run")
    assert found.gain == pytest.approx(4.1, rel=0.1)


@pytest.mark.parametrize(
    ("transform", "is_proposed"),
    [
        ("Compose(\n Resize(size=256, interpolation=bilinear)\n CenterCrop(size=(224, 224))\n)", True),
        ("Compose(\n Resize(size=512, interpolation=bilinear)\n RandomCrop(size=(224, 224), padding=None)\n)", False),
        ("RandomResizedCropAndInterpolation(size=(240, 288), scale=(0.08, 1.0), ratio=(0.75, 1.3333))", False),
    ],
)
def test_copies_are_as_large_as_what_the_script_cuts_from_them(transform: str, is_proposed: bool) -> None:
    """Copies of 256 pixels were proposed to a script that enlarges them to 512."""
    session = with_benchmark(make_session(workers=2, cpu_s=0.08, compute_s=0.01, cores=2))
    session = replace(session, loaders=tuple(replace(loader, transform=transform) for loader in session.loaders))
    assert any(item.id == "pre_resize" for item in diagnose(session).fixes) == is_proposed


def test_pre_resize_is_not_proposed_for_small_images() -> None:
    session = make_session(workers=2, cpu_s=0.08, compute_s=0.01, cores=2)
    large, small = diagnose(with_benchmark(session)), {"plain_s": 0.0005, "headrace_s": 0.0001, "pre_resized_s": None}
    assert fix(large, "pre_resize")
    assert not any(item.id == "pre_resize" for item in diagnose(replace(session, facts={"image_benchmark": small})).fixes)


def test_headrace_run_keeps_cpu_time_beyond_decoding() -> None:
    session = make_session(workers=2, cpu_s=0.32, compute_s=0.01, cores=2)  # 10 ms per image, 2.5 of them decoding
    found = fix(diagnose(with_benchmark(session)), "headrace_run")
    assert found.gain == pytest.approx(10 / 8.1, rel=0.1)


def test_images_are_not_shrunk_or_packed_for_a_job_that_reads_none() -> None:
    session = make_session(workers=2, cpu_s=0.08, compute_s=0.01, cores=2, read_bytes=0)
    assert not {"pre_resize", "pack", "cache"} & {item.id for item in diagnose(session).fixes}
    reading = make_session(workers=2, cpu_s=0.08, compute_s=0.01, cores=2)
    assert "pre_resize" in {item.id for item in diagnose(reading).fixes}


def test_as_many_workers_as_advised_are_not_advised_again_twice_as_high() -> None:
    few = make_session(workers=1, cpu_s=0.06, compute_s=0.02, cores=8)
    advised = next(item for item in diagnose(few).fixes if item.id.startswith("num_workers="))
    count = int(advised.id.partition("=")[2])
    assert advised.command == f"DataLoader(..., num_workers={count})"
    again = diagnose(make_session(workers=count, cpu_s=0.06, compute_s=0.02, cores=8))
    (fix_again,) = [item for item in again.fixes if item.id.startswith("num_workers=")]
    assert fix_again.change.startswith(f"≈ 0: more than the {count} loader workers of now")
    assert fix_again.command is None


def uint8_fix(session: Session, batch_format: str | None) -> list[Fix]:
    loaders = tuple(replace(loader, batch_format=batch_format) for loader in session.loaders)
    return [item for item in diagnose(replace(session, loaders=loaders)).fixes if item.id == "uint8_batches"]


def test_uint8_batches_shorten_no_other_work_of_a_collate_function_of_the_scripts_own() -> None:
    """A collate function that blurs each image was once predicted to run four times as fast."""
    session = make_session(workers=1, cpu_s=0.101, compute_s=0.01)
    batches = tuple(replace(one, collate_s=0.1, collate_cpu_s=0.1) for one in session.batches)

    def gain(name: str) -> float:
        loaders = tuple(replace(loader, collate=name, batch_format="float32") for loader in session.loaders)
        found = diagnose(replace(session, batches=batches, loaders=loaders))
        return next((fix.gain or 1.0 for fix in found.fixes if fix.id == "uint8_batches"), 1.0)

    assert gain("default_collate") > 2
    assert gain("blurred") < 1.3


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
        "channels_last", "compile", "uint8_batches", "remove_sync", "async_checkpoint", "gc_freeze", "more_gpus", "less_often",
        "gpu_decode", "shorter_next", "own_process", "keep_iterator", "remove_gc_collect", "anomaly_off", "profiler_off",
        "dynamic_shapes", "deterministic_off", "find_unused_off", "flush_denormal", "autocast_off",
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


PART = {"resized_plain_s": 0.002, "resized_headrace_s": 0.0005, "cropped_plain_s": 0.0018, "cropped_headrace_s": 0.0006}


def answered(session: Session, take_over: str, reason: str | None = None, part: str | None = None, **changes: Any) -> Session:
    """The session with the recogniser's answer for its loader."""
    loaders = tuple(
        replace(one, take_over=take_over, take_over_reason=reason, native_part=part, **changes) for one in session.loaders
    )
    facts = {"image_benchmark": with_benchmark(session).facts["image_benchmark"] | PART}
    return replace(session, loaders=loaders, facts=facts)


def cpu_bound(**options: Any) -> Session:
    return make_session(**{"workers": 2, "cpu_s": 0.32, "compute_s": 0.01, "cores": 2} | options)  # 10 ms an image


def test_headrace_run_is_not_proposed_for_a_loader_that_it_refuses() -> None:
    reason = "dataset Own has its own __getitem__"
    diagnosis = diagnose(answered(cpu_bound(), "refused", reason))
    assert not any(item.id == "headrace_run" for item in diagnosis.fixes)
    assert f"headrace run would not help: {reason}" in diagnosis.findings[0].evidence
    assert rerun_with("headrace_run", answered(cpu_bound(), "refused", reason).loaders[0]) is None


def test_headrace_run_is_not_proposed_where_it_is_at_work() -> None:
    diagnosis = diagnose(answered(cpu_bound(), "active"))
    assert not any(item.id == "headrace_run" for item in diagnosis.fixes)
    assert not any("would not help" in words for words in diagnosis.findings[0].evidence)


@pytest.mark.parametrize(("part", "saved_s"), [("resized", 0.0015), ("cropped", 0.0012)])
def test_headrace_run_in_part_keeps_the_scripts_transforms_and_workers(part: str, saved_s: float) -> None:
    reason = "decode and RandomResizedCrop at least: transform GaussianBlur"
    found = fix(diagnose(answered(cpu_bound(), "part", reason, part)), "headrace_run")
    assert found.gain == pytest.approx(0.01 / (0.01 - saved_s), rel=0.05)
    assert reason in found.change and "three items" in (found.basis or "")
    assert (found.command or "").startswith("headrace run -- python train.py")
    whole = fix(diagnose(answered(cpu_bound(cpu_s=0.08), "whole")), "headrace_run")
    in_part = fix(diagnose(answered(cpu_bound(cpu_s=0.08), "part", reason, part)), "headrace_run")
    assert (in_part.gain or 0) < (whole.gain or 0)


def test_headrace_run_with_lazy_images_is_proposed_without_a_prediction() -> None:
    """What native decode gains depends on the rest of the item, which is not known; `--verify` measures it."""
    reason = "lazy decode only: dataset Own has its own __getitem__"
    session = answered(cpu_bound(), "part", reason)
    found = fix(diagnose(session), "headrace_run")
    assert reason in found.change and found.predicted_img_s is None and found.gain is None
    assert (found.basis or "").startswith("not predicted") and found.command == "headrace run -- python train.py"
    assert rerun_with("headrace_run", session.loaders[0]) is not None
    blocked = answered(make_session(workers=1, cpu_s=0.001, blocked_s=0.2, compute_s=0.01), "part", reason)
    assert not any(item.id == "headrace_run" for item in diagnose(blocked).fixes)
    imageless = replace(answered(cpu_bound(read_bytes=0), "part", reason), facts={})  # the script imports Pillow, and no more
    assert not any(item.id == "headrace_run" for item in diagnose(imageless).fixes)


def test_headrace_run_says_where_its_answer_is_unknown() -> None:
    assert "is not known" in (fix(diagnose(with_benchmark(cpu_bound())), "headrace_run").basis or "")
    assert "is not known" not in (fix(diagnose(answered(cpu_bound(), "whole")), "headrace_run").basis or "")
    failed = diagnose(answered(cpu_bound(), "unknown", "its recogniser failed (OSError: no)"))
    assert "is not known" in (fix(failed, "headrace_run").basis or "")
    assert "whether headrace run takes the loader over: its recogniser failed (OSError: no)" in failed.not_measured


OVERHEAD = {"workers": 2, "cpu_s": 0.001, "compute_s": 0.002, "main_cpu_share": 0.95, "steps": 300}


def batch_size_fix(**loader: Any) -> list[Fix]:
    session = make_session(**OVERHEAD)
    loaders = tuple(replace(one, **loader) for one in session.loaders)
    job = replace(session, loaders=loaders, events=(Event(MAIN_PID, "operators", 1.0, 0.3),))
    return [item for item in diagnose(job).fixes if item.id.startswith("batch_size=")]


@pytest.mark.parametrize("batched_by", ["sampler", "dataset"])
def test_batch_size_is_not_an_argument_where_the_script_makes_the_batches(batched_by: str) -> None:
    (usual,), (own,) = batch_size_fix(), batch_size_fix(batched_by=batched_by)
    assert usual.command == "DataLoader(..., batch_size=128)"
    assert own.command is None and "of the script sets it" in own.change
    assert rerun_with(own.id, replace(make_session().loaders[0], batched_by=batched_by)) is None


@pytest.mark.parametrize(("length", "ids"), [(1000, ["batch_size=128"]), (70, ["batch_size=64"]), (40, [])])
def test_batch_size_is_no_larger_than_the_dataset(length: int, ids: list[str]) -> None:
    assert [item.id for item in batch_size_fix(dataset_length=length)] == ids


def test_pack_says_that_the_script_must_read_shards() -> None:
    slow = diagnose(make_session(workers=1, cpu_s=0.001, blocked_s=0.2, compute_s=0.01))
    assert "headrace.Loader" in fix(slow, "pack").change and "few lines" in (fix(slow, "pack").effort or "")


def test_pre_resize_is_a_copy_that_the_script_reads_without_an_edit() -> None:
    for session in (with_benchmark(cpu_bound()), cpu_bound()):
        proposed = fix(diagnose(session), "pre_resize")
        assert "--layout folder" in (proposed.command or "") and "--data-map SRC=DST" in (proposed.command or "")
        assert "headrace.Loader" not in proposed.change and "other pixels" in proposed.change
        assert proposed.effort == "one pass, no edit"


def test_pre_resize_names_the_folder_of_the_images_if_it_can_tell() -> None:
    def command(*paths: str) -> str:
        session = cpu_bound()
        loaders = tuple(replace(one, sample_paths=paths) for one in session.loaders)
        return fix(diagnose(replace(session, loaders=loaders)), "pre_resize").command or ""

    named = command("/my data/train/a/1.jpg", "/my data/train/b/1.jpg", "/my data/train/c/2.jpg")
    assert "256 '/my data/train' '/my data/train-256' && " in named
    assert "--data-map '/my data/train=/my data/train-256'" in named
    assert "256 SRC DST" in command("/data/train/a/1.jpg", "/data/train/a/2.jpg")
    assert "256 SRC DST" in command("/a/1.jpg", "/b/1.jpg", "/c/1.jpg")
    assert "256 SRC DST" in command("a/1.jpg", "b/1.jpg", "c/1.jpg")


def test_a_command_with_places_says_which_paths_they_mean() -> None:
    meant = "SRC is the folder or bucket of the training images, DST a new one"
    assert fix(diagnose(with_benchmark(cpu_bound())), "pre_resize").change.endswith(meant)
    assert fix(diagnose(make_session(workers=1, cpu_s=0.001, blocked_s=0.2, compute_s=0.01)), "pack").change.endswith(meant)
    session = cpu_bound()
    paths = tuple(f"/data/train/{name}/1.jpg" for name in "abc")
    loaders = tuple(replace(one, sample_paths=paths) for one in session.loaders)
    assert "SRC" not in fix(diagnose(replace(session, loaders=loaders)), "pre_resize").change


def test_cache_has_no_command_for_a_dataset_class_of_the_script() -> None:
    session = make_session(workers=2, cpu_s=0.001, blocked_s=0.06, compute_s=0.01)
    assert "headrace.Loader" in (fix(diagnose(session), "cache").command or "")
    loaders = tuple(replace(one, image_folder=False) for one in session.loaders)
    assert fix(diagnose(replace(session, loaders=loaders)), "cache").command is None


def test_persistent_workers_is_not_proposed_without_workers() -> None:
    diagnosis = diagnose(make_session(workers=0, cpu_s=0.03, compute_s=0.01))
    assert diagnosis.fixes and not any(item.id == "persistent_workers" for item in diagnosis.fixes)


def test_pin_memory_needs_measured_copies_to_a_gpu() -> None:
    names = ("pin_memory",)
    on_gpu = make_session(workers=2, gpu_busy=0.9, gpu_wait_share=0.1, h2d_s=0.004)
    assert [one.id for one in propose_fixes(job_of(on_gpu), "H2D_BOUND", names)] == ["pin_memory"]
    pinned = replace(on_gpu, loaders=tuple(replace(one, pin_memory=True) for one in on_gpu.loaders))
    assert propose_fixes(job_of(pinned), "H2D_BOUND", names) == []
    on_cpu = make_session(workers=2)
    steps = tuple(replace(step, h2d_s=None) for step in on_cpu.steps)
    assert propose_fixes(job_of(replace(on_cpu, steps=steps)), "H2D_BOUND", names) == []


def job_of(session: Session) -> MeasuredJob:
    ranks = measure_ranks(session)
    machine = measure_machine(session, ranks)
    return MeasuredJob(session, ranks, ranks[0], machine, build_model(ranks[0], 1, machine))


def test_compile_is_not_proposed_for_a_compiled_model() -> None:
    session = make_session(workers=2, gpu_busy=0.95, gpu_wait_share=0.0)
    assert propose_fixes(job_of(session), "COMPUTE_BOUND", ("compile",))
    seen = replace(session, events=(Event(MAIN_PID, "compile", 2.0, 9.0),))
    assert propose_fixes(job_of(seen), "COMPUTE_BOUND", ("compile",)) == []
    told = replace(session, facts={"configuration": {"compiled": True}})
    assert propose_fixes(job_of(told), "COMPUTE_BOUND", ("compile",)) == []


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("python3", "train.py", "--name", "a b"), "torchrun --nproc-per-node 2 train.py --name 'a b'"),
        (("python", "-m", "project.train"), "torchrun --nproc-per-node 2 -m project.train"),
        (("python", "-u", "train.py"), None),
        (("bash", "train.sh"), None),
    ],
)
def test_more_gpus_gives_a_command_that_torchrun_understands(command: tuple[str, ...], expected: str | None) -> None:
    session = replace(make_session(gpu_busy=0.9), command=command, facts={"configuration": {"data_parallel": 2}})
    (found,) = propose_fixes(job_of(session), "DATA_PARALLEL", ("more_gpus",))
    assert found.command == expected


def on_gpu(capability: list[int], cpu_s: float = 0.08, compute_s: float = 0.02) -> Session:
    session = with_benchmark(make_session(workers=2, cpu_s=cpu_s, compute_s=compute_s, cores=2))
    return replace(session, facts=session.facts | {"configuration": {"device": "cuda", "capability": capability}})


def test_gpu_decoding_is_predicted_for_a_gpu_that_the_decoder_runs_on_and_called_estimated() -> None:
    found = fix(diagnose(on_gpu([7, 5])), "gpu_decode")
    # 80 ms of CPU a batch of 32 on two cores, 2.35 ms an image of them leave; then computing binds: 20 + 1.5 ms of decoding
    assert found.gain == pytest.approx(40 / 21.5, rel=0.1)
    assert "estimated" in found.change and "estimated" in (found.basis or "")
    assert found.command is not None and found.command.startswith("headrace pack ") and 'decode="split"' in found.command


def test_gpu_decoding_is_not_offered_on_a_gpu_too_old_for_the_decoder() -> None:
    assert not any(item.id == "gpu_decode" for item in diagnose(on_gpu([7, 0])).fixes)


def test_gpu_decoding_is_not_offered_for_a_job_on_the_cpu() -> None:
    session = with_benchmark(make_session(workers=2, cpu_s=0.08, compute_s=0.02, cores=2))
    assert not any(item.id == "gpu_decode" for item in diagnose(session).fixes)


def test_gpu_decoding_that_costs_the_gpu_more_than_it_frees_is_about_nothing() -> None:
    found = fix(diagnose(on_gpu([9, 0], compute_s=0.036)), "gpu_decode")
    assert found.gain is not None and found.gain < 1.1
