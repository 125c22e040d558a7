"""Retries of requests to object stores: which failures are tried again, how often, and after what pause.

Every request of `store.Bucket` goes through `with_retries`. obstore retries broken connections and server errors by itself
inside each try (`client_retries`); the tries here add answers that are incomplete or have a wrong checksum. Checkpoints have a
second layer above this one: `headrace/training/weights/uploads.py` reads each uploaded file back and sends it again if it
differs.
"""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from headrace.system.text.foreign_errors import public_cause
from headrace.system.text.redaction import without_url_secrets

__all__ = ["DEFAULT", "IncompleteError", "RetryPolicy", "request_errors", "with_retries"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long and how often a request is tried."""

    tries: int = 6
    backoff_s: float = 0.1  # pause before the second try; doubles with each try, times a random factor of 0.5 to 1.5
    timeout_s: float = 30.0  # of one request: a range has a few MiB, so a request that takes longer is stuck
    patience_s: float = 120.0  # no further try after this time
    client_retries: int = 3  # by obstore, inside each try


DEFAULT = RetryPolicy()


class IncompleteError(Exception):
    """Raised when an object store's answer is shorter than the requested range, or has a wrong checksum."""


def request_errors() -> tuple[type[Exception], ...]:
    """Return the classes of exceptions that a failed request raises: obstore's, OSError and IncompleteError."""
    return (importlib.import_module("obstore.exceptions").BaseError, IncompleteError, OSError)


def with_retries(
    action: Callable[[], T],
    policy: RetryPolicy,
    permanent: Callable[[Exception], Exception | None],
    exhausted: Callable[[Exception], Exception],
) -> T:
    """Return the result of `action()`, which is called again after a failure as often as `policy` allows.

    permanent: returns the error to raise at once for a failure that no further try can mend, or None.
    exhausted: returns the error to raise after the last try.

    Raises FileNotFoundError if the object does not exist, else what `permanent` or `exhausted` returns.
    """
    errors = importlib.import_module("obstore.exceptions")
    permanent_kinds = (errors.PermissionDeniedError, errors.UnauthenticatedError, errors.InvalidPathError)
    deadline_s = time.monotonic() + policy.patience_s
    for attempt in range(1, policy.tries + 1):
        try:
            return action()
        except (errors.NotFoundError, FileNotFoundError) as error:
            raise FileNotFoundError(without_url_secrets(str(error))) from public_cause(error)
        except request_errors() as error:
            if (reason := permanent(error)) is not None:
                raise reason from public_cause(error)
            if attempt == policy.tries or isinstance(error, permanent_kinds) or time.monotonic() > deadline_s:
                raise exhausted(error) from public_cause(error)
        time.sleep(policy.backoff_s * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
    raise AssertionError("unreachable")
