"""Trainings of trials: what is read from a run, what is expected of workers and ranks, and stored datasets."""

from __future__ import annotations

import argparse
import http.client
import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import headrace
import pytest
from headrace.cli.cloud import trials
from headrace.errors import HeadraceError
from headrace.trials.experiment.cells import Cell, load
from headrace.trials.inputs.object_server import ObjectServer
from headrace.trials.inputs.storage import open_stored
from headrace.trials.measuring import runner
from headrace.trials.measuring.measure_ranks import shared_batches
from headrace.trials.measuring.measure_training import epochs_of, steady_rate, train_command
from headrace.trials.measuring.processes import _last_words
from headrace.trials.pages import charts, summary
from headrace.trials.results import outputs
from headrace.trials.results.outputs import gain_text, loss_text
from headrace.trials.results.row import Row
from headrace.trials.results.worker_model import expected_rate, with_expected_rates
from PIL import Image

LINES = [
    {"seconds": 0.1, "step": 0, "total_steps": 4},
    {"seconds": 3.0, "step": 2, "epoch": 0, "loss": 9.9},
    {"seconds": 4.0, "step": 2, "epoch": 0, "evaluation": {"top1": 0.25, "loss": 2e9}, "training_loss": 2.5},
    {"seconds": 6.5, "step": 4, "epoch": 1, "evaluation": {"top1": 0.75, "loss": 1.4}, "training_loss": 1.5},
]


