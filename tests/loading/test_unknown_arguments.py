"""A misspelt keyword argument is an error that names the argument that was meant."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import headrace
import pytest
from headrace.errors import HeadraceError, UnknownArgumentError, UsageError


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("num_workers", "threads"),
        ("workers", "threads"),
        ("prefetch_factor", "prefetch"),
        ("generator", "seed"),
        ("shufle", "shuffle"),
        ("Batch_Size", "batch_size"),
        ("treads", "threads"),
        ("drop_lst", "drop_last"),
    ],
)
def test_a_loader_names_the_argument_that_was_meant(wrong: str, meant: str) -> None:
    with pytest.raises(UnknownArgumentError, match=f"Loader takes no argument '{wrong}'") as caught:
        headrace.Loader("photos", batch_size=2, **{wrong: 4})  # type: ignore[arg-type]
    assert f"did you mean {meant}?" in (caught.value.hint or "")


@pytest.mark.parametrize("wrong", ["pin_memory", "persistent_workers", "collate_fn", "worker_init_fn"])
def test_what_a_loader_does_by_itself_can_be_left_out(wrong: str) -> None:
    with pytest.raises(TypeError) as caught:
        headrace.Loader("photos", 2, **{wrong: None})  # type: ignore[arg-type]
    assert isinstance(caught.value, UsageError) and (caught.value.hint or "").startswith("leave it out: ")


@pytest.mark.parametrize(
    ("function", "wrong", "meant"),
    [
        (headrace.open, "recods", "records"),
        (headrace.verify, "decod", "decode"),
        (headrace.decode_into, "box", "boxes"),
        (headrace.show_batch, "colums", "columns"),
        (headrace.pack, "qualty", "quality"),
        (headrace.pack, "worker", "workers"),
    ],
)
def test_other_functions_do_as_well(function: Any, wrong: str, meant: str, tmp_path: Path) -> None:
    arguments = [tmp_path / "in", tmp_path / "out"] if function is headrace.pack else [tmp_path]
    with pytest.raises(UnknownArgumentError, match=f"{function.__name__} takes no argument '{wrong}'") as caught:
        function(*arguments, **{wrong: 1})
    assert caught.value.hint == f"did you mean {meant}?"


def test_a_name_like_no_other_lists_the_arguments() -> None:
    with pytest.raises(UnknownArgumentError) as caught:
        headrace.open("photos", zzz=1)  # type: ignore[call-arg]
    assert caught.value.hint == "it takes path, classes, records, part, root, split, on_listed"


def test_signatures_and_other_errors_stay_pythons() -> None:
    assert "threads" in inspect.signature(headrace.Loader).parameters and "Iterate over" in (headrace.Loader.__doc__ or "")
    assert list(inspect.signature(headrace.open).parameters) == [
        "path",
        "classes",
        "records",
        "part",
        "root",
        "split",
        "on_listed",
    ]
    with pytest.raises(TypeError, match="missing") as caught:
        headrace.Loader("photos")  # type: ignore[call-overload]
    assert not isinstance(caught.value, HeadraceError)
