"""The demo with its commands replaced: what it compares, refuses and reports."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from headrace.cli.main import main
from headrace.demo import run_demo, steps
from headrace.errors import CommandError, HeadraceError, SourceError
from headrace.images import photographs
from headrace.system.processes.own_python import own_module
from PIL import Image

OWN = own_module("headrace")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for index in range(16):
        folder = tmp_path / "data" / f"class{index % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((64, 48), 60).convert("RGB").save(folder / f"{index}.jpg")
    return tmp_path / "data"


class Commands:
    """Stands in for the commands: records each, and writes the measurements that the script would write."""

    def __init__(self) -> None:
        self.started: list[list[str]] = []
        self.change: Callable[[dict[str, Any], str], None] = lambda facts, way: None
        self.plain_img_s = iter([90.0, 100.0, 400.0, 110.0])  # the diagnosis, then three rounds

    def run(self, command: list[str], *, show: Callable[[str], None], environment: Any = None) -> dict[str, Any]:
        self.started.append(command)
        verb = command[len(OWN)] if command[: len(OWN)] == OWN else "plain"
        show(f"{verb} at work")
        if "--log" in command:
            count = int(command[command.index("--images") + 1])
            facts = {"device": "simulated A100", "images": count, "steps": 10 + count // 4, "wait_share": 0.25}
            facts |= {"batches": [[[4, 3, 224, 224], "torch.float32", [4], "torch.int64"]], "losses": [2.0, 1.5]}
            facts["img_s"] = 300.0 if verb == "run" else next(self.plain_img_s)
            self.change(facts, verb)
            Path(command[command.index("--log") + 1]).write_text(json.dumps(facts))
        documents = {
            "diagnose": {"verdict": "CPU_PREP", "report": "/somewhere/report.html", "img_s": 95.0},
            "run": {"loaders": [{"dataset": "ImageFolder", "taken_over": True, "reason": "decode"}]},
            "pack": {"records": 16, "shards": 1},
            "train": {"img_s": 900.0, "wait_share": 0.6, "loss": 1.0},
        }
        return documents.get(verb, {})


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands()
    monkeypatch.setattr(steps, "run", made.run)
    monkeypatch.setattr(run_demo, "find_device", lambda: ("sim:a100", "simulated A100"))
    return made


def meter(words: str, total: int) -> Any:
    return nullcontext(SimpleNamespace(advance=lambda count: None))


def test_document_and_table_show_the_measurements(data: Path, tmp_path: Path, commands: Commands, capsys) -> None:
    arguments = ["demo", "--data", str(data), "--keep", str(tmp_path / "kept"), "--seconds", "1"]
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["before_img_s"] == 110.0  # the median of 100, 400, 110
    assert document["after_img_s"] == 300.0
    assert document["speedup"] == pytest.approx(300 / 110)
    assert (document["verdict"], document["report"]) == ("CPU_PREP", "/somewhere/report.html")
    assert document["simulated"] is True and document["taken_over"] is True
    assert all(line.startswith("simulated A100: ") for line in captured.err.splitlines())
    assert "about 30 s more" in captured.err  # three turns of 1 s and half of it, and 20 s of training
    commands.plain_img_s = iter([90.0, 100.0, 400.0, 110.0])
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "2.7" in printed and "CPU_PREP" in printed and "/somewhere/report.html" in printed
    rows = [line for line in printed.splitlines() if "img/s" not in line and any(digit in line for digit in "0123456789")]
    assert len(rows) >= 4 and all("simulated A100" in row for row in rows)


def test_plain_script_and_run_take_turns_on_the_same_number_of_images(data: Path, tmp_path: Path, commands: Commands) -> None:
    result = run_demo.run_demo(data=data, folder=tmp_path / "kept", seconds=2, log=lambda line: None, progress=meter)
    verbs = [command[len(OWN)] if command[: len(OWN)] == OWN else "plain" for command in commands.started]
    assert verbs == ["diagnose", *["plain", "run"] * run_demo.ROUNDS, "pack", "train"]
    counts = {command[command.index("--images") + 1] for command in commands.started[1:-2]}
    assert counts == {"180"} and result.images_per_round == 180  # 2 s at the 90 img/s that the script saw, in batches of 4
    script = (tmp_path / "kept" / "train.py").read_text()
    assert script == Path(run_demo.__file__).with_name("script.py").read_text()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("batches", [[[4, 3, 192, 192], "torch.float32", [4], "torch.int64"]], "batches"),
        ("images", 7, "images"),
        ("steps", 7, "steps"),
        ("losses", [float("nan")], "not finite"),
    ],
)
def test_runs_with_different_images_or_batches_are_not_compared(data, tmp_path, commands: Commands, name, value, words) -> None:
    commands.change = lambda facts, way: facts.update({name: value}) if way == "run" else None
    with pytest.raises(HeadraceError, match=words):
        run_demo.run_demo(data=data, folder=tmp_path / "kept", seconds=1, log=lambda line: None, progress=meter)


def test_undecodable_files_are_named(data: Path, tmp_path: Path, commands: Commands, monkeypatch) -> None:
    (data / "class0" / "broken.jpg").write_bytes((data / "class0" / "0.jpg").read_bytes()[:200])
    (data / "class1" / "text.jpg").write_text("not an image")

    def fail(command: list[str], **_: Any) -> dict[str, Any]:
        raise CommandError("`python train.py` failed with exit code 1")

    monkeypatch.setattr(steps, "run", fail)
    with pytest.raises(SourceError, match=r"(?s)broken\.jpg.*text\.jpg|text\.jpg.*broken\.jpg"):
        run_demo.run_demo(data=data, folder=tmp_path / "kept", seconds=1, log=lambda line: None, progress=meter)


def test_a_failure_with_good_data_raises_the_commands_error(
    data: Path, tmp_path: Path, commands: Commands, monkeypatch
) -> None:
    def fail(command: list[str], **_: Any) -> dict[str, Any]:
        raise CommandError("`python train.py` failed with exit code 1")

    monkeypatch.setattr(steps, "run", fail)
    with pytest.raises(CommandError, match="failed with exit code 1"):
        run_demo.run_demo(data=data, folder=tmp_path / "kept", seconds=1, log=lambda line: None, progress=meter)


def test_unusable_data_is_refused_before_any_command(tmp_path: Path, data: Path, commands: Commands, capsys) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "absent", tmp_path / "empty"):
        assert main(["demo", "--data", str(folder), "--keep", str(tmp_path / "kept")]) == 1
        printed = capsys.readouterr().err
        assert str(folder) in printed and "hint: " in printed
    shutil.rmtree(data / "class1")
    assert main(["demo", "--data", str(data), "--keep", str(tmp_path / "kept")]) == 1
    assert commands.started == []


def test_a_second_demo_in_the_same_folder_is_refused(tmp_path: Path, data: Path, commands: Commands) -> None:
    with run_demo._locked(tmp_path / "kept"), pytest.raises(HeadraceError, match="another demo is running"):
        run_demo.run_demo(data=data, folder=tmp_path / "kept", seconds=1, log=lambda line: None, progress=meter)


def test_photographs_are_made_once_and_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photographs, "IMAGES_PER_CLASS", 1)
    monkeypatch.setattr(photographs.make, "__kwdefaults__", photographs.make.__kwdefaults__ | {"per_class": 1})
    lines: list[str] = []
    run_demo._photographs(tmp_path, lines.append, meter)
    monkeypatch.setattr(photographs, "make", None)  # would fail if called
    assert run_demo._photographs(tmp_path, lines.append, meter) == tmp_path / "images"
    assert "from an earlier run" in lines[-1]


def test_default_folder_follows_the_cache_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert run_demo.default_folder() == Path("/cache/headrace/demo")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert run_demo.default_folder() == Path("/home/me/.cache/headrace/demo")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "1e9"])
def test_seconds_out_of_range_are_refused(seconds: str, commands: Commands, capsys) -> None:
    assert main(["demo", "--seconds", seconds]) == 2
    assert "--seconds" in capsys.readouterr().err


def test_large_data_is_sampled(data: Path, tmp_path: Path, commands: Commands, monkeypatch) -> None:
    monkeypatch.setattr(run_demo, "MOST_IMAGES", 10)
    (data.parent / "both" / "val").mkdir(parents=True)
    data.rename(data.parent / "both" / "train")
    lines: list[str] = []
    result = run_demo.run_demo(data=data.parent / "both", folder=tmp_path / "kept", seconds=1, log=lines.append, progress=meter)
    assert result.images == 8 and result.data == tmp_path / "kept" / "sample"
    assert len(list(result.data.glob("class0/*.jpg"))) == len(list(result.data.glob("class1/*.jpg"))) == 4
    assert any("one of every 2 of the 16 images" in line for line in lines)
