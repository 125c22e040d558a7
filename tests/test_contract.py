"""What others' scripts rely on still works: flags, fields of `--json`, public names with their arguments, errors.

tests/golden/contract.json was recorded from the commit before the package was laid out in folders (helpers/contract.py). It may
grow; no recorded name may be missing.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import contract
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.timeout(300)  # the small runs of the fixture take half a minute on two quiet cores
RECORDED: dict[str, Any] = json.loads((REPOSITORY / "tests" / "golden" / "contract.json").read_text())

MEASURED = ("terms_s.", "startup_s.")
"""Fields of a diagnosis whose names depend on what a run could measure."""

INTERNAL = {"residency"}
"""The field of Dataset that held the cache of a remote dataset. No document names it; it is `fetcher` now."""


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Documents of the tree under test, from the same small runs."""
    pytest.importorskip("torchvision")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("contract"))
        return contract.documents()


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The loader of the tree under test, of a pack like that of the documents."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("contract"))
        contract.images(Path("images"))
        contract.document_of(["pack", "images", "packed", "--json"])
        return contract.loader()


@pytest.mark.parametrize("verb", RECORDED["verbs"])
def test_every_flag_of_before_is_accepted(verb: str) -> None:
    now = contract.verbs()[verb]
    assert now["takes_command"] == RECORDED["verbs"][verb]["takes_command"]
    actions = {name: action for action in now["arguments"] for name in action["names"]}
    positions = [action["names"] for action in now["arguments"] if not action["names"][0].startswith("-")]
    before = RECORDED["verbs"][verb]["arguments"]
    assert len(positions) == sum(not action["names"][0].startswith("-") for action in before)
    for action in before:
        option = action["names"][0].startswith("-")
        names = action["names"] if option else positions.pop(0)
        for name in names:
            assert name in actions, f"headrace {verb} {name}"
            found = actions[name]
            assert found["nargs"] == action["nargs"], f"headrace {verb} {name}"
            assert found["default"] == action["default"], f"headrace {verb} {name}"
            assert action["required"] or not found["required"], f"headrace {verb} {name}"
            if found["choices"] is not None:
                assert action["choices"] is not None and set(action["choices"]) <= set(found["choices"]), f"{verb} {name}"


@pytest.mark.parametrize("name", RECORDED["names"])
def test_every_public_name_takes_the_arguments_of_before(name: str) -> None:
    now = contract.names()
    assert name in now
    if RECORDED["names"][name] is None:
        return
    assert now[name] is not None
    found = {argument["name"]: argument for argument in now[name]}
    recorded = [argument for argument in RECORDED["names"][name] if argument["kind"] != "VAR_KEYWORD"]
    before = [argument for argument in recorded if argument["name"] not in INTERNAL]
    for argument in before:
        assert argument["name"] in found, argument["name"]
        same = found[argument["name"]]
        assert same["default"] == argument["default"], argument["name"]
        assert argument["required"] or not same["required"], argument["name"]
    assert all(argument["name"] in {one["name"] for one in before} or not argument["required"] for argument in found.values()
               if not argument["kind"].startswith("VAR_"))  # fmt: skip
    positional = [one["name"] for one in before if one["kind"].startswith("POSITIONAL")]
    positions = [one["name"] for one in now[name] if one["kind"].startswith("POSITIONAL")]
    assert [place for place in positions if place in positional] == positional


def test_pack_takes_every_option_of_before() -> None:
    import headrace

    takes = inspect.signature(headrace.pack)
    options = [argument["name"] for argument in RECORDED["names"]["headrace.packing.PackOptions"]]
    assert len(options) > 10
    for option in options:
        assert takes.bind("source", "destination", **{option: None}), option


@pytest.mark.parametrize("name", RECORDED["errors"])
def test_every_error_is_caught_as_before(name: str) -> None:
    now = contract.errors()
    assert name in now
    assert set(RECORDED["errors"][name]) <= set(now[name])


def test_the_schema_of_a_diagnosis_has_every_field_of_before() -> None:
    now = contract.schema(REPOSITORY / "docs" / "reference" / "diagnosis.schema.json")
    assert set(RECORDED["schema"]) <= set(now), sorted(set(RECORDED["schema"]) - set(now))


def parent(path: str) -> str:
    """The container of a field: `a[].b` is in `a[]`."""
    return path.rpartition(".")[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED["documents"])
def test_every_json_field_of_before_is_there(name: str, documents: dict[str, Any]) -> None:
    now, before = set(documents[name]), RECORDED["documents"][name]
    filled = {parent(path) for path in now}  # a list may be empty in this run: then it says nothing about its fields
    missing = [path for path in before if path not in now and parent(path) in filled and not path.startswith(MEASURED)]
    assert not missing
    assert {path for path in before if "." not in path} <= now
    assert len(now & set(before)) > len(before) / 2


@pytest.mark.parametrize("part", RECORDED["loader"])
def test_a_loader_has_every_field_of_before(part: str, loader: dict[str, Any]) -> None:
    now, before = set(loader[part]), set(RECORDED["loader"][part]) - INTERNAL
    assert before <= now, sorted(before - now)
