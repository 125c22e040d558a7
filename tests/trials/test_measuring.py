"""How trials measure: passes, simulated steps, pixels, projection, gains. The arithmetic, without a benchmark."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from headrace.errors import HeadraceError, UsageError
from headrace.trials.experiment import accelerator, cells
from headrace.trials.experiment.cells import Cell, Experiment
from headrace.trials.experiment.pixels import compare_pixels
from headrace.trials.experiment.source import Source
from headrace.trials.experiment.verdicts import percentile
from headrace.trials.inputs import containers
from headrace.trials.inputs.materials import Materials
from headrace.trials.measuring import loaders, measure_input, runner
from headrace.trials.measuring.loaders import missing
from headrace.trials.measuring.measure_input import ROUNDS, Pass, _Job, measure_pass, steady_part
from headrace.trials.measuring.processes import GroupTimeout
from headrace.trials.pages import charts
from headrace.trials.results import outputs
from headrace.trials.results.projection import Projection
from headrace.trials.results.row import Row
from headrace.trials.results.rows import with_gains


def test_rates_of_other_models_are_estimated_by_their_operations() -> None:
    assert accelerator.rate_of("v100", "resnet50", "fp32") == (367.0, accelerator.SIMULATED_GPUS["v100"]["fp32"][1])
    rate, source = accelerator.rate_of("v100", "resnet18", "fp32")
    assert rate == pytest.approx(367 * 4.09 / 1.82)
    assert source.startswith("estimated")
    for arguments in (("v99", "resnet50", "fp32"), ("h100", "resnet50", "fp32"), ("v100", "vgg", "fp32")):
        with pytest.raises(UsageError):
            accelerator.rate_of(*arguments)


def test_a_simulated_step_takes_its_time_and_the_hosts_cpu_time() -> None:
    device = accelerator.SimulatedAccelerator("resnet50", 400.0, "test")
    began, cpu = time.monotonic(), time.thread_time()
    device.train(None, [0] * 32)
    assert time.monotonic() - began >= 32 / 400
    assert time.thread_time() - cpu >= device.host_s
    begin, end = device.busy[0]
    assert end - begin == pytest.approx(32 / 400)
    device.evaluate(None, [0] * 30)
    begin, end = device.busy[1]
    assert end - begin == pytest.approx(30 / 400 / 3)


def test_busy_shares_are_those_of_each_window() -> None:
    shares = accelerator.busy_shares([(0.0, 0.25), (0.75, 1.5)], 0.0, 2.0, window_s=0.5)
    assert shares == pytest.approx([0.5, 0.5, 1.0, 0.0])


def test_a_steady_rate_counts_whole_rounds_whatever_the_phase_of_the_workers() -> None:
    together = [5.0 + 2.0 * (number // 2) for number in range(6)]  # two workers, two seconds a batch, done at the same time
    assert steady_part(together, [10] * 6, 2) == (40, pytest.approx(4.0), 2)
    in_turn = [5.0 + number for number in range(6)]
    assert steady_part(in_turn, [10] * 6, 2) == (40, pytest.approx(4.0), 2)
    assert steady_part([1.0, 1.0], [10] * 2, 2) == (0, 0.0, 0)


def test_a_steady_rate_leaves_out_the_rounds_that_fill_and_that_drain() -> None:
    seconds = [9.0, 9.0, *[2.0] * 11, 7.0]  # rounds of three workers: queues fill, steady, workers run out of work
    arrivals, now = [], 0.0
    for taken in seconds:
        arrivals += [now] * 3
        now += taken
    assert steady_part([*arrivals, now], [10] * (len(arrivals) + 1), 3) == (330, pytest.approx(22.0), 11)


def test_a_pass_has_its_start_and_the_cpu_time_of_taking_over_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, used, asked = [0.0], [0.0], [0]

    def thread_time() -> float:
        asked[0] += 1
        return used[0]

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "thread_time", thread_time)

    def batches() -> Iterator[Any]:
        for seconds in (5.0, *[1.0] * 8):
            clock[0] += seconds
            used[0] += 0.01 if seconds == 1.0 else 3.0  # the first starts the workers
            yield None, [0] * 10

    def step(images: Any, labels: Any) -> None:
        used[0] += 0.5

    found = measure_pass([batches()], step, together=2, ask_handover=True)
    assert found.images == 90 and found.first_s == 5.0 and found.img_s == pytest.approx(10.0)
    assert found.handover_s == pytest.approx(0.01)
    asked[0] = 0
    assert measure_pass([batches()], step, together=2).handover_s is None
    assert asked[0] <= 1  # asking may cost the thread its core, just before the step
    with pytest.raises(UsageError):
        measure_pass([[]], step, together=1)


def test_the_start_of_a_further_epoch_is_no_part_of_a_passs_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, used = [0.0], [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "thread_time", lambda: used[0])

    def epoch(start_s: float) -> Iterator[Any]:
        for seconds in (start_s, *[1.0] * 20):
            clock[0] += seconds
            used[0] += 0.01 if seconds == 1.0 else 3.0
            yield None, [0] * 10

    found = measure_pass([epoch(5.0), epoch(50.0)], lambda images, labels: None, together=2, ask_handover=True)
    assert (found.images, found.first_s, found.seconds) == (420, 5.0, 95.0)
    assert found.img_s == pytest.approx(10.0) and found.handover_s == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("workers", "longest_s", "rate", "batches"),
    [
        (8, 31.0, 130.0, 14 * 8),  # slow batches: each worker's rounds, where there is time
        (8, 4.0, 130.0, 16),  # no time for them: two a worker
        (1, 4.0, 0.0, 4),  # nothing known yet
        (1, 4.0, 400.0, 40),  # fast batches: as many as four seconds hold, in half octaves
        (7, 20.0, 366.0, 14 * 7),
    ],
)
def test_a_pass_is_long_enough_for_ten_batches_of_each_worker(
    workers: int, longest_s: float, rate: float, batches: int, tmp_path: Path
) -> None:
    cell = cells.Cell(batch_size=32, workers=workers)
    job = _Job({"longest_s": longest_s}, cell, Materials(tmp_path, 100, 0), workers)
    images = job.images_in(4.0, rate)
    assert images == 32 * batches and job.longest_epoch >= min(images, 2048)
    rounds = steady_part([float(number) for number in range(batches)], [32] * batches, workers)[2]
    assert rounds >= 10 or batches < 14 * workers


def test_the_budget_of_slow_source_leaves_time_for_the_rounds_of_its_workers() -> None:
    experiment = cells.load("slow-source")
    longest_s = runner._allowed_seconds(60 * experiment.budget_minutes, runner._groups(experiment))
    assert 0.9 * 20 * longest_s >= ROUNDS * 32  # images of a worker; a read sleeps for 50 ms


def test_the_rate_is_that_of_a_training_that_nothing_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording: list[bool] = [False]
    passes: list[bool] = []

    class Recorder:
        def __init__(self, folder: Path, *, report: bool) -> None:
            assert folder == tmp_path / "resnet18" and not report

        def start(self) -> None:
            recording[0] = True

        def end(self) -> None:
            recording[0] = False

    def measure(batches: Any, step: Any, *, together: int) -> Pass:
        passes.append(recording[0])
        rate = 90.0 if recording[0] else 100.0
        return Pass(64, 1.0, 0.1, rate, 0.01, 0.01, 0.001, 0.0, 1.0, 2)

    monkeypatch.setattr("headrace.profiling.in_process.Watch", Recorder)
    monkeypatch.setattr(measure_input, "measure_pass", measure)
    monkeypatch.setattr(measure_input._Job, "prepared", lambda *_: iter(()))
    spec = {"seconds": 0.1, "longest_s": 0.1, "sessions": str(tmp_path), "gpu": "v100"}
    job = _Job(spec, Cell(model="resnet18"), Materials(tmp_path, 100, 0), 1)
    found = measure_input._model(job, job.cell, {"ingest": {"img_s": 300.0}})
    assert passes == [False, True]
    assert found["train"]["img_s"] == 100.0 and found["recorded_img_s"] == 90.0


@pytest.mark.parametrize(("shift", "equal"), [(0, True), (1, True), (3, False)])
def test_pixels_count_as_the_same_work_up_to_one_level(tmp_path: Path, shift: int, equal: bool) -> None:
    pixels = np.random.default_rng(0).integers(0, 250, (4, 3, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "one.npy", pixels)
    np.save(tmp_path / "two.npy", pixels + np.uint8(shift))
    found = compare_pixels(tmp_path / "one.npy", tmp_path / "two.npy")
    assert found["equal"] is equal and found["mean_levels"] == shift
    assert ("bit for bit" in found["words"]) is (shift == 0)


def test_the_projection_takes_the_slower_of_input_and_computing() -> None:
    other = Projection(8, 0.5, 0.4, 0.6, "test")
    row = Row("pytorch", "none", 1, 32, "corrected", cpu_ms=8.0, val_cpu_ms=4.0, compute_img_s=1000.0)
    slow = other.of(row, (1000, 300))
    assert slow.projected_s == pytest.approx(1000 * 0.008 / 0.5 / 8 + 300 * 0.004 / 0.5 / 8)
    assert slow.projected_low_s is not None and slow.projected_high_s is not None
    assert slow.projected_low_s < slow.projected_s < slow.projected_high_s
    fast = other.of(replace(row, cpu_ms=0.1, val_cpu_ms=0.1), (1000, 300))
    assert fast.projected_s == pytest.approx(1.0 + 0.1)  # computing: a validation image is a third of a training image


def test_gain_is_relative_to_the_reference_of_the_same_model_load_and_mode() -> None:
    def row(loader: str, load: int, seconds: float | None) -> Row:
        return Row(loader, "resnet18", load, 32, "corrected", seconds_per_epoch=seconds)

    rows = [row("pytorch", 1, 40.0), row("pytorch", 12, 80.0), row("headrace", 12, 20.0), row("run", 1, None)]
    gains = [each.gain_percent for each in with_gains(rows, {"loader": "pytorch"})]
    assert gains == [0.0, 0.0, 75.0, None]


def test_percentiles_interpolate() -> None:
    assert percentile([0.0, 1.0], 50) == 0.5
    assert percentile([3.0, 1.0, 2.0], 95) == pytest.approx(2.9)


@pytest.mark.parametrize("form", ["tar", "recordio", "tfrecord"])
def test_containers_hold_the_images_and_labels_of_the_tree(tmp_path: Path, form: str) -> None:
    import headrace
    from PIL import Image

    for label, name in enumerate(("cat", "dog", "eel")):
        (tmp_path / "tree" / name).mkdir(parents=True)
        for number in range(3):
            color = (80 * label, 100, 40 * number)
            Image.new("RGB", (40, 30), color).save(tmp_path / "tree" / name / f"{number}-{label}.jpg")
    (tmp_path / "out").mkdir()
    data = headrace.open(containers.write_container(form, tmp_path / "tree", tmp_path / "out"))
    assert len(data) == 9
    files = sorted((file.name, label, file) for label, name in enumerate(("cat", "dog", "eel"))
                   for file in (tmp_path / "tree" / name).iterdir())  # fmt: skip
    assert [data.read(number) for number in range(9)] == [file.read_bytes() for _, _, file in files]
    assert [int(label) for label in data.targets] == [label for _, label, _ in files]


def test_charts_draw_each_series_and_escape_names() -> None:
    rows = [
        Row("pytorch", "resnet18", load, 32, "corrected", seconds_per_epoch=10.0 * load, img_s=100.0, published_s=9.0)
        for load in (1, 4, 12)
    ]
    drawn = {chart.name: chart for chart in charts.charts_of(rows, "load")}
    seconds = drawn["seconds-resnet18-corrected"]
    assert [(series.name, series.dashed) for series in seconds.series] == [("pytorch", False), ("published, pytorch", True)]
    text = charts.svg(replace(seconds, title="<b>"))
    assert text.count("<polyline") == 2 and "&lt;b&gt;" in text and "<b>" not in text


def test_more_names_than_labels_of_an_axis_are_bars() -> None:
    """It was an error: names were drawn on an axis of numbers."""
    rows = [Row(loader, "resnet18", 1, 32, "corrected", seconds_per_epoch=9.0, img_s=9.0) for loader in cells.LOADERS]
    assert len(rows) > charts.MOST_LABELS
    for chart in charts.charts_of(rows, "loader"):
        text = charts.svg(chart)
        assert text.count("<rect") == len(rows) and all(f">{row.loader}<" in text for row in rows)


def test_a_chart_without_a_point_is_an_empty_frame() -> None:
    chart = charts.Chart("top1-time", "Accuracy", "seconds", "per cent", (charts.Series("a", ()),), continuous=True)
    assert charts.svg(chart).count("<circle") == 0 and "Accuracy" in charts.svg(chart)


def test_a_loader_has_one_colour_in_all_charts_of_a_page() -> None:
    gains = {"pytorch": 0.0, "headrace": 50.0, "run": 30.0}  # the reference has no gain, so its chart has fewer series
    rows = [
        Row(loader, "resnet18", load, 32, "corrected", seconds_per_epoch=9.0, img_s=9.0, gain_percent=gain, published_s=8.0)
        for loader, gain in gains.items()
        for load in (1, 12)
    ]
    colours: dict[str, set[str]] = {}
    for chart in charts.charts_of(rows, "load"):
        swatches = re.findall(r"background:(#\w+)[^>]*></span>([^<]+)</li>", charts.legend(chart))
        lines = re.findall(r'<polyline[^>]*stroke="(#\w+)"', charts.svg(chart))
        assert [colour for colour, _ in swatches] == lines and len(lines) == len(chart.series)
        for colour, name in swatches:
            colours.setdefault(name.removeprefix("published, "), set()).add(colour)
    assert set(colours) == set(gains) and all(len(found) == 1 for found in colours.values())
    assert len(set.union(*colours.values())) == len(gains)
    assert len(set(charts.COLOURS)) == len(cells.LOADERS)


def test_a_chart_in_a_file_of_its_own_names_its_series() -> None:
    chart = charts.Chart("seconds", "Seconds", "load", "s", (charts.Series("pytorch", ((1, 2.0), (4, 3.0))),
                         charts.Series("published, A", ((1, 2.5), (4, 3.5)), dashed=True)))  # fmt: skip
    alone, inline = ElementTree.fromstring(charts.svg_file(chart)), ElementTree.fromstring(charts.svg(chart))
    words = [element.text for element in alone.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Seconds", "pytorch", "published, A"} <= set(words)
    assert not {"pytorch", "published, A"} & {element.text for element in inline.iter("{http://www.w3.org/2000/svg}text")}
    _, top, _, height = map(float, alone.attrib["viewBox"].split())
    places = [float(element.attrib["y"]) for element in alone.iter("{http://www.w3.org/2000/svg}text")]
    assert top < min(places) - 10 and max(places) < top + height


def test_rows_without_a_result_say_why_in_the_table() -> None:
    row = Row("dali-gpu", "resnet18", 1, 32, "faithful", published_s=21.3, error="needs a CUDA GPU")
    texts = dict(zip(outputs.COLUMNS, outputs.cells_of(row), strict=True))
    assert texts["verdict"] == "needs a CUDA GPU" and texts["published"] == "21.30" and texts["s/epoch"] == "–"
    assert "| needs a CUDA GPU |" in outputs.markdown([row])


def test_a_cell_matches_values_and_lists() -> None:
    cell = cells.Cell(load=4)
    assert cell.matches({"load": [1, 4], "loader": "pytorch"}) and not cell.matches({"load": 1})


def few_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, budget_s: float, each_s: float) -> runner.Run:
    """Run three groups whose processes take `each_s` seconds, or end when their limit is over."""

    def measure(out: Path, cell: Cell, spec: dict[str, Any], *, limit_s: float) -> dict[str, Any]:
        time.sleep(min(each_s, limit_s))
        if each_s > limit_s:
            raise GroupTimeout("too long")
        return {"models": {}}

    monkeypatch.setattr(runner, "run_measuring", measure)
    monkeypatch.setattr(runner, "missing", lambda loader, data: None)
    declared = (Cell(data="folder"), Cell(data="tar"), Cell(data="packed"))
    experiment = Experiment("own", "title", "question?", declared, compare="data")
    settings = runner.Settings(tmp_path / "out", None, 0.01, "v100", "cpu", budget_s, 0.1)
    return runner.run_groups(experiment, settings, log=lambda line: None)


def test_a_group_that_runs_when_the_budget_is_over_is_ended_and_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    found = few_groups(tmp_path, monkeypatch, budget_s=0.5, each_s=600.0)
    assert time.monotonic() - began < 60
    assert [group.dropped for group in found.groups] == [True] * 3
    assert {group.error for group in found.groups} == {runner.DROPPED}
    again = few_groups(tmp_path, monkeypatch, budget_s=600.0, each_s=0.0)  # the same command adds them
    assert [group.result for group in again.groups] == [{"models": {}}] * 3


def test_a_run_that_continues_counts_the_time_of_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = few_groups(tmp_path, monkeypatch, budget_s=600.0, each_s=0.3)
    assert first.elapsed_s >= 0.9
    file = next(tmp_path.glob("out/cells/*tar*.json"))
    file.unlink()  # the run was killed before this group
    again = few_groups(tmp_path, monkeypatch, budget_s=600.0, each_s=0.2)
    assert 0.8 <= again.elapsed_s < first.elapsed_s + 0.5
    read = few_groups(tmp_path, monkeypatch, budget_s=600.0, each_s=600.0)  # nothing left to measure
    assert 0.8 <= read.elapsed_s < again.elapsed_s + 0.5
    for file in tmp_path.glob("out/cells/*.json"):  # of an older headrace
        document = json.loads(file.read_text())
        del document["taken_s"]
        file.write_text(json.dumps(document))
    assert few_groups(tmp_path, monkeypatch, budget_s=600.0, each_s=600.0).elapsed_s < 0.8


def test_a_group_that_hangs_with_time_left_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PATIENCE_S", 0.1)
    monkeypatch.setattr(runner, "PATIENCE", 0.001)
    found = few_groups(tmp_path, monkeypatch, budget_s=600.0, each_s=601.0)
    assert [(group.dropped, group.error) for group in found.groups] == [(False, "too long")] * 3


def test_a_disk_that_was_full_ends_the_run_although_it_has_space_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: Any, **__: Any) -> dict[str, Any]:
        raise HeadraceError("the process of headrace failed (exit code 1): OSError: [Errno 28] No space left on device")

    monkeypatch.setattr(runner, "run_measuring", measure)
    experiment = Experiment("own", "title", "question?", (Cell(loader="headrace"),))
    settings = runner.Settings(tmp_path / "out", None, 0.01, "v100", "cpu", 60.0, 0.1)
    with pytest.raises(HeadraceError, match=r"cannot write results .* No space left on device"):
        runner.run_groups(experiment, settings, log=lambda line: None)


def test_a_reference_that_crashes_leaves_the_other_loaders_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def measure(out: Path, cell: Cell, spec: dict[str, Any], limit_s: float) -> dict[str, Any]:
        asked.append((cell.loader, spec["phase"]))
        raise HeadraceError("the process of pytorch failed (signal 11): no message" if cell.loader == "pytorch" else "measured")

    monkeypatch.setattr(runner, "run_measuring", measure)
    monkeypatch.setattr(runner, "missing", lambda loader, data: None)
    tried = tuple(Cell(loader=loader) for loader in ("pytorch", "headrace-exact", "run", "tfdata"))
    experiment = Experiment("own", "title", "question?", tried, reference={"loader": "pytorch"})
    settings = runner.Settings(tmp_path / "out", None, 0.01, "v100", "cpu", 60.0, 0.1)
    found = runner.run_groups(experiment, settings, log=lambda line: None)
    crash = "the process of pytorch failed (signal 11): no message"
    assert [group.error for group in found.groups] == [crash, "measured", "measured", f"pixels are not compared: {crash}"]
    assert asked.count(("pytorch", "pixels")) == 1, "a reference that crashes is not run again for each loader"
    assert found.pixels["run"]["words"] == f"pixels are not compared: {crash}"


def test_a_folder_without_images_is_named_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run_measuring", lambda *_, **__: pytest.fail("ran"))
    (tmp_path / "photos").mkdir()
    settings = runner.Settings(tmp_path / "out", tmp_path / "photos", 0.01, "v100", "cpu", 60.0, 0.1)
    with pytest.raises(UsageError, match="photos holds 0 images below class folders"):
        runner.run_groups(Experiment("own", "t", "q", (Cell(loader="headrace"),)), settings, log=lambda line: None)


def test_ffcv_is_refused_with_the_reason_whether_it_is_installed_or_not() -> None:
    assert (missing("ffcv") or "").startswith("refused, not the same work: it has no rotation")


@pytest.mark.parametrize(
    ("loader", "fixed", "expected"),
    [
        ("headrace", False, ("cuda", "cpu")),  # the CPU decodes, and the batch is there when the model wants it
        ("headrace-exact", False, ("cuda", "cpu")),
        ("headrace-exact", True, ("cpu", "cpu")),  # pixels are compared on the CPU
        ("headrace-gpu", False, ("cuda", "auto")),
        ("headrace-gpu", True, ("cuda", "auto")),
    ],
)
def test_batches_go_to_the_gpu_that_computes(
    loader: str, fixed: bool, expected: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(loaders, "open_dataset", lambda path: path)
    monkeypatch.setattr(loaders, "Loader", lambda *_, **options: asked.update(options))
    loaders.open_loader(Cell(loader=loader), Source(tmp_path, fixed=fixed, device="cuda"))
    assert (asked["device"], asked["decode"]) == expected


def test_a_simulated_gpu_takes_its_batches_from_the_hosts_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[Source] = []
    monkeypatch.setattr(measure_input, "open_loader", lambda cell, source: sources.append(source) or [])
    monkeypatch.setattr(Materials, "path", lambda *_: tmp_path)
    for gpu in ("v100", None):
        job = _Job({"gpu": gpu, "device": "cuda"}, Cell(), Materials(tmp_path, 100, 0), 1)
        list(job.epochs("train", 64))
    assert [source.device for source in sources] == ["cpu", "cuda"]


def test_results_of_another_gpu_are_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = runner.Settings(out=tmp_path / "out", own=None, scale=0.01, gpu=None, device="cuda", budget_s=60)
    monkeypatch.setattr(runner, "gpu_name", lambda: "NVIDIA H100")
    runner._remember(cells.load("dali"), settings)
    runner._remember(cells.load("dali"), settings)
    monkeypatch.setattr(runner, "gpu_name", lambda: "NVIDIA H200")
    with pytest.raises(UsageError, match="device NVIDIA H100 instead of NVIDIA H200"):
        runner._remember(cells.load("dali"), settings)
