"""Weights, checkpoints and options that others wrote: they run no code, and what is wrong in them is an error in words."""

from __future__ import annotations

import csv
import io
import json
import sys
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from headrace.cli.main import main
from headrace.errors import HeadraceError, StateError, UsageError
from headrace.training.models import factory, pretrained
from headrace.training.weights import checkpoint
from headrace.training.weights.checkpoint import Checkpoint
from headrace.training.weights.evaluation import model_scores
from headrace.training.weights.saved_state import read_saved_state, saved_step
from headrace.training.weights.trained_weights import load_model
from headrace.trials.experiment import cells
from torch import nn

HELPERS = Path(__file__).parents[2] / "helpers"
FACTS: dict[str, Any] = {"model": "resnet20", "image_size": 16, "classes": ["a", "b"], "steps": 3, "simulated": False}
STATE: dict[str, Any] = {
    "step": 3, "batch_size": 4, "loader": {}, "scaler": {}, "groups": [{"momentum": 0.9}], "evaluated_step": 0, "scores": None
}  # fmt: skip
DEEP = json.loads("[" * 400 + "]" * 400)
WRONG = (None, "x", -1, 1e308, 10**30, [], {}, True, "../../x", [1], DEEP)


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with `planted.make`, which leaves the file `ran` when the module is imported."""
    module = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\nfrom tiny import make\n"
    (tmp_path / "planted.py").write_text(module)
    monkeypatch.syspath_prepend(str(HELPERS))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "planted", raising=False)
    return tmp_path


def weights(folder: Path, facts: object) -> Path:
    path = folder / "final.safetensors"
    name = facts.get("model") if isinstance(facts, dict) else None
    model = factory.build_model("resnet20", classes=2, image_size=16)
    if name == "planted:make":
        import tiny

        model = tiny.make(num_classes=2)
    checkpoint._write_tensors(path, model.state_dict(), {"headrace": json.dumps(facts)})
    return path


@pytest.mark.parametrize("verb", ["predict", "evaluate", "export"])
def test_weights_that_name_code_run_nothing_unless_the_command_line_names_it(
    verb: str, code: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(code)  # where `export` writes
    path = weights(code, {**FACTS, "model": "planted:make"})
    more = {
        "predict": [str(code), "--device", "cpu"],
        "evaluate": ["--data", str(code), "--device", "cpu"],
        "export": ["--format", "torchscript"],
    }
    words = [verb, str(path), *more[verb]]
    assert main(words) == 2
    assert "--model planted:make" in capsys.readouterr().err
    assert main([*words, "--model", "another:make"]) == 2
    assert not (code / "ran").exists()
    main([*words, "--model", "planted:make"])
    assert (code / "ran").exists()


def test_a_checkpoint_that_names_code_runs_nothing(code: Path) -> None:
    recipe: dict[str, Any] = {}
    state = {
        "identity": {"model": "planted:make", "image_size": 16, "simulated": False, "recipe": recipe},
        "classes": ["a", "b"],
    }
    folder = checkpoint.save(code / "checkpoints", 1, {"model.x": torch.zeros(1)}, {**state, "step": 1})
    with pytest.raises(UsageError, match="names code"):
        load_model(folder)
    assert not (code / "ran").exists()


@pytest.mark.parametrize("verb", ["train", "tune"])
def test_options_of_a_file_that_name_code_run_nothing(verb: str, code: Path, capsys) -> None:
    file = code / "config.toml"
    file.write_text(f'model = "planted:make"\ndata = "{code}"\nout = "{code / "run"}"\ndevice = "cpu"\n')
    assert main([verb, "--config", str(file)]) == 2
    assert "--model planted:make" in capsys.readouterr().err
    assert not (code / "ran").exists()


@pytest.mark.parametrize(
    "line",
    ['model = "planted:make"', 'arguments = "--model planted:make"', 'arguments = "--config=x"', 'arguments = "--out /x"'],
)
def test_an_experiment_names_no_code_and_no_place_to_write(line: str, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(f'title = "t"\nquestion = "q"\n[[cells]]\nloader = "headrace"\n{line}\n')
    with pytest.raises(UsageError, match="must not choose"):
        cells.load(str(file))


@pytest.mark.parametrize("name", ["model", "image_size", "classes", "steps", "test_size", "flip_test", "trained_side"])
def test_wrong_facts_of_weights_are_errors_that_name_the_field(name: str, tmp_path: Path) -> None:
    for value in WRONG:
        if (name, value) in (("trained_side", None), ("flip_test", True)):
            continue
        path = weights(tmp_path, {**FACTS, name: value})
        with pytest.raises(HeadraceError) as caught:
            load_model(path)
        assert name in str(caught.value) or name == "model"
    for document in (None, [], "x", 3, DEEP):
        with pytest.raises(StateError):
            load_model(weights(tmp_path, document))


def test_weights_of_more_classes_than_scores_build_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = weights(tmp_path, {**FACTS, "classes": [str(number) for number in range(5000)]})
    monkeypatch.setattr(factory, "build_model", lambda *arguments, **options: pytest.fail("a model was built"))
    with pytest.raises(StateError, match="5,000 classes, and has scores for at most"):
        load_model(path)


@pytest.mark.parametrize("extra", [torch.zeros(200_000, 0), torch.zeros(200_000, dtype=torch.uint8)], ids=["empty", "bytes"])
@pytest.mark.parametrize("model", ["vgg11", "regnet_y_400mf", "resnet20"])
def test_weights_that_do_not_hold_their_model_take_no_memory(model: str, extra: torch.Tensor, tmp_path: Path) -> None:
    """200,000 classes of VGG take 3.3 GB."""
    facts = {**FACTS, "model": model, "classes": [str(number) for number in range(200_000)], "image_size": 224}
    checkpoint._write_tensors(tmp_path / "a.safetensors", {"x": extra}, {"headrace": json.dumps(facts)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            nn.Linear, "reset_parameters", lambda self: pytest.fail("memory was taken") if self.weight.is_cpu else None
        )
        with pytest.raises(StateError, match="it holds no"):
            load_model(tmp_path / "a.safetensors")


def test_images_that_the_model_of_a_file_cannot_take_are_an_error_in_words(
    image_folder: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, photos = tmp_path / "a.safetensors", image_folder(classes=2, per_class=1)
    model = factory.build_model("squeezenet1_1", classes=2, image_size=224)
    classes = sorted(entry.name for entry in photos.iterdir())
    facts = {**FACTS, "model": "squeezenet1_1", "image_size": 224, "test_size": 2, "classes": classes}
    checkpoint._write_tensors(path, model.state_dict(), {"headrace": json.dumps(facts)})
    export = ["export", str(path), "--format", "torchscript", "--out", str(tmp_path / "out")]
    for words in (["predict", str(path), str(photos)], ["evaluate", str(path), "--data", str(photos)], export):
        assert main(words) != 0
        assert "error: the model fails on 2 images of" in capsys.readouterr().err


def test_a_tag_that_timm_does_not_know_is_an_error_in_words(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    for name in ("resnet18.none", "resnet18.a/../b"):
        with pytest.raises(UsageError, match="timm cannot build"):
            load_model(weights(tmp_path, {**FACTS, "model": name}))


def test_names_of_classes_are_no_markup_and_no_formula(
    image_folder: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = image_folder(classes=2, per_class=1)
    classes = ["=HYPERLINK(1)", "[red]x"]
    for old, new in zip(sorted(photos.iterdir()), classes, strict=True):
        old.rename(photos / new)
    path = weights(tmp_path, {**FACTS, "classes": classes})
    answers, confusion = tmp_path / "answers.csv", tmp_path / "confusion.csv"
    assert main(["evaluate", str(path), "--data", str(photos), "--per-class", "--confusion", str(confusion)]) == 0
    assert "[red]x" in capsys.readouterr().out
    assert main(["predict", str(path), str(photos), "--write", str(answers)]) == 0
    assert "[red]x" in capsys.readouterr().out
    for file in (answers, confusion):
        cells = [cell for row in csv.reader(file.read_text().splitlines()) for cell in row]
        assert "'=HYPERLINK(1)" in cells and not any(cell.startswith("=") for cell in cells)


def test_images_that_do_not_fit_into_the_memory_are_an_error_in_words() -> None:
    def model(images: torch.Tensor) -> torch.Tensor:
        return torch.empty(1 << 60)  # torch's own words

    with pytest.raises(HeadraceError, match="2 images of 8x16 pixels do not fit into the memory"):
        model_scores(model, torch.zeros(2, 3, 16, 8), flip=False)


@pytest.mark.parametrize("name", sorted(STATE))
def test_wrong_values_of_a_checkpoint_are_errors_that_name_the_field(name: str, tmp_path: Path) -> None:
    right = {"loader": ({},), "scaler": ({},), "groups": ([],), "scores": (None,)}.get(name, ())
    for value in WRONG:
        if any(value == one and type(value) is type(one) for one in right):
            continue
        found = Checkpoint({}, {**STATE, name: value}, tmp_path)
        with pytest.raises(StateError, match=name if name != "scores" else "scores"):
            read_saved_state(found)
    assert read_saved_state(Checkpoint({}, STATE, tmp_path)).step == saved_step(Checkpoint({}, STATE, tmp_path)) == 3


@pytest.mark.parametrize("name", [checkpoint.STATE, checkpoint.TENSORS])
def test_a_sparse_checkpoint_takes_no_memory(name: str, tmp_path: Path) -> None:
    """A file of a terabyte takes no disk where nothing is written."""
    folder = checkpoint.save(tmp_path, 1, {"x": torch.zeros(1)}, STATE)
    with (folder / name).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(StateError, match=r"1\.0 TiB, more than the limit"):
        checkpoint.load(folder)


def test_a_small_checkpoint_takes_no_memory_for_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint.save(tmp_path, 1, {"x": torch.zeros(1)}, {**STATE, "more": [[]] * 1000})
    monkeypatch.setenv("HEADRACE_RECORD_LIMIT", "8KiB")
    with pytest.raises(StateError, match="values, more than the limit"):
        checkpoint.load(folder)


def test_deep_json_in_a_checkpoint_is_an_error(tmp_path: Path) -> None:
    import hashlib

    text = '{"a":' * 200_000
    head = json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest()})
    with pytest.raises(StateError):
        checkpoint.parse("x", lambda name: f"{head}\n{text}".encode())
    folder = checkpoint.save(tmp_path, 1, {"x": torch.zeros(1)}, STATE)
    document = json.loads((folder / checkpoint.STATE).read_text().partition("\n")[2])
    text = json.dumps({**document, "state": [1]})
    (folder / checkpoint.STATE).write_text(json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest()}) + "\n" + text)
    with pytest.raises(StateError, match="list"):
        checkpoint.load(folder)


def test_foreign_pt_files_need_a_torch_whose_safe_loading_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2025-32434: before 2.6, `weights_only` loading runs code of the file."""
    torch.save({"a": torch.zeros(1)}, tmp_path / "weights.pt")
    model = factory.build_model("resnet20", classes=2, image_size=16)

    def load(*args: object, **named: object) -> None:
        raise KeyboardInterrupt("the file was opened")

    monkeypatch.setattr(torch, "load", load)
    for version in ("2.4.0", "2.5.1+cu121", "2.5.0a0"):
        monkeypatch.setattr(torch, "__version__", version)
        with pytest.raises(HeadraceError, match=r"2\.6"):
            pretrained.load_pretrained(model, str(tmp_path / "weights.pt"), name="resnet20")
    for version in ("2.6.0", "2.15.0+cu132", "3.0"):
        monkeypatch.setattr(torch, "__version__", version)
        with pytest.raises(KeyboardInterrupt):
            pretrained.load_pretrained(model, str(tmp_path / "weights.pt"), name="resnet20")


