"""Options from a file and from the command line; cached compile modes; loggers."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from headrace.cli.main import main
from headrace.errors import CommandError, UsageError
from headrace.training.distributed.devices import Device
from headrace.training.logs.loggers import Loggers, figures
from headrace.training.settings import options_file
from headrace.training.settings.optimization import OptimizationOptions
from headrace.training.settings.options import Options
from headrace.training.settings.resolve_options import KEYS, resolve_options
from headrace.training.tune.compiling import choose_compile
from headrace.training.tune.compute_rate import ComputeRate
from PIL import Image

HELPERS = Path(__file__).parents[2] / "helpers"

PLAIN = Options(
    model='odd "name"\n\x7f ü',
    data="d",
    out="o",
    checkpoint_minutes=None,
    log=("tensorboard",),
    optimization=OptimizationOptions(erase=0.25),
)


def test_written_options_are_read_back(tmp_path: Path) -> None:
    options_file.write(PLAIN, tmp_path / "config.toml")
    assert tomllib.loads((tmp_path / "config.toml").read_text())["model"] == PLAIN.model
    read = resolve_options({**options_file.read(tmp_path / "config.toml", KEYS), "log": ("tensorboard",)}).options
    assert replace(read, checkpoint_minutes=None) == PLAIN  # what is absent has its default


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for index in range(12):
        (tmp_path / "data" / f"class{index % 2}").mkdir(parents=True, exist_ok=True)
        pixels = np.full((20, 20, 3), 20 * index, dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "data" / f"class{index % 2}" / f"{index}.jpg")
    return tmp_path / "data"


def test_the_command_line_overrides_the_file(images: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(str(HELPERS))
    file = tmp_path / "run.toml"
    file.write_text(
        f'model = "tiny:make"\ndata = "{images}"\nout = "{tmp_path / "run"}"\nepochs = 3\nbatch-size = 4\nimage_size = 16\n'
        'device = "cpu"\nthreads = 1\nrecipe = "fast"\nblurpool = false\nlog = ["tensorboard"]\n'
    )
    words = ["train", "--model", "tiny:make", "--json"]  # code is named by the command line itself
    assert main([*words, "--config", str(file), "--epochs", "1", "--global-batch", "8"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["steps"] == 3
    assert "recipe: FFCV" in captured.err
    saved = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    wanted = {"epochs": 1, "blurpool": False, "accumulate": 2, "flip_test": True, "schedule": "linear"}
    assert {name: saved[name] for name in wanted} == wanted
    (events,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert b"train/loss" in events.read_bytes()
    again = [*words, "--config", str(tmp_path / "run" / "config.toml"), "--resume", "auto"]
    assert main(again) == 0  # the saved options are those of the run: there is nothing left to do
    assert json.loads(capsys.readouterr().out)["resumed_from_step"] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", "did you mean epochs"),
        ("epochs = ", "is not TOML"),
        ("epochs = 'many'", "epochs: invalid int value"),
        ("schedule = 'cosin'", "invalid choice"),
        ("blurpool = 'yes'", "must be true or false"),
        ("epochs = true", "is no switch"),
        ("[recipe]\nmomentum = 1", "is a table"),
        ("batch-size = 8\nbatch_size = 9", "given twice"),
        ("log = ['paper']", "there is no 'paper'"),
        ("batch_size = 'big'", "a number or auto"),
        ("resume = 3.5\nmodel = 'resnet18'", "--data is missing"),
    ],
)
def test_wrong_files_are_refused_with_a_reason(text: str, message: str, tmp_path: Path, capsys) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    assert main(["train", "--config", str(file)]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_file_is_named(tmp_path: Path, capsys) -> None:
    assert main(["train", "--config", str(tmp_path / "absent.toml")]) == 2
    assert "absent.toml" in capsys.readouterr().err


GPU = Device("cuda", "some GPU", "cuda:0")


def test_compile_auto_needs_three_per_cent_and_is_cached() -> None:
    rates = {"off": 100.0, "on": 102.0, "graphs": 104.0}
    tried: list[str] = []

    def try_mode(options: Options, *, classes: int, processes: int) -> ComputeRate:
        tried.append(options.compile)
        return ComputeRate(options.batch_size, rates[options.compile], None)

    options = Options(model="resnet18", data="d", out="o")
    found = choose_compile(options, device=GPU, classes=3, try_mode=try_mode)
    assert (found.mode, found.remembered, tried) == ("graphs", False, ["off", "on", "graphs"])
    again = choose_compile(options, device=GPU, classes=3, try_mode=try_mode)
    assert (again.mode, again.remembered, again.img_s, len(tried)) == ("graphs", True, rates, 3)
    rates["graphs"] = 102.9  # less than 3 %
    assert choose_compile(replace(options, batch_size=8), device=GPU, classes=3, try_mode=try_mode).mode == "off"
    assert choose_compile(options, device=Device("cpu", "CPU", "cpu"), classes=3, try_mode=try_mode).mode == "off"


def test_a_compile_mode_that_fails_is_not_chosen() -> None:
    def try_mode(options: Options, *, classes: int, processes: int) -> ComputeRate:
        if options.compile == "on":
            raise CommandError("no compiler")
        return ComputeRate(options.batch_size, None if options.compile == "graphs" else 50.0, None)

    found = choose_compile(Options(model="x", data="d", out="o"), device=GPU, classes=3, try_mode=try_mode)
    assert (found.mode, found.failed) == ("off", {"on": "no compiler", "graphs": "does not fit"})


def test_figures_are_the_numbers_of_a_metrics_line() -> None:
    assert figures({"step": 3, "loss": 0.5, "img_s": None, "learning_rate": 0.1}) == {
        "train/loss": 0.5,
        "train/learning_rate": 0.1,
    }
    assert figures({"step": 3, "evaluation": {"top1": 0.5, "top5": None, "loss": 2.0}}) == {
        "evaluation/top1": 0.5,
        "evaluation/loss": 2.0,
    }
    assert figures({"step": 0, "resumed_from_step": None}) == {}


def test_a_logger_that_fails_is_reported_and_dropped(tmp_path: Path, monkeypatch) -> None:
    written: list[tuple[int, dict[str, float]]] = []

    class Server:
        @staticmethod
        def set_tracking_uri(uri: str) -> None:
            assert uri.startswith("sqlite:///")

        @staticmethod
        def set_experiment(name: str) -> None:
            pass

        @staticmethod
        def start_run(run_name: str) -> None:
            pass

        @staticmethod
        def log_params(values: dict[str, str]) -> None:
            assert values == {"epochs": "3"}

        @staticmethod
        def log_metrics(values: dict[str, float], step: int) -> None:
            if step > 1:
                raise ConnectionError("server gone")
            written.append((step, values))

    monkeypatch.setitem(__import__("sys").modules, "mlflow", Server)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    warnings: list[str] = []
    loggers = Loggers(["mlflow", "tensorboard"], tmp_path, {"epochs": 3}, warn=warnings.append)
    for step in (1, 2, 3):
        loggers.write({"step": step, "loss": 1.0 / step})
    loggers.close()
    assert written == [(1, {"train/loss": 1.0})]
    assert len(warnings) == 1 and "server gone" in warnings[0]
    with pytest.raises(UsageError, match="no logger"):
        Loggers(["paper"], tmp_path, {}, warn=warnings.append)