def test_epochs_are_read_from_the_metrics_of_a_run(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    epochs = epochs_of(file, 100)
    assert [epoch["epoch"] for epoch in epochs] == [1, 2]
    assert [epoch["seconds"] for epoch in epochs] == [4.0, 2.5]
    assert [(epoch["loss"], epoch["top1"]) for epoch in epochs] == [(2.5, 0.25), (1.5, 0.75)]
    assert steady_rate(epochs, 100) == pytest.approx(40.0)
    file.write_text(json.dumps(LINES[0]) + "\n")
    with pytest.raises(HeadraceError, match="no epoch"):
        epochs_of(file, 100)


def test_the_command_of_a_training_parses() -> None:
    from headrace.cli.train import train

    for name in ("batch-size", "amp", "ddp", "accuracy"):
        for cell in load(name).cells:
            if cell.loader != "pytorch":
                parser = argparse.ArgumentParser()
                train.add_arguments(parser)
                parser.add_argument("--json", action="store_true")
                arguments = train_command(cell, Path("a"), Path("b"), Path("c"), "cpu")
                found = parser.parse_args(arguments[1:])
                assert found.warmup_epochs == 1
                assert found.batch_size * found.processes == cell.batch_size  # any number of ranks takes the same steps


def test_ranks_that_read_the_same_batches_are_counted() -> None:
    assert shared_batches([["a", "b"], ["c", "d"]]) == 0
    assert shared_batches([["a", "b"], ["a", "d"]]) == 1
    assert shared_batches([["a", "b"], ["x", "b"], ["a", "z"]]) == 2


def one_worker(**values: float) -> Row:
    return Row("pytorch", "resnet50", 1, 32, "corrected", workers=1, img_s=50, **({"ingest_img_s": 50.0, "compute_img_s": 370.0,
               "cpu_ms": 10.0, "own_cpu_ms": 0.0, "handover_ms": 0.0} | values))  # fmt: skip


def test_expected_rates_grow_with_workers_until_cores_or_computing_bind() -> None:
    assert expected_rate(one_worker(), 2, 8) == pytest.approx(100, rel=0.001)
    assert expected_rate(one_worker(), 16, 2) == pytest.approx(200, rel=0.001)  # 10 ms an image on two cores
    assert expected_rate(one_worker(), 16, 64) == pytest.approx(370, rel=0.01)
    four = Row("pytorch", "resnet50", 1, 32, "corrected", workers=4, img_s=180)
    found = with_expected_rates([one_worker(), four], 2)
    assert found[0].expected_img_s is None and found[1].expected_img_s == pytest.approx(200, rel=0.01)
    assert with_expected_rates([replace(one_worker(), handover_ms=None), four], 2)[1].expected_img_s is None


def test_the_time_to_take_over_a_batch_adds_to_computing_however_many_workers_there_are() -> None:
    one = one_worker(ingest_img_s=200.0, cpu_ms=5.0, handover_ms=4.0)
    free = 32 / (32 / 370 + 0.004)
    assert expected_rate(one, 16, 64) == pytest.approx(free, rel=0.001)
    busy = 0.16 / (32 / 370 + 0.004)  # workers that compute meanwhile, of any number of them
    shared = 32 / (32 / 370 + 0.004 * (busy + 1) / 2)
    assert expected_rate(one, 4, 2) == expected_rate(one, 7, 2)
    assert 0.96 * shared < (expected_rate(one, 7, 2) or 0) < shared < free  # steps vary: the two sides wait for each other


#: Rates of the input alone and CPU times with one worker, and rates of training with more, in images/s and ms: measured on two
#: quiet cores of an AMD EPYC with `headrace trials` (ResNet-50 at 366 images/s, batches of 32, simulated).
MEASURED = [
    (one_worker(ingest_img_s=237.9, compute_img_s=365.7, cpu_ms=4.92, own_cpu_ms=0.41, handover_ms=4.44),
     {2: 325.8, 4: 314.4, 7: 327.7}),
    (one_worker(ingest_img_s=18.0, compute_img_s=365.7, cpu_ms=6.11, own_cpu_ms=0.47, handover_ms=5.2), {8: 139.7}),
]  # fmt: skip


@pytest.mark.parametrize(("one", "measured"), MEASURED)
def test_expected_rates_are_within_ten_per_cent_of_what_was_measured(one: Row, measured: dict[int, float]) -> None:
    for workers, rate in measured.items():
        assert expected_rate(one, workers, 2) == pytest.approx(rate, rel=0.1)


def trained(loader: str, batch: int, epoch: int, elapsed: float, top1: float) -> Row:
    return Row(loader, "resnet20", 1, batch, "corrected", epoch=epoch, elapsed_s=elapsed, top1=top1, loss=1.0, img_s=100.0,
               seconds_per_epoch=elapsed / epoch, workers=2)  # fmt: skip


def test_time_to_accuracy_names_the_first_epoch_that_reaches_it() -> None:
    rows = [trained("headrace", 32, 1, 10, 0.5), trained("headrace", 32, 2, 20, 0.95), trained("headrace", 256, 2, 8, 0.6)]
    reached, late = summary._trainings(rows)
    assert "85.5 % top-1" in reached and "reached after: batch 32: 20 s, 2 epochs." in reached
    assert "batch 256" not in reached and late.endswith(": batch 256.")
    assert len(summary._trainings(rows[:2])) == 1


def test_time_is_drawn_to_scale_however_few_epochs_there_are() -> None:
    rows = [trained("headrace", 32, epoch, seconds, 0.5) for epoch, seconds in ((1, 10.0), (2, 90.0), (3, 100.0))]
    (chart,) = [each for each in charts.charts_of(rows, "batch_size") if each.name == "top1-time"]
    first, second, third = (float(x) for x in re.findall(r'<circle cx="([0-9.]+)"', charts.svg(chart)))
    assert second - first == pytest.approx(8 * (third - second), rel=0.01)


def test_the_notes_of_a_training_speak_of_epochs_and_not_of_seconds(tmp_path: Path) -> None:
    settings = runner.Settings(tmp_path, None, 0.1, None, "cpu", 60.0)
    for name, words in (("ddp", "Each row is one epoch of one training"), ("dali", "one measurement of about 4.0 s")):
        notes = " ".join(summary.notes_of(runner.Run(load(name), settings, (), {}, 4.0, 1.0), [], None))
        assert words in notes and ("about 4.0 s" in notes) == (name == "dali")


def test_rows_of_a_training_say_what_distinguishes_them() -> None:
    row = replace(trained("headrace", 32, 1, 10, 0.5), precision="amp", ranks=2, recipe="fast")
    assert outputs.cells_of(row)[outputs.COLUMNS.index("data")] == "folder, 2 workers, fast, amp, 2 ranks"


def test_losses_and_gains_are_readable_where_they_are_extreme() -> None:
    assert [loss_text(loss) for loss in (1.2345, 8.224e13)] == ["1.234", "8.2e+13"]
    assert [gain_text(gain) for gain in (43.75, -7.2, -3369.2)] == ["43.8 %", "-7.2 %", "34.7 × as long"]


def test_trainings_have_charts_over_epochs_and_over_time() -> None:
    rows = [trained("headrace", batch, epoch, 10.0 * epoch, 0.3 * epoch) for batch in (32, 256) for epoch in (1, 2, 3)]
    drawn = {chart.name: chart for chart in charts.charts_of(rows, "batch_size")}
    assert set(drawn) == {"top1-epochs", "top1-time", "loss-epochs", "rate"}
    assert drawn["top1-time"].series[0].points == ((10.0, 30.0), (20.0, 60.0), (30.0, pytest.approx(90.0)))
    many = [trained("headrace", 32, epoch, 7.0 * epoch, 0.01 * epoch) for epoch in range(1, 20)]
    text = charts.svg(charts.charts_of(many, "batch_size")[1])
    assert text.count("<circle") == 19 and text.count("<text") < 16  # a continuous axis


@pytest.mark.parametrize("form", ["pipe", "s3"])
def test_a_packed_dataset_is_the_same_from_a_pipe_and_from_a_store(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("obstore",) if form == "s3" else ():
        pytest.importorskip(package)
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "HEADRACE_CACHE"):
        monkeypatch.setenv(name, "")  # restores what the function sets
    tree, packed = tmp_path / "tree", tmp_path / "packed"
    for label in ("cat", "dog"):
        (tree / label).mkdir(parents=True)
        for number in range(8):
            Image.new("RGB", (64, 48), (60 + 20 * number, len(label), ord(label[0]))).save(tree / label / f"{number}.jpg")
    headrace.pack(tree, packed)

    def read(loader: headrace.Loader[Any]) -> set[tuple[bytes, int]]:
        return {
            (image.numpy().tobytes(), int(label))
            for images, labels in loader
            for image, label in zip(images, labels, strict=True)
        }

    transform = headrace.transforms.Resize((32, 32))
    local = read(headrace.Loader(packed, 4, transform, threads=1))
    assert len(local) == 16
    shuffle = "block:64MiB" if form == "pipe" else True
    with headrace.Loader(open_stored(packed, form), 4, transform, shuffle=shuffle, threads=1) as loader:
        for _ in range(2):
            assert read(loader) == local


def test_the_object_store_gives_ranges_of_files_below_its_folder_only(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"no")
    folder = tmp_path / "data"
    (folder / "a folder").mkdir(parents=True)
    (folder / "a folder" / "shard.tar").write_bytes(bytes(range(200)))
    (folder / "link").symlink_to(tmp_path / "secret")
    with ObjectServer(folder, 0.0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def answer(method: str, path: str, asked: str | None = None) -> tuple[int, bytes, str | None]:
            connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
            try:
                connection.request(
                    method, path.replace("/bucket", f"/{server.bucket}"), headers={"Range": asked} if asked else {}
                )
                response = connection.getresponse()
                return response.status, response.read(), response.getheader("Content-Range")
            finally:
                connection.close()

        assert answer("GET", "/bucket/a%20folder/shard.tar") == (200, bytes(range(200)), None)
        assert answer("GET", "/bucket/a%20folder/shard.tar", "bytes=10-19") == (206, bytes(range(10, 20)), "bytes 10-19/200")
        assert answer("GET", "/bucket/a%20folder/shard.tar", "bytes=190-") == (206, bytes(range(190, 200)), "bytes 190-199/200")
        assert answer("HEAD", "/bucket/a%20folder/shard.tar")[:2] == (200, b"")
        assert answer("GET", "/bucket/a%20folder/shard.tar", "bytes=200-300")[0] == 416
        assert answer("PUT", "/bucket/new")[0] == 405 and not (folder / "new").exists()
        for outside in ("/bucket/../secret", "/bucket/%2e%2e/secret", "/bucket/link", "/bucket/", "/", "/bucket/%00"):
            assert answer("GET", outside)[0] == 404
        for others in ("/", "/trials/", "/x-bucket/", "//", "/%ff/"):  # any user of the machine may connect
            assert answer("GET", f"{others}a%20folder/shard.tar")[0] == 404
        server.shutdown()


def test_a_cell_of_a_training_is_no_input_cell() -> None:
    assert load("amp").kind == "training" and load("dali").kind == "input"
    assert Cell(precision="amp") in {Cell(precision=cell.precision) for cell in load("amp").cells}


def test_the_price_of_an_accuracy_counts_all_epochs_until_then() -> None:
    row = Row("headrace", "resnet20", 1, 64, "corrected", epoch=2, seconds_per_epoch=4.0, elapsed_s=10.0, top1=0.9)
    (priced, *_) = summary._trainings([replace(row, usd_per_epoch=0.004)])
    assert "10 s, 2 epochs, $0.0100" in priced
    assert "$" not in summary._trainings([row])[0]


def test_a_failed_training_is_named_by_its_error_and_not_by_its_hint() -> None:
    assert _last_words("warning\nerror: 48 images are no batch\nhint: --batch-size 48\n") == "48 images are no batch"
    assert _last_words("Traceback\nValueError: x\n\n") == "ValueError: x"
    assert _last_words("Traceback\nheadrace.errors.UsageError: no batch\n") == "no batch"  # the class is ours
    assert _last_words("Traceback\nheadrace.trials.processes.GroupTimeout: x: y\n") == "x: y"
    assert _last_words("Traceback\nheadrace.toml: x\n") == "headrace.toml: x"
    assert _last_words("") == "no message"


def finished(name: str, settings: runner.Settings) -> runner.Run:
    return runner.Run(load(name), settings, (), {}, 4.0, 1.0)


@pytest.mark.parametrize(
    ("own", "batch_size", "words"),
    [
        (False, None, None),
        (True, None, "published data set, and --data chose another"),
        (False, 64, "published batch size, and --batch-size chose another"),
        (True, 64, "published data set and batch size, and --data and --batch-size chose another"),
    ],
)
def test_published_numbers_beside_other_images_or_batches_are_not_comparable(
    own: bool, batch_size: int | None, words: str | None, tmp_path: Path
) -> None:
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "val").mkdir()
    settings = runner.Settings(tmp_path, tmp_path if own else None, 0.1, None, "cpu", 60.0, batch_size=batch_size)
    row = Row("pytorch", "resnet18", 1, 64, "corrected", img_s=100.0, published_s=41.67)
    found = [each for each in summary.sentences_of(finished("dali", settings), [row]) if "image for image" in each]
    assert (words in found[0] and len(found) == 1) if words else not found
    assert not any("image for image" in each for each in summary.sentences_of(finished("dali", settings), []))


@pytest.mark.parametrize(("name", "words"), [("dali", "training images."), ("accuracy", "says nothing about new images.")])
def test_a_folder_without_validation_images_is_named(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    for number in range(2):
        (tmp_path / "cat" / f"{number}.jpg").touch()
    settings = runner.Settings(tmp_path / "out", tmp_path, 0.1, None, "cpu", 60.0)
    (found,) = [each for each in summary.sentences_of(finished(name, settings), []) if "no folder val" in each]
    assert str(tmp_path) in found and found.endswith(words)
    made = summary.sentences_of(finished(name, replace(settings, own=None)), [])
    assert not any("no folder val" in each for each in made)


def test_a_batch_size_that_the_experiment_has_is_no_other_one(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    trials.add_arguments(parser)
    for size, other in ((32, None), (64, 64)):
        args = parser.parse_args(["dali", "--simulate", "v100", "--batch-size", str(size), "--out", str(tmp_path)])
        assert trials._settings(args, trials._experiment(args)).batch_size == other


def test_names_of_others_are_no_formulas_in_pictures(tmp_path: Path) -> None:
    """What lies between two $ is a formula for matplotlib, and a wrong one ended the run after its measurements."""
    pytest.importorskip("matplotlib")
    name = r"$\frac{$"
    for x in (name, 3.0):
        chart = charts.Chart("chart", name, name, name, (charts.Series(name, ((x, 2.0),)),))
        assert charts.write_png(chart, tmp_path / "chart.png")
