"""Object stores: which URLs they have, listing, and ranged reads that are tried again until they are whole.

Credentials and other endpoints come from the environment (`access`).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any, TypeVar

from headrace.datasets.sources.remote.access import access_options, credentials_hint, is_unknown_user
from headrace.errors import MissingDependencyError, SourceError

__all__ = ["Bucket", "RemoteObject", "is_url", "is_web", "open_bucket"]

_SCHEMES = ("s3://", "gs://", "az://", "http://", "https://")
_TRIES = 6  # of ours, each with obstore's own retries of connections and server errors inside
_BACKOFF_S = 0.1  # before the second try; doubles, with jitter
_TIMEOUT = "30s"  # of one request: ranges are a few MiB at most, so a slower one is stuck
_PATIENCE_S = 120.0  # no further try after that
_INNER_RETRIES = 3

T = TypeVar("T")


def is_url(path: object) -> bool:
    """Whether `path` is the URL of an object store, not a local path."""
    return isinstance(path, str) and path.lower().startswith(_SCHEMES)


def is_web(url: str) -> bool:
    """Whether `url` is that of a web server, which answers for each file but seldom lists them."""
    return url.lower().startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """An object below a URL: path relative to it, size in bytes, the store's tag of its content, when it was written."""

    path: str
    size: int
    tag: str
    modified_s: float  # seconds since 1970

    @staticmethod
    def of(entry: Any, path: str) -> RemoteObject:
        """What the store's client says of the object at `path`."""
        return RemoteObject(path, int(entry["size"]), str(entry.get("e_tag") or ""), entry["last_modified"].timestamp())


class Bucket:
    """A prefix of an object store."""

    def __init__(self, url: str, library: Any, store: Any) -> None:
        self.url, self._library, self._store = url, library, store
        self._known = False  # to the store: it has answered a request

    def list(self) -> list[RemoteObject]:
        """All objects below the URL, sorted by path. Raises SourceError when they cannot be listed, or a path leads out."""
        found: list[RemoteObject] = []
        for page in self._tried(lambda: list(self._library.list(self._store, chunk_size=1000)), "list"):
            found += [RemoteObject.of(entry, entry["path"]) for entry in page]
        for entry in found:
            parts = PurePosixPath(entry.path).parts
            if entry.path.startswith("/") or ".." in parts or "\0" in entry.path:
                raise SourceError(f"{self.url} holds an object with the name {entry.path!r}, which leads out of a folder")
        return sorted((entry for entry in found if not entry.path.endswith("/")), key=lambda entry: entry.path)

    def read(self, path: str) -> bytes | None:
        """A whole, small object, or None when there is none."""
        try:
            return self._tried(lambda: bytes(self._library.get(self._store, path).bytes()), path)
        except FileNotFoundError:
            return None

    def read_range(self, path: str, offset: int, size: int, check: Callable[[bytes], bool] | None = None) -> bytes:
        """Exactly `size` bytes from `offset`; an answer that is shorter, or that `check` refuses, is asked for again."""

        def whole() -> bytes:
            data = bytes(self._library.get_range(self._store, path, start=offset, length=size))
            if len(data) != size:
                raise _IncompleteError(f"{len(data)} of {size} bytes came")
            if check is not None and not check(data):
                raise _IncompleteError("the bytes that came have another checksum")
            return data

        try:
            return self._tried(whole, path)
        except FileNotFoundError as error:
            raise SourceError(f"{self.url}/{path} does not exist") from error

    def write(self, path: str, source: Any) -> None:
        """Writes an object from bytes or a local Path, in parts when it is large."""
        try:
            self._tried(lambda: self._library.put(self._store, path, source), path)
        except FileNotFoundError as error:
            raise SourceError(
                f"{self.url} does not exist: no bucket of that name", hint="create it, or check the URL"
            ) from error

    def find(self, path: str) -> RemoteObject | None:
        """An object's size and tag, or None when there is none."""
        try:
            entry = self._tried(lambda: self._library.head(self._store, path), path)
        except FileNotFoundError:
            return None
        return RemoteObject.of(entry, path)

    def size(self, path: str) -> int | None:
        """An object's size in bytes, or None when there is none."""
        found = self.find(path)
        return None if found is None else found.size

    def delete(self, path: str) -> None:
        """Removes an object; one that is not there is no error."""
        with contextlib.suppress(FileNotFoundError):
            self._tried(lambda: self._library.delete(self._store, path), path)

    def _tried(self, action: Callable[[], T], what: str) -> T:
        _refuse_after_fork(self.url)
        errors = importlib.import_module("obstore.exceptions")
        fatal = (errors.PermissionDeniedError, errors.UnauthenticatedError, errors.InvalidPathError)
        deadline_s = time.monotonic() + _PATIENCE_S
        for attempt in range(1, _TRIES + 1):
            try:
                result = action()
                self._known = True
                return result
            except (errors.NotFoundError, FileNotFoundError) as error:
                self._known = True
                raise FileNotFoundError(what) from error
            except (errors.BaseError, _IncompleteError, OSError) as error:
                if not self._known and is_unknown_user(error):
                    raise SourceError(
                        f"no credentials for {self.url}: neither the environment nor a role of this machine gives any",
                        hint=credentials_hint(self.url),
                    ) from error
                if "NoSuchBucket" in str(error):
                    raise SourceError(
                        f"{self.url}: there is no bucket of that name", hint="check the name, or create it"
                    ) from error
                if attempt == _TRIES or isinstance(error, fatal) or time.monotonic() > deadline_s:
                    raise SourceError(
                        f"{self.url} ({what}): {_first_line(error)}",
                        hint="check the address; of a web server a packed dataset or one file can be read, not a folder"
                        if is_web(self.url)
                        else f"check the address and the credentials: {credentials_hint(self.url)}",
                    ) from error
            time.sleep(_BACKOFF_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
        raise AssertionError("unreachable")


_used_by: int | None = None  # the process in which obstore has started its threads


def _refuse_after_fork(url: str) -> None:
    """obstore's threads belong to the process that used it first; in a fork of it every request would wait for ever."""
    global _used_by
    _used_by = _used_by or os.getpid()
    if _used_by != os.getpid():
        raise SourceError(
            f"{url} cannot be read in a forked process: the threads of the object-store client are in its parent only",
            hint="start processes by spawn or forkserver (multiprocessing_context='spawn'); a Loader needs no worker processes",
        )


class _IncompleteError(Exception):
    """An answer that is not what was asked for."""


def open_bucket(url: str) -> Bucket:
    """Connects to the store of `url`. Raises MissingDependencyError without obstore, SourceError for a URL it cannot use."""
    try:
        library = importlib.import_module("obstore")
        stores = importlib.import_module("obstore.store")
    except ImportError as error:
        raise MissingDependencyError("obstore is needed for object stores", hint="pip install 'headrace[aws]'") from error
    options = access_options(url)
    options["client_options"]["timeout"] = _TIMEOUT
    patience = {"max_retries": _INNER_RETRIES, "retry_timeout": timedelta(seconds=_PATIENCE_S)}
    try:
        return Bucket(url.rstrip("/"), library, stores.from_url(url.rstrip("/"), retry_config=patience, **options))
    except Exception as error:  # obstore raises many kinds for a URL or configuration that it cannot use
        raise SourceError(f"{url} cannot be opened: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
