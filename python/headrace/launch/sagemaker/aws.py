"""Make boto3's clients of AWS, retry transient errors, and explain the others to the user.

Keys stay with boto3. Messages of AWS are shown on one line, without anything that looks like a key.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from headrace.errors import HeadraceError, MissingDependencyError, SourceError
from headrace.system.text.install_hints import extra_hint
from headrace.system.text.redaction import redact_text
from headrace.system.text.size_limits import record_limit, too_large

__all__ = ["MOST_PAGES", "aws_client", "error_code", "explained", "is_passing", "list_sizes", "patiently", "read_object"]

Found = TypeVar("Found")

PASSING = frozenset({"ThrottlingException", "Throttling", "RequestLimitExceeded", "TooManyRequestsException", "SlowDown",
                     "ServiceUnavailable", "ServiceUnavailableException", "InternalFailure", "InternalServerError",
                     "InternalError", "RequestTimeout"})  # fmt: skip
"""AWS error codes of transient errors: the same call succeeds later."""

HINTS = {
    "ResourceLimitExceeded": "the account's quota is reached (spot jobs have one of their own): ask for more under "
    "Service Quotas, or use another instance type",
    "AccessDeniedException": "the credentials lack the right that the message names",
    "AccessDenied": "the credentials lack the right that the message names",
    "UnrecognizedClientException": "the credentials are not valid in this region",
    "ExpiredTokenException": "the credentials have expired: sign in again",
    "ResourceNotFound": "check the name and --region",
}

MOST_PAGES = 1000
"""Read at most this many pages of a listing: 1,000 names each, or 100,800 points. A server may name a next one for ever."""

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0


def aws_client(service: str, region: str) -> Any:
    """Return the boto3 client for an AWS service in a region.

    Raises `MissingDependencyError` if boto3 is not installed, `HeadraceError` if there are no AWS credentials.
    """
    try:
        boto3 = importlib.import_module("boto3")
    except ImportError:
        raise MissingDependencyError("calling AWS needs boto3", hint=extra_hint("aws")) from None
    session = boto3.session.Session()
    if session.get_credentials() is None:
        raise HeadraceError("there are no AWS credentials", hint="aws configure, or AWS_PROFILE=NAME")
    return session.client(service, region_name=region)


def error_code(error: BaseException) -> str:
    """Return the AWS error code of an exception ("ThrottlingException"); "" if the service did not raise it."""
    return str(_answer(error).get("Code", ""))


def _answer(error: BaseException) -> dict[str, Any]:
    response = getattr(error, "response", None)  # requests' errors have None, or no dictionary
    found = response.get("Error") if isinstance(response, dict) else None
    return found if isinstance(found, dict) else {}


def is_passing(error: BaseException) -> bool:
    """Return whether an error is transient: throttling, a fault inside AWS, or a lost connection."""
    if error_code(error):
        return error_code(error) in PASSING
    return isinstance(error, OSError) or type(error).__name__ in {
        "EndpointConnectionError", "ConnectionClosedError", "ConnectTimeoutError", "ReadTimeoutError", "HTTPClientError",
        "ProxyConnectionError", "ConnectionError",
    }  # fmt: skip


def explained(error: BaseException, doing: str) -> HeadraceError:
    """Return an error of ours from an exception of boto3: what was being done (`doing`), AWS's words, and what to do."""
    code = error_code(error)
    message = _answer(error).get("Message") or str(error)
    words = redact_text(" ".join(str(message).split()))[:300]
    return SourceError(f"{doing}: {code or type(error).__name__}: {words}", hint=HINTS.get(code))


def patiently(
    call: Callable[[], Found], doing: str, *, sleep: Callable[[float], None], log: Callable[[str], None], patience: int = 8
) -> Found:
    """Call `call` and return its result; retry after transient errors, up to `patience` times, with growing pauses.

    Raises `HeadraceError` for other errors, and when patience has ended.
    """
    wait_s = FIRST_WAIT_S
    for attempt in range(patience + 1):
        try:
            return call()
        except HeadraceError:
            raise
        except Exception as error:  # botocore has a class for each error
            if not is_passing(error) or attempt == patience:
                raise explained(error, doing) from None
            log(f"{doing}: {error_code(error) or type(error).__name__}, again in {wait_s:g} s")
            sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
    raise AssertionError("unreachable")


def list_sizes(
    s3: Any, bucket: str, prefix: str, *, sleep: Callable[[float], None], log: Callable[[str], None]
) -> Iterator[tuple[str, int]]:
    """Yield key and bytes of each object below a prefix. Raises `HeadraceError` where S3 refuses, or lists without end."""
    token: str | None = None
    for _ in range(MOST_PAGES):
        more = {"ContinuationToken": token} if token else {}
        asked = {"Bucket": bucket, "Prefix": prefix, **more}
        answer = patiently(
            functools.partial(s3.list_objects_v2, **asked), f"listing s3://{bucket}/{prefix}", sleep=sleep, log=log
        )
        yield from ((str(one["Key"]), int(one.get("Size") or 0)) for one in answer.get("Contents", []))
        token = answer.get("NextContinuationToken")
        if not token:
            return
    raise SourceError(f"s3://{bucket}/{prefix} lists more than {MOST_PAGES} pages of files")


def read_object(s3: Any, bucket: str, key: str, *, sleep: Callable[[float], None], log: Callable[[str], None]) -> bytes:
    """Return an object of S3. Raises `HeadraceError` where S3 refuses, and for one larger than a record may be."""

    def read() -> bytes:
        limit = record_limit()
        data = bytes(s3.get_object(Bucket=bucket, Key=key)["Body"].read(limit + 1))
        if len(data) > limit:
            raise SourceError(f"s3://{bucket}/{key} {too_large(len(data), limit)}")
        return data

    return patiently(read, f"reading s3://{bucket}/{key}", sleep=sleep, log=log)
