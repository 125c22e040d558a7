"""Every error that headrace raises on purpose.

HeadraceError
├── UsageError           the call or the command line is wrong (exit code 2)
│   ├── RecordIndexError     a dataset has no record of that number (also an IndexError)
│   ├── UnknownArgumentError a function takes no such keyword argument (also a TypeError)
│   └── UnknownNameError     headrace, or an object of it, has no such attribute (also an AttributeError)
├── SourceError          a dataset path or URL cannot be opened, or holds no images
│   └── UnknownLengthError   the number of records of a stream is not known (also a TypeError)
├── DecodeError          an image cannot be decoded; names its key and the reason
├── FormatError          a packed dataset (shard, index, manifest) breaks its format
├── StateError           a saved state or checkpoint does not fit this dataset, transform or version
├── SessionError         a saved session cannot be read, or holds nothing to report
├── CommandError         the user's command could not be started, or failed
└── MissingDependencyError   an optional package is missing; names the command that installs it

Each message says what was found, where, and what to do next. All errors can be pickled, because they cross process borders.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = [
    "CommandError",
    "DecodeError",
    "FormatError",
    "HeadraceError",
    "MissingDependencyError",
    "RecordIndexError",
    "SessionError",
    "SourceError",
    "StateError",
    "UnknownArgumentError",
    "UnknownLengthError",
    "UnknownNameError",
    "UsageError",
]


class HeadraceError(Exception):
    """Base of all errors that headrace raises. `hint`: what to do next, or None; it stands below the message in tracebacks."""

    hint: str | None
    mask: Callable[[str], str] = staticmethod(str)
    """Removes secrets in URLs from messages, because tracebacks end in logs, and escapes characters that act on a terminal.

    `headrace.system.text.redaction` sets it.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(self.mask(message))
        self.hint = None if hint is None else self.mask(hint)
        if self.hint:
            self.add_note(f"hint: {self.hint}")  # below the message in tracebacks, notebooks and logs

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(kind: type[HeadraceError], args: tuple[object, ...], fields: dict[str, object]) -> HeadraceError:
    error = kind.__new__(kind, *args)
    Exception.__init__(error, *args)
    error.__dict__.update(fields)
    return error


class UsageError(HeadraceError):
    """The call or the command line is wrong."""


class RecordIndexError(UsageError, IndexError):
    """A dataset has no record of that number. Also an IndexError, with which `for image, label in dataset` ends."""


class UnknownArgumentError(UsageError, TypeError):
    """A function takes no such keyword argument. Also a TypeError, as of any Python function. The hint names the one meant."""


class UnknownNameError(UsageError, AttributeError):
    """headrace, or an object of it, has no such attribute. Also an AttributeError. The message says what to use instead."""


class SourceError(HeadraceError):
    """A dataset cannot be opened, or holds no images."""


class UnknownLengthError(SourceError, TypeError):
    """The number of records of a stream is not known. Also a TypeError, so that `list(loader)` continues without a length."""


class DecodeError(HeadraceError):
    """An image cannot be decoded. `key`: its path, or shard and offset. `status`: the number of the reason."""

    def __init__(self, message: str, *, key: str = "", status: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.key = key
        self.status = status


class FormatError(HeadraceError):
    """A shard, index or manifest breaks the format of `docs/reference/format.md`."""


class StateError(HeadraceError):
    """A saved state does not fit the loader, model or run that it is loaded into."""


class SessionError(HeadraceError):
    """A saved session cannot be read, or holds nothing to report."""


class CommandError(HeadraceError):
    """The user's command could not be started, or failed."""


class MissingDependencyError(HeadraceError):
    """An optional package is missing. The hint is the command that installs it."""
