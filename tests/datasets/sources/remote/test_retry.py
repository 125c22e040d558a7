"""Retries of requests to object stores: how often a request is tried, and which failures end it at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from headrace.datasets.sources.remote import store as store_module
from headrace.datasets.sources.remote.retry import IncompleteError, RetryPolicy, with_retries
from headrace.datasets.sources.remote.store import Bucket
from headrace.errors import SourceError

pytest.importorskip("obstore")
POLICY = RetryPolicy(tries=4, backoff_s=0.0)


class Request:
    """A request that raises each of `failures` in turn, and then succeeds."""

    def __init__(self, *failures: Exception) -> None:
        self.failures, self.count = list(failures), 0

    def __call__(self) -> str:
        self.count += 1
        if self.failures:
            raise self.failures.pop(0)
        return "done"


def send(request: Request, policy: RetryPolicy = POLICY, permanent: Exception | None = None) -> str:
    return with_retries(request, policy, lambda error: permanent, lambda error: SourceError(f"gave up: {error}"))


def test_a_request_is_tried_until_it_succeeds() -> None:
    request = Request(IncompleteError("short"), OSError("reset"))
    assert (send(request), request.count) == ("done", 3)


def test_the_last_failure_is_raised_after_all_tries() -> None:
    request = Request(*(IncompleteError(f"{number}") for number in range(9)))
    with pytest.raises(SourceError, match="gave up: 3"):
        send(request)
    assert request.count == 4


def test_a_permanent_failure_is_not_retried() -> None:
    request = Request(OSError("no bucket"))
    with pytest.raises(SourceError, match="no such bucket"):
        send(request, permanent=SourceError("no such bucket"))
    assert request.count == 1


def test_a_missing_object_is_not_retried() -> None:
    request = Request(FileNotFoundError("x"))
    with pytest.raises(FileNotFoundError):
        send(request)
    assert request.count == 1


def test_no_try_begins_after_the_patience_is_over() -> None:
    request = Request(OSError("reset"), OSError("reset"))
    with pytest.raises(SourceError, match="gave up"):
        send(request, RetryPolicy(tries=4, backoff_s=0.0, patience_s=0.0))
    assert request.count == 1


class Store:
    """A library of requests to one object of bytes 0, 1, 2, …

    faults: what happens in each call: "reset", the start of the range that comes short, or "".
    """

    def __init__(self, *faults: int | str) -> None:
        self.faults, self.asked = list(faults), list[list[int]]()

    def get_ranges(self, store: Any, path: str, *, starts: Sequence[int], lengths: Sequence[int], coalesce: int) -> list[bytes]:
        self.asked.append(list(starts))
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "reset":
            raise OSError("reset")
        answers = [bytes(range(start, start + length)) for start, length in zip(starts, lengths, strict=True)]
        return [answer[:-1] if start == fault else answer for start, answer in zip(starts, answers, strict=True)]


RANGES = [(0, 4), (10, 2), (20, 3)]
WHOLE = [bytes(range(start, start + size)) for start, size in RANGES]


@pytest.fixture
def no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request starts the threads of the real library."""
    monkeypatch.setattr(store_module, "_start_client", lambda library, url: None)


def read(store: Store, check: Any = None) -> Sequence[bytes]:
    return Bucket("memory://x", store, None, POLICY).read_ranges("a", RANGES, check)


@pytest.mark.usefixtures("no_client")
def test_of_several_ranges_only_the_incomplete_one_is_asked_for_again() -> None:
    store = Store(10, 10)
    assert read(store) == WHOLE
    assert store.asked == [[0, 10, 20], [10], [10]]


@pytest.mark.usefixtures("no_client")
def test_a_range_whose_check_fails_is_asked_for_again() -> None:
    store, checked = Store(), list[int]()

    def check(place: int, data: bytes) -> bool:
        checked.append(place)
        return place != 2 or checked.count(2) > 1

    assert read(store, check) == WHOLE
    assert store.asked == [[0, 10, 20], [20]]


@pytest.mark.usefixtures("no_client")
def test_after_a_failure_of_several_ranges_each_is_asked_for_alone() -> None:
    store = Store("reset", "", "reset")
    assert read(store) == WHOLE
    assert store.asked == [[0, 10, 20], [0], [10], [10], [20]]
    with pytest.raises(SourceError):
        read(Store(*["reset"] * 9))
