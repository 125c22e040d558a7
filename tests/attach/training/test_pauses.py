"""Collections of the training process: who began them."""

from __future__ import annotations

import gc
import weakref
from gc import collect
from types import FunctionType

import pytest
from headrace.attach.training import pauses
from headrace.attach.training.pauses import _calls_collect, _gc_timer


class Events:
    """A recorder that keeps the details of events."""

    def __init__(self) -> None:
        self.details: list[str] = []

    def event(self, name: str, start_s: float, duration_s: float, detail: str) -> None:
        self.details.append(detail)


def plainly() -> None:
    gc.collect()


def of_a_generation() -> None:
    collect(2)


def by_allocating() -> list[list[int]]:
    kept = [[number] for number in range(50_000)]
    assert collect is not None
    return kept


@pytest.mark.parametrize(("function", "called"), [(plainly, True), (of_a_generation, True), (by_allocating, False)])
def test_a_collection_tells_whether_the_script_asked_for_it(
    function: FunctionType, called: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "LEAST_PAUSE_S", 0.0)
    events = Events()
    timer = _gc_timer(events)  # type: ignore[arg-type]
    gc.callbacks.append(timer)
    try:
        function()
    finally:
        gc.callbacks.remove(timer)
    line = function.__code__.co_firstlineno + 1
    assert events.details
    assert all((f"called at {__file__}:{line}" in detail) == called for detail in events.details)


def test_a_function_that_has_not_begun_asked_for_nothing() -> None:
    assert not _calls_collect(plainly.__code__, -1)


def test_nothing_is_kept_of_functions_that_cannot_have_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "LEAST_PAUSE_S", 0.0)
    timer = _gc_timer(Events())  # type: ignore[arg-type]
    space = {"timer": timer}
    exec("def made():\n    timer('start', {})\n    timer('stop', {'generation': 0})", space)
    made = space.pop("made")
    code = weakref.ref(made.__code__)
    made()  # type: ignore[operator]
    del made
    assert code() is None


def test_a_collection_while_no_function_runs_is_the_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of Python the callback has no caller."""
    monkeypatch.setattr(pauses, "LEAST_PAUSE_S", 0.0)
    events = Events()
    timer = _gc_timer(events)  # type: ignore[arg-type]
    nothing = type("sys", (), {"_getframe": staticmethod(lambda: type("frame", (), {"f_back": None}))})
    monkeypatch.setattr(pauses, "sys", nothing)
    timer("start", {"generation": 2})
    timer("stop", {"generation": 2})
    assert events.details == ["generation 2"]
