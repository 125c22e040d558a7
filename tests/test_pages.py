"""Pages made from results or code say what their JSON or code says: `make results` would change nothing."""

from __future__ import annotations

import copy
import functools
import importlib
import json
import operator
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
BENCHMARKS = REPOSITORY / "benchmarks"
DATA = BENCHMARKS / "results" / "data"
DOCUMENTS = sorted(path.stem for path in DATA.glob("*.json"))
PAGES = sorted(path.stem for path in (BENCHMARKS / "results").glob("*.md"))
PARTS = {"attach_overhead", "exactness", "fuzzing"}
"""Documents that fill a part of another page."""
BY_HAND = {"fuzzing", "measured_once"}
"""Documents that no benchmark writes."""


@pytest.fixture(scope="module")
def render() -> Iterator[ModuleType]:
    """benchmarks/render.py, with the modules of benchmarks/pages that it imports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("render")
        for name in [name for name in sys.modules if name.split(".")[0] in ("machine_facts", "pages", "record", "render")]:
            del sys.modules[name]


def page_module(name: str) -> Any:
    return importlib.import_module(f"pages.{name.replace('-', '_')}")


@pytest.mark.parametrize("kind", ["measured", "described", "pictures"])
def test_every_page_is_what_make_results_writes(render: ModuleType, kind: str) -> None:
    if kind == "pictures":
        pytest.importorskip("botocore")
    files: dict[Path, str] = getattr(render, kind)()
    stale = [str(path.relative_to(REPOSITORY)) for path, text in files.items() if path.read_text(encoding="utf-8") != text]
    assert not stale, f"run `make results`: {', '.join(stale)}"


def test_every_page_and_every_document_is_rendered(render: ModuleType) -> None:
    experiments = json.loads((DATA / "trials.json").read_text(encoding="utf-8"))["experiments"]
    assert set(PAGES) == set(render.PAGES) | {f"trials-{name}" for name in experiments}
    assert set(DOCUMENTS) == set(render.PAGES) | PARTS
    parts = {path.name for path in render.measured() if path.suffix == ".md" and path.parent != BENCHMARKS / "results"}
    assert parts == {"README.md", "index.md", "exactness.md", "fuzzing-runs.md"}


def numbers(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all measured numbers in a document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if at or key not in ("machine", "versions"):
                yield from numbers(inner, (*at, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from numbers(inner, (*at, place))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield at


def parts(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The document, or one for each of its experiments: rendering all for each number of one takes a minute."""
    if "experiments" not in document:
        return [document]
    return [document | {"experiments": {name: found}} for name, found in document["experiments"].items()]


# Figures that the README or a reader of the JSON wants, and the page states in its remarks.
NOT_ON_ITS_PAGE = {("diagnosis", "first_judged")}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_changed_number_changes_the_page(render: ModuleType, name: str) -> None:
    document = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    render_page = page_module(name).render
    unseen = []
    for part in parts(document):
        before = render_page(part)
        for place in numbers(part):
            if any(str(key).endswith("rounds") for key in place[:-1]) or (name, place[0]) in NOT_ON_ITS_PAGE:
                continue
            inner = functools.reduce(operator.getitem, place[:-1], part)
            number = inner[place[-1]]
            inner[place[-1]] = 7 * number + 3
            if render_page(part) == before:
                unseen.append(place)
            inner[place[-1]] = number
        assert render_page(part) == before
    assert not unseen


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name not in BY_HAND])
def test_a_document_names_machine_versions_commit_date_and_command(render: ModuleType, name: str) -> None:
    document = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    assert document["name"] == name
    assert {"processor", "usable_cores", "memory_gib"} <= set(document["machine"])
    assert "Python" in document["versions"]
    assert document["commit"] and document["date"][:2] == "20" and document["command"]
    page = "" if name == "attach_overhead" else page_module(name).render(document)
    for words in (document["commit"], document["date"], document["command"], document["machine"]["processor"]):
        assert name == "attach_overhead" or str(words) in page


def test_every_page_has_a_make_target_and_every_target_a_script() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = {line.split(":")[0] for line in makefile.splitlines() if line.startswith("bench-")}
    # bench-gpu writes awaits_gpu and gpu-trials, too
    expected = {f"bench-{name.replace('_', '-')}" for name in set(DOCUMENTS) - PARTS - BY_HAND - {"awaits_gpu", "gpu-trials"}}
    expected |= {"bench-exactness", "bench-intervals", "bench-overhead"}
    assert targets == expected
    scripts = {word for word in makefile.split() if word.startswith("benchmarks/") and word.endswith(".py")}
    assert all((REPOSITORY / script).exists() for script in scripts)
    assert len(scripts) == len(expected) + 1  # and render.py


def test_readme_takes_its_figures_from_the_documents(render: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = page_module("readme")
    real = readme.read

    def changed(name: str) -> Any:
        document = copy.deepcopy(real(name))
        if name == "demo":
            document["rows"][0]["img_s"] = 12345.0
        return document

    monkeypatch.setattr(readme, "read", changed)
    assert "12,345 img/s" in readme.render()["short"] and "12,345 img/s" in readme.summary()
    assert "12,345 img/s" not in (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_markers_that_are_missing_are_an_error(render: ModuleType) -> None:
    text = "a\n<!-- results:begin x -->\nold\n<!-- results:end x -->\nb\n"
    assert render.filled(text, "x", "new") == "a\n<!-- results:begin x -->\nnew\n<!-- results:end x -->\nb\n"
    with pytest.raises(ValueError, match="results:begin y"):
        render.filled(text, "y", "new")


def test_a_benchmark_writes_what_its_page_is_rendered_from(
    render: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = importlib.import_module("record")
    monkeypatch.setattr(sys, "argv", [str(BENCHMARKS / "trainer_wait.py"), "--rounds", "3", "--write"])
    settings = {"batch_size": 4, "size": 32, "photographs": 5, "copies": 6, "rounds": 3, "seconds": 1.0, "target": 0.02}
    row = {
        "ingest_over_compute": 1.5,
        "ingest_img_s": 300.0,
        "compute_img_s": 200.0,
        "end_to_end_img_s": 199.0,
        "of_compute": 0.995,
        "wait_share": record.spread([0.03, 0.01, 0.02]),
        "below_target": False,
    }
    assert row["wait_share"] == {"median": 0.02, "least": 0.01, "greatest": 0.03, "rounds": [0.03, 0.01, 0.02]}
    found = record.document("trainer_wait", ["numpy", "no-such-package"], settings=settings, rows=[row])
    assert found["command"] == "python benchmarks/trainer_wait.py --rounds 3 --write"
    assert set(found["versions"]) == {"Python", "numpy"}
    before = {path: path.read_text(encoding="utf-8") for path in DATA.iterdir()}
    record.publish(found, save=True, file=tmp_path / "found.json")
    printed = capsys.readouterr().out
    assert "| 1.50 | 300 | 200 | 199 | 99.5 % | 2.00 % (1.00 % to 3.00 %) | **no** |" in printed
    again = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert page_module("trainer_wait").render(again).strip() == printed.strip()
    assert before == {path: path.read_text(encoding="utf-8") for path in DATA.iterdir()}, (
        "with a file of its own, no page changes"
    )
