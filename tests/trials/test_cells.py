"""Experiments as tables: the package's own, a user's, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace.cli.cloud import trials
from headrace.errors import UsageError
from headrace.trials.experiment import cells

OWN = """
title = "workers"
question = "how many?"
{extra}

[[cells]]
loader = "pytorch"
model = "resnet50"
{cell}
"""


def test_every_experiment_of_the_package_declares_cells() -> None:
    names = cells.experiment_names()
    assert "dali" in names
    for name in names:
        experiment = cells.load(name)
        assert experiment.cells and experiment.title and experiment.question
        assert len(set(experiment.cells)) == len(experiment.cells)


def test_the_dali_experiment_holds_the_published_table() -> None:
    experiment = cells.load("dali")
    faithful = [cell for cell in experiment.cells if cell.loader == "pytorch" and cell.mode == "faithful"]
    published = {(cell.model, cell.load): experiment.published_of(cell) for cell in faithful}
    assert len(published) == 12
    seconds = {key: entry.seconds_per_epoch for key, entry in published.items() if entry is not None}
    assert seconds[("resnet18", 1)] == 41.67 and seconds[("resnet18", 12)] == 77.82 and seconds[("resnet152", 8)] == 169.03
    corrected = next(cell for cell in experiment.cells if (cell.loader, cell.mode, cell.load) == ("pytorch", "corrected", 12))
    assert experiment.published_of(corrected) is not None  # filled in both modes


def test_lists_of_a_table_become_their_product(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(OWN.format(extra="", cell='workers = [1, 2]\nload = [1, 4, 8]\ntransform = "caltech"'))
    found = cells.load(str(file)).cells
    assert [(cell.workers, cell.load) for cell in found] == [(1, 1), (1, 4), (1, 8), (2, 1), (2, 4), (2, 8)]


@pytest.mark.parametrize(
    ("extra", "cell", "words"),
    [
        ("", "worker = [1]", "workers"),
        ("", "workers = [-1]", "workers cannot be -1"),
        ("", 'load = ["one"]', "load cannot be 'one'"),
        ("", "batch_size = 0", "batch_size cannot be 0"),
        ("", "load = true", "load cannot be True"),
        ("", 'transform = "dalli"', "transform 'dalli'"),
        ("budget = 3", "load = 1", "budget_minutes"),
        ('kind = "other"', "load = 1", "kind must be one of"),
    ],
)
def test_a_wrong_table_is_an_error_that_names_it(tmp_path: Path, extra: str, cell: str, words: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(OWN.format(extra=extra, cell=cell))
    with pytest.raises(UsageError) as caught:
        cells.load(str(file))
    assert words in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("text", ["title = ", "title = 'x'\nquestion = 'y'\n", "\x00"])
def test_a_file_that_declares_nothing_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(UsageError):
        cells.load(str(file))


def test_misspelt_names_are_answered_with_the_one_that_is_meant() -> None:
    with pytest.raises(UsageError) as caught:
        cells.load("dalli")
    assert caught.value.hint == "did you mean dali?"
    with pytest.raises(UsageError) as caught:
        cells.select(cells.load("dali"), loaders=["pytorc"])
    assert caught.value.hint == "did you mean pytorch?"
    with pytest.raises(UsageError, match="no cell of dali matches"):
        cells.select(cells.load("dali"), models=["resnet1"])


@pytest.mark.parametrize(
    ("top", "cell", "words"),
    [
        ('budget_minutes = "x"', "", "budget_minutes must be a number"),
        ("scale = -1", "", "scale must be a number"),
        ("train_images = 0.5", "", "train_images must be a whole number"),
        ("reference = { loadr = 1 }", "", "no setting 'loadr'"),
        ('reference = "pytorch"', "", "reference is a table"),
        ('compare = "speed"', "", "compare must be one of"),
        ('accelerator = "v1000"', "", "accelerator must be one of none, v100"),
        ("shows = 3", "", "shows must be text"),
        ("published = 3", "", "written [[cells]] and [[published]]"),
        ("published = [{ img_s = 3 }]", "", "published needs where"),
        ('published = [{ where = { load = 1 }, img_s = "a" }]', "", "img_s must be a number"),
        ("", "workers = []", "workers is an empty list"),
        ('reference = { loader = "pytorc" }', "", "no loader 'pytorc'"),
        ('reference = { loader = ["pytorch"] }', "", "loader must be one value"),
        ("", "arguments = '--recipe \"fast'", "arguments cannot be split"),
    ],
)
def test_a_setting_of_another_type_is_named_before_anything_is_measured(
    top: str, cell: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "my exp ü.toml"
    file.write_text(f'title = "t"\nquestion = "q"\n{top}\n[[cells]]\n{cell}\n', encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        cells.load(str(file))
    assert words in str(caught.value) and str(file) in str(caught.value)


@pytest.mark.parametrize("extra", ["", "published_vcpus = 8\n"])
def test_an_unknown_published_processor_is_refused_on_every_machine(
    extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "_processor", lambda table: (None, True))  # a processor here without a score
    file = tmp_path / "mine.toml"
    file.write_text(OWN.format(extra=f'published_cpu = "Xeon 9"\n{extra}', cell="load = 1"))
    for gpu in ("v100", "a100", None):
        with pytest.raises(UsageError, match="published_cpu 'Xeon 9'") as caught:
            trials._projection(cells.load(str(file)), gpu)
        assert "Xeon E5-2686 v4" in (caught.value.hint or "")
    assert trials._projection(cells.load("dali"), "v100")[0] is None
