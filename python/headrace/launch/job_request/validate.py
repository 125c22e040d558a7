"""All mistakes of a request, found without network.

for mistake in check_request(request):
    print(mistake)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from headrace.errors import UsageError
from headrace.launch.job_request.mistakes import Mistake
from headrace.launch.job_request.request_fields import field_mistakes
from headrace.launch.job_request.request_rules import rule_mistakes
from headrace.system.text.redaction import redact_text

__all__ = ["check_request", "refuse_mistakes"]

MOST_MISTAKES = 100
"""List no more mistakes of single fields: a stranger's request may hold a million."""


def check_request(request: Any, *, region: str | None = None) -> list[Mistake]:
    """Return the mistakes in a CreateTrainingJob request: first in single fields, then between fields.

    region: where the request is sent; None leaves out what depends on it. Rules between fields are applied once every
    field has the right type and length. Of more than `MOST_MISTAKES` mistakes in single fields, the first are returned.
    """
    fields = list(itertools.islice(field_mistakes(request), MOST_MISTAKES))
    if len(fields) == MOST_MISTAKES or any(mistake.unfit for mistake in fields):
        return fields
    return [*fields, *rule_mistakes(request, region=region)]


def refuse_mistakes(found: list[Mistake], log: Callable[[str], None]) -> None:
    """Write every mistake to `log`, and raise `UsageError` with the fatal ones, if there are any, in its message."""
    for mistake in found:
        log(f"  {redact_text(str(mistake))}")
    fatal = [mistake for mistake in found if mistake.fatal]
    if len(fatal) == 1:
        raise UsageError(f"the request has a mistake: {redact_text(str(fatal[0]))}", hint="nothing was sent")
    if fatal:
        words = " · ".join(redact_text(str(mistake)) for mistake in fatal)
        raise UsageError(f"the request has {len(fatal)} mistakes: {words}", hint="nothing was sent")