def test_pt_files_that_unpack_to_more_than_they_hold_are_refused(tmp_path: Path) -> None:
    """A file of 100 MB took 100 GB: torch.load unpacks entries that torch.save never compresses."""
    torch.save({"a": torch.zeros(1_000_000)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    model = factory.build_model("resnet20", classes=2, image_size=16)
    with pytest.raises(StateError, match="is compressed, as"):
        pretrained.load_pretrained(model, str(tmp_path / "a.pt"), name="resnet20")
    with pytest.raises(StateError, match="tensors differ"):
        pretrained.load_pretrained(model, str(tmp_path / "plain.pt"), name="resnet20")
    with (tmp_path / "plain.pt").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(StateError, match=r"1\.0 TiB, more than the limit"):
        pretrained.load_pretrained(model, str(tmp_path / "plain.pt"), name="resnet20")


def test_damaged_pt_files_are_errors_in_words(tmp_path: Path) -> None:
    saved = io.BytesIO()
    torch.save({"a": torch.zeros(3), "b": torch.zeros(2, 2)}, saved, _use_new_zipfile_serialization=False)
    random, whole, path = Random(0), saved.getvalue(), tmp_path / "weights.pt"
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            damaged[random.randrange(len(whole))] = random.randrange(256)
        path.write_bytes(damaged)
        with suppress(HeadraceError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, about the protocol of the pickle
            pretrained._read(path)
