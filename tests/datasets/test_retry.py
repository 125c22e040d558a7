"""Retries of requests to object stores: how often a request is tried, and which failures end it at once."""

from __future__ import annotations

import pytest
from headrace.datasets.sources.remote.retry import IncompleteError, RetryPolicy, with_retries
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
