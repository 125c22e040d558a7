"""The words of errors that other libraries raise, for a message of one line."""

from __future__ import annotations

from headrace.system.text.redaction import without_url_secrets

__all__ = ["MOST_CHARACTERS", "first_line", "message_lines", "public_cause"]

MOST_CHARACTERS = 300
"""Cut a line after this many characters: some libraries put a whole response or a stack of C++ calls on one line."""


def message_lines(error: BaseException) -> list[str]:
    """Return the lines of an exception's message that are not blank; the name of its type if there are none.

    Example: `message_lines(ValueError())` is `["ValueError"]`.
    """
    lines = [line.strip()[:MOST_CHARACTERS] for line in str(error).splitlines() if line.strip()]
    return lines or [type(error).__name__]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that is not blank, or the name of its type if there is none.

    Example: `first_line(ValueError())` is "ValueError".
    """
    return message_lines(error)[0]


def public_cause(error: BaseException) -> BaseException | None:
    """Return `error` for `raise … from error`, or None if its message holds a URL's secret, which a traceback would print.

    Example: `raise SourceError(message) from public_cause(error)`.
    """
    return error if without_url_secrets(str(error)) == str(error) else None
