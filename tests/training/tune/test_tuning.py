"""tune and the dry run: measurements, conclusions, and files that train reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from headrace.cli.main import main
from headrace.datasets.open import open_stored
from headrace.datasets.records.dataset import Dataset
from headrace.training import dry_run as planning
from headrace.training.distributed.devices import Device
from headrace.training.dry_run import measure_dry_run
from headrace.training.inputs.enlarging import enlargement_note
from headrace.training.settings.options import Options
from headrace.training.settings.resolve_options import resolve_options
from headrace.training.tune import rates
from headrace.training.tune import tune as tuning
from headrace.training.tune.deadline import Deadline, OutOfTime
from headrace.training.tune.machine_use import MachineMeter, MachineUse
from headrace.training.tune.rates import CombinedRate, InputRate, combined_rate, input_rate
from headrace.training.tune.tune import Reporter, tune, what_binds
from PIL import Image
from silence import longest_silence_s

HELPERS = Path(__file__).parents[2] / "helpers"

CPU = Device("cpu", "CPU", "cpu")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tune") / "data"
    for index in range(40):
        (root / f"class{index % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((20, 20, 3), 6 * index, dtype=np.uint8)).save(root / f"class{index % 2}" / f"{index}.jpg")
    return root


def measured(
    monkeypatch: pytest.MonkeyPatch, *, compute: float, per_thread: float, cores: float, together: list[CombinedRate]
) -> None:
    """Stands for the machine: eight cores, these rates."""
    queue = list(together)
    monkeypatch.setattr(tuning.machine, "cores", lambda: type("Cores", (), {"usable": 8.0})())
    monkeypatch.setattr(tuning, "compute_rate", lambda options, device, **_: (compute, None))

    def rate(options: Options, data: Dataset, device: Device, *, threads: int, **_: object) -> InputRate:
        return InputRate(threads, per_thread * threads, cores * threads)

    monkeypatch.setattr(tuning, "input_rate", rate)
    monkeypatch.setattr(tuning, "combined_rate", lambda options, data, **_: queue.pop(0))


@pytest.mark.parametrize(
    ("compute", "per_thread", "cores", "together", "binds", "threads", "prefetch"),
    [
        (1000.0, 1000.0, 1.0, [CombinedRate(3, 990.0, 0.001)], "compute", 2, 3),
        (5000.0, 200.0, 1.0, [CombinedRate(3, 1500.0, 0.7)], "input: CPU", 8, 3),
        (5000.0, 200.0, 0.2, [CombinedRate(3, 1500.0, 0.7)], "input: storage", 8, 3),
        (
            1000.0,
            160.0,
            1.0,
            [CombinedRate(3, 800.0, 0.2), CombinedRate(6, 890.0, 0.1), CombinedRate(12, 900.0, 0.1)],
            "overlap",
            8,
            6,
        ),
    ],
)
def test_tune_names_what_binds_and_chooses_threads_and_prefetch(
    images: Path,
    monkeypatch: pytest.MonkeyPatch,
    compute: float,
    per_thread: float,
    cores: float,
    together: list[CombinedRate],
    binds: str,
    threads: int,
    prefetch: int,
) -> None:
    measured(monkeypatch, compute=compute, per_thread=per_thread, cores=cores, together=together)
    chosen = resolve_options({"model": "tiny:make", "data": str(images), "batch_size": 4})
    found = tune(chosen, open_stored(images), CPU)
    assert (found.binds, found.options.threads, found.options.prefetch) == (binds, threads, prefetch)


def use(*, foreign: float | None, queue: float | None, arrived: float | None) -> MachineUse:
    return MachineUse(cores=2, own_cores=0.5, foreign_cores=foreign, queue_cores=queue, arrived_bytes_s=arrived)


@pytest.mark.parametrize(
    ("measured_use", "binds", "words"),
    [
        (use(foreign=1.5, queue=1.4, arrived=0.0), "input: other programs", "use 1.5 of 2 cores"),
        (use(foreign=1.5, queue=None, arrived=0.0), "input: other programs", "use 1.5 of 2 cores"),
        (use(foreign=0.0, queue=1.4, arrived=0.0), "input: CPU", "decoding binds"),
        (use(foreign=0.0, queue=0.1, arrived=2e7), "input: storage", "pack it"),
        (use(foreign=0.0, queue=0.1, arrived=0.0), "input: blocked", "page cache: cause not seen"),
        (use(foreign=None, queue=None, arrived=None), "input: storage", "pack it"),
    ],
)
def test_storage_binds_only_where_bytes_came_from_storage(measured_use: MachineUse, binds: str, words: str) -> None:
    """Two threads that were on a core for a quarter of the time, at 200 images a second; 1000 are wanted."""
    found, advice = what_binds(1000.0, InputRate(2, 200.0, 0.5, measured_use), CombinedRate(3, 190.0, 0.8))
    assert found == binds and words in advice


def test_input_that_is_never_waited_for_and_costs_next_to_nothing_does_not_compete_for_the_cpu() -> None:
    ingest = InputRate(2, 2730.0, 2.0)
    found, advice = what_binds(11.0, ingest, CombinedRate(3, 9.0, 0.0005))
    assert found == "compute" and "other programs" in advice
    assert what_binds(1000.0, ingest, CombinedRate(3, 800.0, 0.0005))[0] == "overlap"


def test_a_meter_sees_the_cores_that_other_programs_use() -> None:
    meter, end_s = MachineMeter(), time.monotonic() + 1.0
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        time.sleep(max(0.0, end_s - time.monotonic()))
        use = meter.use()
        other.kill()
    assert use.foreign_cores is not None and use.foreign_cores > 0.3
    assert use.own_cores < 0.3
    assert "other programs used" in use.noise()


def test_measurements_end_at_the_time_limit_and_the_rest_is_listed(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def slow(result: object) -> Callable[..., object]:
        def measure(*_: object, **__: object) -> object:
            now[0] += 40
            return result

        return measure

    measured(monkeypatch, compute=1000.0, per_thread=100.0, cores=1.0, together=[])
    monkeypatch.setattr(tuning, "compute_rate", slow((1000.0, None)))
    monkeypatch.setattr(tuning, "input_rate", slow(InputRate(8, 800.0, 8.0)))
    lines: list[str] = []
    chosen = resolve_options({"model": "tiny:make", "data": str(images), "batch_size": 4})
    deadline = Deadline(60.0, clock=lambda: now[0])
    found = tune(chosen, open_stored(images), CPU, deadline=deadline, report=Reporter(lines.append))
    assert now[0] == 80
    assert found.not_measured == ("input alone, 4 threads", "together, 3 batches ahead")
    assert (found.compute_img_s, found.binds, found.together) == (1000.0, "input: CPU", ())
    assert "not measured, the 60 s of --time-limit are over" in lines[-1]


@pytest.mark.slow
def test_tune_of_a_slow_model_speaks_every_three_seconds_and_ends_at_its_limit(images: Path, tmp_path: Path) -> None:
    """A real run: a step takes more than the limit, so compute is not measured; what is chosen is written all the same."""
    (tmp_path / "sleepy.py").write_text(
        "import time, torch\n"
        "class Sleepy(torch.nn.Linear):\n"
        "    def forward(self, images):\n"
        "        time.sleep(60)\n"
        "def make(num_classes): return Sleepy(3, num_classes)\n"
    )
    command = [sys.executable, "-m", "headrace", "tune", "--model", "sleepy:make", "--data", str(images), "--image-size", "16"]
    command += ["--batch-size", "4", "--device", "cpu", "--threads", "1", "--seconds", "1", "--time-limit", "9", "--json"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    began_s = time.monotonic()
    with subprocess.Popen(
        [*command, "--write", str(tmp_path / "tuned.toml")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        silence_s = longest_silence_s(child)
        document = json.loads(child.stdout.read())  # type: ignore[union-attr]
    assert child.returncode == 0
    assert silence_s < 3.5
    assert time.monotonic() - began_s < 9 + 36  # less than one step; Python takes a while to start and to end
    assert document["compute_img_s"] is None and "compute alone" in document["not_measured"]
    assert document["binds"] == "not measured" and (tmp_path / "tuned.toml").exists()


def test_the_dry_run_ends_at_its_limit_and_says_what_is_missing(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object, timeout_s: float, **__: object) -> tuple[float, None]:
        assert timeout_s <= 30
        raise OutOfTime("")

    monkeypatch.setattr(planning, "compute_rate", late)
    data = open_stored(images)
    options = resolve_options({"model": "resnet20", "data": str(images), "batch_size": 4, "image_size": 32}).options
    plan = measure_dry_run(options, data, None, CPU, ranks=1, seconds=0.1, deadline=Deadline(30.0))
    assert (plan.compute_img_s, plan.binds, plan.seconds) == (None, "not measured", None)
    assert plan.not_measured == ("compute alone",) and plan.ingest_img_s and plan.total_steps == 160


def test_the_input_rate_of_a_small_dataset_is_measured_over_several_epochs(images: Path) -> None:
    options = resolve_options({"model": "m", "data": str(images), "batch_size": 8, "image_size": 16}).options
    found = input_rate(options, open_stored(images), CPU, threads=1, seconds=0.05)
    assert found.img_s > 10 and 0 <= found.cores < 64


@pytest.mark.parametrize(("img_s", "steps"), [(1000.0, 30 + 156), (16.0, 30), (4.0, 13)])
def test_the_combined_run_has_fewer_steps_when_steps_are_slow(
    images: Path, monkeypatch: pytest.MonkeyPatch, img_s: float, steps: int
) -> None:
    """Batches of 32: 30 steps beyond the measured seconds, but a minute at most, or three after the ten that warm up."""
    asked: list[int] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(tomllib.loads(Path(command[command.index("--config") + 1]).read_text())["steps"])
        return subprocess.CompletedProcess(command, 0, '{"img_s": 1, "wait_share": 0}', "")

    monkeypatch.setattr(rates, "_run_until", lambda command, deadline: run(command))
    options = resolve_options({"model": "m", "data": str(images), "batch_size": 32}).options
    combined_rate(options, open_stored(images), ranks=1, expected_img_s=img_s, seconds=5.0)
    assert asked == [steps]


def test_a_combined_run_that_is_stopped_while_it_starts_is_out_of_time_and_no_failure(images: Path) -> None:
    """Less time is left than a run needs to stop: it gets SIGTERM before it can take it, and ends without a result."""
    options = resolve_options({"model": "resnet20", "data": str(images), "batch_size": 8, "device": "cpu"}).options
    deadline = Deadline(rates.STOPPING_S - 1)
    with pytest.raises(OutOfTime):
        combined_rate(options, open_stored(images), ranks=1, expected_img_s=100.0, seconds=5.0, deadline=deadline)
    assert not deadline.passed


@pytest.mark.slow
def test_tune_writes_what_train_reads(images: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HELPERS))
    monkeypatch.syspath_prepend(str(HELPERS))
    words = ["--model", "tiny:make", "--data", str(images), "--image-size", "16", "--batch-size", "4", "--device", "sim:2000"]
    file = tmp_path / "tuned.toml"
    assert main(["tune", *words, "--seconds", "0.05", "--write", str(file), "--json", "--out", str(tmp_path / "run")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["compute_img_s"] == 2000 and document["img_s"] > 0
    saved = tomllib.loads(file.read_text())
    assert (saved["threads"], saved["prefetch"]) == (document["threads"], document["prefetch"])
    assert main(["train", "--model", "tiny:make", "--config", str(file), "--steps", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 2
    assert main(["tune", *words, "--seconds", "0"]) == 2


def test_the_dry_run_computes_steps_times_and_price(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_stored(images)
    monkeypatch.setattr(planning, "compute_rate", lambda *_, **__: (100.0, 7))
    monkeypatch.setattr(planning, "input_rate", lambda *_, threads, seconds, deadline: InputRate(threads, 1000.0, 1.0))
    given = {"model": "resnet20", "data": str(images), "batch_size": 4, "image_size": 32, "epochs": 2, "warmup_epochs": 0.5}
    plan = plan_of(given, data, None)
    assert (plan.steps_per_epoch, plan.total_steps, plan.warmup_steps, plan.binds) == (10, 20, 5, "compute")
    assert plan.seconds == pytest.approx(0.8) and plan.usd == pytest.approx(0.8 / 3600 * 36)
    assert plan.checkpoint_bytes == 8 * plan.parameters and plan.memory_bytes == 7
    growing = plan_of({**given, "start_scale": 0.5, "resize_begin": 0.1, "resize_end": 0.5}, data, data)
    assert growing.sizes == ((0, 16), (1, 32))
    # a quarter of the pixels in the first epoch; two evaluations at three times the speed
    assert growing.seconds == pytest.approx(0.4 / 4 + 0.4 + 2 * 40 / 300)
    assert plan_of({**given, "epochs": 1, "steps": 3}, data, None).seconds == pytest.approx(0.12)


def plan_of(given: dict[str, object], data: Dataset, val: Dataset | None) -> planning.DryRun:
    return measure_dry_run(resolve_options(given).options, data, val, CPU, ranks=1, seconds=0.1, usd_per_hour=36.0)


def test_a_dry_run_writes_nothing(images: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("headrace.cli.train.train.DRY_RUN_SECONDS", 0.05)
    words = [
        "train",
        "--model",
        "resnet20",
        "--data",
        str(images),
        "--image-size",
        "16",
        "--batch-size",
        "4",
        "--recipe",
        "classic",
    ]
    words += ["--device", "sim:1000", "--out", str(tmp_path / "run"), "--dry-run"]
    assert main([*words, "--json", "--usd-per-hour", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["total_steps"], document["compute_img_s"]) == (900, 1000) and document["usd"] > 0
    assert document["options"]["schedule"] == "step"
    assert main(words) == 0
    assert "900 in all" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert main([*words, "--usd-per-hour", "-1"]) == 2


def test_a_note_is_logged_for_images_that_would_be_enlarged(images: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("headrace.cli.train.train.DRY_RUN_SECONDS", 0.05)
    words = [
        "train",
        "--model",
        "resnet20",
        "--batch-size",
        "4",
        "--device",
        "sim:1000",
        "--dry-run",
        "--out",
        str(tmp_path / "o"),
    ]
    assert main(["pack", str(images), str(tmp_path / "packed")]) == 0
    for data in (images, tmp_path / "packed"):
        assert enlargement_note(open_stored(data), 39) is None
        assert "--image-size 20 takes 4 times less compute" in str(enlargement_note(open_stored(data), 40))
        capsys.readouterr()
        assert main([*words, "--data", str(data), "--image-size", "40"]) == 0
        assert "note: the images are small (shorter side 20 pixels" in capsys.readouterr().err
