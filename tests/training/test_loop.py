"""Training small models for real: they learn, and stops and damaged checkpoints do not change the result."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from headrace.cli.main import main
from headrace.errors import DecodeError, HeadraceError, SourceError, StateError, UsageError
from headrace.loading.loader import Loader
from headrace.report.pages import training_page
from headrace.training import loop as trainer
from headrace.training.inputs.data import left_out_note
from headrace.training.loop import Options, TrainingProgress, train
from headrace.training.models import factory
from headrace.training.settings.optimization import OptimizationOptions, learning_rate, make_optimizer
from headrace.training.weights import checkpoint
from headrace.training.weights.evaluation import evaluate
from headrace.transforms import CenterCrop
from PIL import Image
from safetensors.torch import load_file

COLOURS = {"blue": (40, 60, 200), "green": (50, 180, 60), "red": (200, 50, 40)}


def write_images(folder: Path, per_class: int, seed: int = 0) -> Path:
    random_source = np.random.default_rng(seed)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for index in range(per_class):
            pixels = np.clip(np.array(colour) + random_source.normal(0, 40, (36, 36, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.jpg", quality=90)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("colours")
    write_images(root / "train", 16)
    write_images(root / "val", 7, seed=1)
    return root


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def options(data: Path, tmp_path: Path) -> Options:
    return Options(
        model="resnet20",
        data=str(data),
        out=str(tmp_path / "run"),
        epochs=2,
        batch_size=8,
        image_size=32,
        device="cpu",
        deterministic=True,
        threads=1,
        optimization=OptimizationOptions(learning_rate=1.0, warmup_epochs=0.5),
    )


@pytest.fixture(autouse=True)
def _determinism_ends_with_the_test() -> None:
    yield
    torch.use_deterministic_algorithms(False)


def weights(options: Options) -> bytes:
    return (Path(options.out) / "final.safetensors").read_bytes()


def test_training_learns_and_writes_weights_and_metrics(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "LOG_STEPS", 4)
    seen: list[TrainingProgress] = []
    result = train(replace(options, epochs=6), on_progress=seen.append)
    assert (result.steps, result.epochs, result.exit_code) == (36, 6, 0)
    assert result.scores is not None
    assert result.scores.images == 21
    assert result.scores.top1 > 0.9  # three plain colours
    assert result.scores.top5 is None  # with three classes it would always be 1
    assert result.losses[-1] < result.losses[0]
    assert sum(progress.images for progress in seen) == 36 * 8
    tensors = load_file(Path(options.out) / "final.safetensors")
    model = factory.build_model("resnet20", classes=3, image_size=32)
    model.load_state_dict(tensors)
    lines = [json.loads(line) for line in (Path(options.out) / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["resumed_from_step"] is None and lines[0]["classes"] == 3
    assert [line["step"] for line in lines if "loss" in line] == [1, *range(4, 37, 4)]
    assert [line["step"] for line in lines if "evaluation" in line] == list(range(6, 37, 6))


def test_the_highest_learning_rate_is_that_of_every_update(options: Options) -> None:
    warm = replace(options, epochs=5, optimization=OptimizationOptions(warmup_epochs=1))  # 30 steps, the peak at step 6 or 7
    train(warm)
    lines = [json.loads(line) for line in (Path(options.out) / "metrics.jsonl").read_text().splitlines()]
    rows = [line for line in lines if "loss" in line]
    assert [row["step"] for row in rows] == [1, 20, 30]
    rates = [
        learning_rate(step, peak=warm.optimization.peak_rate(8), schedule="cosine", warmup_steps=6, total_steps=30)
        for step in range(30)
    ]
    assert max(row["highest_learning_rate"] for row in rows) == max(rates) > max(row["learning_rate"] for row in rows)
    shown = f"{max(rates):.3g}"
    training_page.write(Path(options.out) / "metrics.jsonl", page := Path(options.out) / "page.html", title="warm")
    assert re.search(rf">{re.escape(shown)}</span><span[^>]*>highest learning rate used", page.read_text())


def test_a_run_stopped_by_signals_resumes_to_the_same_bits(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "LOG_STEPS", 1)
    train(options)
    undisturbed = weights(options)

    stopped = replace(options, out=options.out + "-stopped")
    for number, at_step in [(signal.SIGTERM, 3), (signal.SIGUSR1, 6), (signal.SIGINT, 8)]:

        def stop(progress: TrainingProgress, number: int = number, at_step: int = at_step) -> None:
            if progress.step == at_step:
                os.kill(os.getpid(), number)

        result = train(replace(stopped, resume="auto"), on_progress=stop)
        assert (result.steps, result.exit_code) == (at_step, 128 + number)
        assert result.final is None
        assert result.checkpoint is not None and result.checkpoint.name == f"step-{at_step:09d}"
    result = train(replace(stopped, resume="auto"))
    assert (result.resumed_from_step, result.exit_code) == (8, 0)
    assert weights(stopped) == undisturbed
    lines = [json.loads(line) for line in (Path(stopped.out) / "metrics.jsonl").read_text().splitlines()]
    assert [line["resumed_from_step"] for line in lines if "resumed_from_step" in line] == [None, 3, 6, 8]
    # the epoch that ended in a request to stop was evaluated after all
    assert [line["step"] for line in lines if "evaluation" in line] == [6, 12]


def test_resume_reports_and_skips_a_damaged_checkpoint(options: Options) -> None:
    train(replace(options, checkpoint_steps=5, keep=3))
    undisturbed = weights(options)
    newest = sorted((Path(options.out) / "checkpoints").iterdir())[-1]
    assert newest.name == "step-000000012"
    damaged = bytearray((newest / "tensors.safetensors").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (newest / "tensors.safetensors").write_bytes(damaged)
    remarks: list[str] = []
    result = train(replace(options, resume="auto"), on_progress=lambda progress: remarks.append(progress.remark or "") or None)
    assert result.resumed_from_step == 10
    assert any("damaged" in remark and newest.name in remark for remark in remarks)
    assert any("resuming from the checkpoint before, step-000000010" in remark for remark in remarks)
    assert weights(options) == undisturbed


def test_a_run_is_not_overwritten_or_resumed_with_other_options(options: Options) -> None:
    train(replace(options, steps=2))
    with pytest.raises(UsageError, match="already holds a training run"):
        train(options)
    with pytest.raises(StateError, match="its model is 'resnet20', here it is 'resnet18'"):
        train(replace(options, steps=2, model="resnet18", resume="auto"))
    with pytest.raises(StateError, match="total steps is 2, here it is 12"):
        train(replace(options, resume="auto"))
    with pytest.raises(StateError, match="seed"):
        train(replace(options, steps=2, seed=9, resume="auto"))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model": "resnet51"}, UsageError, "no model 'resnet51'"),
        ({"model": "no.such.module:make"}, UsageError, "no.such.module"),
        ({"data": "/no/such/folder"}, SourceError, "/no/such/folder"),
        ({"device": "tpu"}, UsageError, "no device 'tpu'"),
        ({"device": "sim:z80"}, UsageError, "no simulated device 'z80'"),
        ({"batch_size": 0}, UsageError, "--batch-size"),
        ({"batch_size": 1000}, SourceError, "fewer than one batch"),
        ({"precision": "fp16"}, UsageError, "fp16 needs a GPU"),
        ({"resume": "/no/such/checkpoint"}, StateError, "/no/such/checkpoint"),
    ],
)
def test_wrong_options_raise_before_training(options: Options, changes, error, words: str) -> None:
    with pytest.raises(error, match=words):
        train(replace(options, **changes))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_without_a_gpu_raises(options: Options) -> None:
    with pytest.raises(UsageError, match="no CUDA GPU"):
        train(replace(options, device="cuda"))


def test_a_dry_run_of_too_few_images_is_refused(options: Options, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--model", "resnet20", "--data", options.data, "--out", options.out, "--device", "cpu", "--dry-run"]
    assert main([*words, "--batch-size", "1000"]) == 1
    printed = capsys.readouterr().err
    assert "fewer than one batch of 1000" in printed and "hint: --batch-size " in printed


def test_one_class_and_unequal_classes_are_refused(options: Options, data: Path, tmp_path: Path) -> None:
    one = tmp_path / "one" / "only"
    one.mkdir(parents=True)
    (one / "a.jpg").write_bytes((data / "train/red/0.jpg").read_bytes())
    with pytest.raises(SourceError, match="one class only"):
        train(replace(options, data=str(tmp_path / "one")))
    with pytest.raises(SourceError, match=r"one has classes that the training data lacks: only"):
        train(replace(options, data=str(data / "train"), val=str(tmp_path / "one")))


def test_a_validation_set_without_some_classes_has_the_labels_of_the_training_set(
    options: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    val = tmp_path / "val"
    shutil.copytree(Path(options.data) / "val" / "red", val / "red")
    (val / "green").mkdir()
    remarks: list[str] = []
    changed = replace(options, model="tiny:make", data=f"{options.data}/train", val=str(val), epochs=1)
    result = train(changed, on_progress=lambda progress: remarks.append(progress.remark or ""))
    assert f"note: {val} has no images of 2 of the 3 classes: blue, green; its labels are the training data's" in remarks
    assert result.scores is not None and result.scores.images == 7
    capsys.readouterr()
    assert main(["evaluate", options.out, "--model", "tiny:make", "--data", str(val), "--device", "cpu", "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)["per_class"]
    assert [(row["class"], row["images"]) for row in evaluated] == [("blue", 0), ("green", 0), ("red", 7)]  # red is not 0


def test_images_left_out_of_each_epoch_are_reported_with_a_batch_size_that_leaves_out_fewer(options: Options) -> None:
    remarks: list[str] = []
    train(replace(options, batch_size=40, steps=1), on_progress=lambda progress: remarks.append(progress.remark or ""))
    (note,) = [remark for remark in remarks if "left out of each epoch" in remark]
    assert "8 of 48 images" in note and "--batch-size 24 leaves out 0" in note
    assert left_out_note(500, 256, ranks=1) == (
        "244 of 500 images are left out of each epoch, others each time: they fill no batch of 256; "
        "--batch-size 250 leaves out 0"
    )
    assert left_out_note(1_281_167, 256, ranks=8) is None


def test_more_epochs_continue_a_finished_run_with_the_schedule_of_all_epochs(options: Options) -> None:
    options = replace(options, model="tiny:make")
    train(replace(options, epochs=1))
    with pytest.raises(UsageError, match="has finished its 1 epoch") as caught:
        train(replace(options, epochs=1))
    assert "--epochs 2 continues it" in (caught.value.hint or "")
    remarks: list[str] = []
    result = train(replace(options, epochs=3), on_progress=lambda progress: remarks.append(progress.remark or ""))
    assert (result.resumed_from_step, result.steps) == (6, 18)
    (note,) = [remark for remark in remarks if "continuing a finished run" in remark]
    rate = learning_rate(6, peak=options.optimization.peak_rate(8), schedule="cosine", warmup_steps=3, total_steps=18)
    assert f"to 3 epochs, from step 6: the learning rate is that of a run of 3 epochs at this step, {rate:.3g}" in note
    grown = replace(options, epochs=6, resume="auto")
    assert train(grown).resumed_from_step == 18


def test_data_without_labels_says_where_they_were_looked_for(options: Options, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "plain.tar", "w") as archive:
        for number in range(3):
            archive.add(Path(options.data) / f"train/red/{number}.jpg", f"{number}.v2.jpg")
    with pytest.raises(SourceError, match="holds no labels") as caught:
        train(replace(options, data=str(tmp_path / "plain.tar")))
    assert "KEY.cls" in (caught.value.hint or "") and "first dot" in (caught.value.hint or "")


def test_divergence_raises_and_names_the_last_good_checkpoint(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "LOG_STEPS", 1)
    wild = replace(options, optimization=OptimizationOptions(learning_rate=1e12, warmup_epochs=0), checkpoint_steps=1)
    with pytest.raises(HeadraceError, match=r"the loss is (nan|inf).*last good checkpoint is .*step-") as caught:
        train(wild)
    assert "--learning-rate" in (caught.value.hint or "")


def test_a_simulated_device_is_named_in_output_and_checkpoint(options: Options, capsys, monkeypatch) -> None:
    monkeypatch.setattr(trainer, "LOG_STEPS", 2)
    arguments = ["--data", options.data, "--out", options.out, "--batch-size", "8", "--image-size", "64", "--threads", "1"]
    assert main(["train", "--model", "resnet50", "--device", "sim:a100", "--steps", "14", "--json", *arguments]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert f" img, {document['img_s']:,.1f} img/s (steps alone), " in printed.err.splitlines()[-1]  # no start-up in it
    assert document["device"] == "simulated A100" and document["simulated"] is True
    assert document["steps"] == 14 and document["top1"] is not None
    assert 0 < document["img_s"] <= 2470 and 0 <= document["wait_share"] <= 1
    assert Path(document["final"]).is_file() and Path(document["checkpoint"]).is_dir()
    header = checkpoint.load(Path(document["checkpoint"]))
    assert header.state["identity"]["simulated"] is True


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_counts_each_image_once(data: Path, world_size: int) -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 3))
    images, right = 0, 0.0
    for rank in range(world_size):
        loader = Loader(
            data / "val", 4, CenterCrop(16), dtype="float32", shuffle=False, drop_last=False, rank=rank, world_size=world_size
        )
        with loader:
            scores = evaluate(model, loader, device="cpu")
        assert scores is not None
        images += scores.images
        right += scores.top1 * scores.images
    assert images == 21
    with Loader(data / "val", 21, CenterCrop(16), dtype="float32", shuffle=False, drop_last=False) as whole:
        everything = evaluate(model, whole, device="cpu")
    assert everything is not None and right == pytest.approx(everything.top1 * 21)


def test_learning_rate_is_a_function_of_the_step() -> None:
    rates = [learning_rate(step, peak=2.0, warmup_steps=4, total_steps=20) for step in range(20)]
    assert rates[:4] == pytest.approx([0.4, 0.8, 1.2, 1.6])
    assert rates[4] == 2.0
    assert rates[12] == pytest.approx(1.0)
    assert all(late < early for early, late in itertools.pairwise(rates[4:]))
    assert learning_rate(20, peak=2.0, warmup_steps=4, total_steps=20) == pytest.approx(0)


def test_norms_and_biases_do_not_decay() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(4, 2))
    decayed, plain = make_optimizer(model, OptimizationOptions(weight_decay=0.5), fused=False).param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.5, 0.0)
    assert [one.ndim for one in decayed["params"]] == [4, 2]
    assert all(one.ndim == 1 for one in plain["params"])


@pytest.mark.parametrize(("name", "parameters"), [("resnet20", 0.27e6), ("resnet56", 0.85e6), ("resnet18", 11.17e6)])
def test_models_for_small_images_have_the_papers_sizes(name: str, parameters: float) -> None:
    """Parameter counts: He et al., table 6; ResNet-18 with a 3 x 3 stem as commonly used for CIFAR."""
    model = factory.build_model(name, classes=10, image_size=32)
    assert sum(one.numel() for one in model.parameters()) == pytest.approx(parameters, rel=0.02)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_a_user_factory_builds_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mine", type(sys)("mine"))
    sys.modules["mine"].make = lambda num_classes: torch.nn.Linear(3, num_classes)  # type: ignore[attr-defined]
    assert factory.build_model("mine:make", classes=7, image_size=224).out_features == 7


def test_a_run_of_one_step_says_step(options: Options, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "resnet18", "--device", "sim:a100", "--steps", "1", "--threads", "1", "--batch-size", "8"]
    assert main(["train", "--data", options.data, "--out", options.out, *arguments]) == 0
    assert "finished after 1 step (" in capsys.readouterr().out


def test_the_command_writes_a_report(options: Options, capsys, monkeypatch) -> None:
    monkeypatch.setattr(trainer, "LOG_STEPS", 2)
    arguments = ["--model", "resnet18", "--device", "sim:a100", "--steps", "12", "--threads", "1"]
    assert main(["train", "--data", options.data, "--out", options.out, "--batch-size", "8", "--json", *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    page = Path(document["report"]).read_text()
    assert "resnet18 on simulated A100" in page and "images per second" in page


def test_an_undecodable_image_ends_the_run_or_is_replaced_and_counted(data: Path, options: Options, tmp_path: Path) -> None:
    shutil.copytree(data / "train", tmp_path / "train")
    broken = tmp_path / "train" / "red" / "3.jpg"
    broken.write_bytes(broken.read_bytes()[:150])
    damaged = replace(options, data=str(tmp_path / "train"), epochs=2)
    with pytest.raises(DecodeError, match=r"red/3\.jpg"):
        train(damaged)
    found, _ = checkpoint.newest(Path(options.out) / "checkpoints")
    stopped_at = found.state["step"] if found is not None else 0
    result = train(replace(damaged, on_error="skip", resume="auto"))
    assert result.resumed_from_step == stopped_at > 0  # the steps before the bad image are not lost
    assert result.skipped == 2  # once an epoch


def test_a_second_run_in_the_same_folder_raises(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "LOG_STEPS", 1)
    reported: list[str] = []

    def start_another(progress: TrainingProgress) -> None:
        if progress.step == 1:
            with pytest.raises(UsageError, match="another run is writing") as caught:
                train(replace(options, resume="auto"))
            reported.append(caught.value.hint or "")

    train(replace(options, steps=2), on_progress=start_another)
    assert reported == ["wait for it, stop it, or choose another --out"]
