"""JSON of others: a document that takes many times its size in memory, or is nested endlessly, is refused before it is parsed.

A value of three bytes (`[],`) takes 64 as an object, and a packed trace of a megabyte holds 300 million of them.
"""

from __future__ import annotations

import json
from typing import Any

from headrace.system.text.size_limits import RECORD_LIMIT, record_limit

__all__ = ["check_values", "count_values", "parse_json"]

BYTES_OF_VALUE = 16
"""The limit in bytes, divided by this, is the limit in values: a trace has 14 to 21 bytes for each, a request more."""


def parse_json(document: bytes) -> Any:
    """Return the value of a JSON document.

    Raises ValueError if it is none, is nested deeply, or holds more values than documents of `record_limit` bytes do.
    """
    check_values(document)
    try:
        return json.loads(document)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def check_values(document: bytes) -> None:
    """Raise ValueError if JSON text, in one document or in lines, may hold more values than `record_limit` allows."""
    most = record_limit() // BYTES_OF_VALUE
    if len(document) <= most:
        return
    values = count_values(document)
    if values > most:
        limit = f"the limit of {most:,} ({RECORD_LIMIT}=SIZE raises it)"
        raise ValueError(f"the JSON holds up to {values:,} values, more than {limit}")


def count_values(document: bytes) -> int:
    """Return an upper bound of the number of values in JSON text, which is one document or one in each line."""
    # A value stands first in its list, object or line, or after a comma.
    return sum(map(document.count, (b",", b"[", b"{", b"\n")))
