"""The options of a Loader: each wrong value is refused, with what to do instead, before any image is read."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from inspect import signature
from typing import Any

import headrace
import pytest
from headrace.errors import UsageError
from headrace.loading.feeding.options import LoaderOptions, resolve_rank


def options(**changed: Any) -> LoaderOptions:
    return LoaderOptions(**({"batch_size": 4, "rank": 0, "world_size": 1, "threads": 1} | changed))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"rank": 2, "world_size": 2}, "rank 2 of world size 2"),
        ({"rank": -1}, "rank -1"),
        ({"world_size": 0}, "world size 0"),
        ({"threads": 0}, "threads and prefetch"),
        ({"prefetch": 0}, "threads and prefetch"),
        ({"seed": -1}, "seed must be"),
        ({"seed": 2**63}, "seed must be"),
        ({"output": "tensorflow"}, "output must be"),
        ({"output": "numpy", "dtype": "bfloat16"}, "no bfloat16"),
        ({"output": "numpy", "device": "cuda"}, "no GPU"),
        ({"on_error": "ignore"}, "on_error must be"),
        ({"mask": "mask.png", "mask_fill": 256}, "mask_fill must be"),
        ({"cache": "8GiB"}, "neither ram:SIZE"),
    ],
)
def test_refuses_a_wrong_option_and_says_what_to_do(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        options(**changed)
    assert caught.value.hint


def test_options_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        options().batch_size = 8  # type: ignore[misc]


def test_global_batch_counts_all_ranks() -> None:
    assert options(batch_size=6, rank=1, world_size=4).global_batch == 24


def test_rank_and_world_size_come_together() -> None:
    assert resolve_rank(1, 4) == (1, 4)
    assert resolve_rank(None, None) == (0, 1)
    for given in ((1, None), (None, 4)):
        with pytest.raises(UsageError, match="together") as caught:
            resolve_rank(*given)
        assert caught.value.hint


def test_loader_takes_each_option_with_the_same_default() -> None:
    """A new option has to be added to both."""
    arguments = {name: one.default for name, one in signature(headrace.Loader.__init__).parameters.items()}
    for name in ("self", "data", "transform"):
        del arguments[name]
    resolved = {"batch_size", "rank", "world_size", "threads"}  # without a default in LoaderOptions
    assert set(arguments) == {field.name for field in fields(LoaderOptions)}
    for field in fields(LoaderOptions):
        assert field.name in resolved or field.default == arguments[field.name]


def test_loader_documents_each_option_with_its_default() -> None:
    text = headrace.Loader.__doc__ or ""
    for name, argument in signature(headrace.Loader.__init__).parameters.items():
        if name in ("self", "data", "batch_size", "transform"):
            continue
        default = f'"{argument.default}"' if isinstance(argument.default, str) else repr(argument.default)
        together = {"rank": "rank, world_size", "with_index": "with_index, with_key", "with_key": "with_index, with_key"}
        assert f"{together.get(name, name)} ({default}): " in text, name
