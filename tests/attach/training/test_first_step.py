"""Why `torch.compile` compiled again: the latest reason, of whichever function."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace.attach.training.first_step import CompileTimer


def test_the_reason_is_that_of_the_function_which_compiled_again() -> None:
    failures: dict[Any, list[str]] = {"forward": ["size of x\nmore"], "loss": ["size of y"]}
    module, timer = SimpleNamespace(guard_failures=failures), CompileTimer(None)  # type: ignore[arg-type]
    assert timer._new_reason(module) == "size of y"
    assert timer._new_reason(module) is None
    failures["forward"].append("size of z")
    assert timer._new_reason(module) == "size of z"
    failures.clear()  # torch.compiler.reset()
    failures["loss"] = ["type of y"]
    assert timer._new_reason(module) in ("type of y", None)


def test_a_table_of_another_kind_gives_no_reason_and_no_error() -> None:
    timer = CompileTimer(None)  # type: ignore[arg-type]
    assert timer._new_reason(SimpleNamespace()) is None
    assert timer._new_reason(SimpleNamespace(guard_failures=[1])) is None
    assert timer._new_reason(SimpleNamespace(guard_failures={"forward": None})) is None
