"""Object stores: their URLs, listing, whole objects and ranged reads, through the optional package obstore.

`retry` decides which failures are tried again. Credentials and endpoints come from the environment (`access`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any, TypeVar

from headrace.datasets.sources.remote import retry
from headrace.datasets.sources.remote.access import access_options, credentials_hint, is_unknown_user
from headrace.datasets.sources.remote.redirects import is_refused_redirect, redirect_guard
from headrace.datasets.sources.remote.retry import IncompleteError, RetryPolicy, request_errors, with_retries
from headrace.errors import MissingDependencyError, SourceError
from headrace.system.processes.scheduling import yield_to_running_threads
from headrace.system.text.foreign_errors import first_line, public_cause
from headrace.system.text.install_hints import extra_hint
from headrace.system.text.size_limits import DOCUMENT_BYTES, RECORD_LIMIT, record_limit, too_large
from headrace.system.text.sizes import size_text

__all__ = ["Bucket", "RemoteObject", "is_url", "is_web", "open_bucket"]

_PIECE = 1 << 16  # bytes; least piece in which a document is received
_PART = 64 << 20  # bytes of one request of a large range
_OBJECTS = 1000  # of one page of a listing
_PAGE_S = 180.0  # seconds in which a page of objects has to come: a server may send empty pages, each of which names the next
_LISTING_S = 7200.0  # seconds of a whole listing: ten million objects take a quarter of it
_BYTES_OF_OBJECT = 64  # the limit of a record, divided by this, is that of the objects of a listing: 16 million

_SCHEMES = ("s3://", "gs://", "az://", "http://", "https://")

T = TypeVar("T")


def is_url(path: object) -> bool:
    """Return True if `path` is the URL of an object store, not a local path."""
    return isinstance(path, str) and path.lower().startswith(_SCHEMES)


def is_web(url: str) -> bool:
    """Return True if `url` is that of a web server, which serves single files but cannot list them."""
    return url.lower().startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """An object below a URL: its path relative to the URL, size in bytes, the store's tag of its content, time of change."""

    path: str
    size: int
    tag: str
    modified_s: float  # seconds since 1970

    @staticmethod
    def of(entry: Any, path: str) -> RemoteObject:
        """Convert obstore's description of the object at `path`."""
        return RemoteObject(path, int(entry["size"]), str(entry.get("e_tag") or ""), entry["last_modified"].timestamp())


class Bucket:
    """The objects below one URL of an object store. Every request is retried as `policy` says."""

    def __init__(self, url: str, library: Any, store: Any, policy: RetryPolicy) -> None:
        self.url, self._library, self._store, self._policy = url, library, store, policy
        self._answered = False  # whether the store has answered a request, so that it knows our credentials

    def list(self) -> list[RemoteObject]:
        """Return all objects below the URL, sorted by path.

        Raise SourceError if listing fails, for a path that leads out, and for more objects than the limit.
        """
        found = self._request(self._listed, "list")
        for entry in found:
            parts = PurePosixPath(entry.path).parts
            if entry.path.startswith("/") or ".." in parts or "\0" in entry.path:
                raise SourceError(f"{self.url} holds an object with the name {entry.path!r}, which leads out of a folder")
        return sorted((entry for entry in found if not entry.path.endswith("/")), key=lambda entry: entry.path)

    def _listed(self) -> Sequence[RemoteObject]:
        """Return the objects of all pages. A server may name a next page for ever, so their number and names have a limit.

        Raise SourceError above it, if no objects come for `_PAGE_S`, and after `_LISTING_S`.
        """
        found: list[RemoteObject] = []
        limit, names = record_limit(), 0
        for page in self._timely(self._library.list(self._store, chunk_size=_OBJECTS)):
            found += [RemoteObject.of(entry, entry["path"]) for entry in page]
            names += sum(len(entry.path) + len(entry.tag) for entry in found[len(found) - len(page) :])
            if len(found) > limit // _BYTES_OF_OBJECT or names > 2 * limit:
                words = f"lists more than {len(found) - 1:,} objects, the limit ({RECORD_LIMIT}=SIZE raises it)"
                raise SourceError(f"{self.url} {words}", hint="check the address: name the folder of the dataset")
        return found

    def _timely(self, pages: Iterator[Sequence[Any]]) -> Iterator[Sequence[Any]]:
        """Yield the pages of a listing. obstore collects the objects of one however many answers that takes."""
        come: queue.SimpleQueue[Sequence[Any] | Exception | None] = queue.SimpleQueue()
        wanted, over = threading.Semaphore(0), threading.Event()

        def collect() -> None:
            try:
                while wanted.acquire() and not over.is_set() and (page := next(pages, None)) is not None:
                    come.put(page)
                come.put(None)
            except Exception as error:  # obstore's; the thread that lists raises it
                come.put(error)

        # Not of a pool: Python waits at its end for those threads, and this one may never return.
        threading.Thread(target=collect, name="headrace-listing", daemon=True).start()
        end_s = time.monotonic() + _LISTING_S
        try:
            while True:
                wanted.release()
                limit_s = min(_PAGE_S, end_s - time.monotonic())
                try:
                    page = come.get(timeout=max(0.0, limit_s))
                except queue.Empty:
                    what = f"no objects for {_PAGE_S:.0f} s" if limit_s == _PAGE_S else f"no end in {_LISTING_S / 3600:g} h"
                    hint = "check the address, and try again"
                    raise SourceError(f"{self.url}: the listing has brought {what}", hint=hint) from None
                if isinstance(page, Exception):
                    raise page
                if page is None:
                    return
                yield page
        finally:
            over.set()
            wanted.release()

    def list_some(self, count: int) -> Sequence[RemoteObject]:
        """Return at most `count` objects below the URL, with one request."""

        def first_page() -> Sequence[Any]:
            return next(iter(self._library.list(self._store, chunk_size=count)), [])

        return [RemoteObject.of(entry, entry["path"]) for entry in self._request(first_page, "list")[:count]]

    def read(self, path: str, *, limit: int = DOCUMENT_BYTES) -> bytes | None:
        """Return a whole, small object, or None if it does not exist. Raise SourceError for more than `limit` bytes."""
        try:
            return self._request(lambda: self._received(path, limit), path)
        except FileNotFoundError:
            return None

    def _received(self, path: str, limit: int) -> bytes:
        """Return an object as its bytes arrive: the length that a server announces is only a claim."""
        answer = self._library.get(self._store, path)
        announced, data = int(answer.meta["size"]), bytearray()
        pieces = iter(()) if announced > limit else answer.stream(min_chunk_size=_PIECE)
        for piece in pieces:
            data += piece
            if len(data) > limit:
                break
        if max(announced, len(data)) > limit:
            size = max(announced, len(data))
            what = f"{self.url}/{path} has {size_text(size)}; at most {size_text(limit)} are expected"
            raise SourceError(what, hint="check the address: this is no file of a packed dataset")
        return bytes(data)

    def read_range(self, path: str, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`; retry a shorter answer."""
        return self.read_ranges(path, [(offset, size)])[0]

    def read_ranges(
        self, path: str, ranges: Sequence[tuple[int, int]], check: Callable[[int, bytes], bool] | None = None
    ) -> Sequence[bytes]:
        """Return the bytes of ranges (offset, size) of an object. Each range is one request; ten of them run at a time.

        A range is requested again if its answer is too short or if `check` returns False. `check` takes the number of the range
        in `ranges` and the bytes of its answer.
        """
        found: dict[int, bytes] = {}

        def some(places: Sequence[int]) -> None:
            starts, sizes = zip(*(ranges[place] for place in places), strict=True)
            answers = self._answers(path, starts, sizes)
            problem = ""
            for place, size, answer in zip(places, sizes, answers, strict=True):
                data = bytes(answer)
                if len(data) != size:
                    problem = f"{len(data)} of {size} bytes came"
                elif check is not None and not check(place, data):
                    problem = "the bytes that came have another checksum"
                else:
                    found[place] = data
            if problem:
                raise IncompleteError(problem)

        _start_client(self._library, self.url)
        if len(ranges) > 1:  # a request that fails takes the answers to the others with it
            with contextlib.suppress(*request_errors()):
                some(range(len(ranges)))
        try:
            for place in [place for place in range(len(ranges)) if place not in found]:  # each with all its tries
                self._request(functools.partial(some, [place]), path)
        except FileNotFoundError as error:
            raise SourceError(f"{self.url}/{path} does not exist") from error
        return [found[place] for place in range(len(ranges))]

    def _answers(self, path: str, starts: Sequence[int], sizes: Sequence[int]) -> Sequence[Any]:
        """Return the bytes of ranges. Memory for a large one is asked for as its parts arrive: its size is an index's claim."""
        if max(sizes) > (limit := record_limit()):
            raise SourceError(f"{self.url}/{path}: a record {too_large(max(sizes), limit)}", hint="check the dataset")
        if max(sizes) <= _PART:
            found: Sequence[Any] = self._library.get_ranges(self._store, path, starts=starts, lengths=sizes, coalesce=0)
            return found
        whole = []
        for start, size in zip(starts, sizes, strict=True):
            data = bytearray()
            for at in range(start, start + size, _PART):
                length = min(_PART, start + size - at)
                data += self._library.get_range(self._store, path, start=at, length=length)
            whole.append(data)
        return whole

    def write(self, path: str, source: Any) -> None:
        """Write an object from bytes or a local Path, in parts if it is large."""
        try:
            self._request(lambda: self._library.put(self._store, path, source), path)
        except FileNotFoundError as error:
            raise SourceError(
                f"{self.url} does not exist: no bucket of that name", hint="create it, or check the URL"
            ) from error

    def find(self, path: str) -> RemoteObject | None:
        """Return an object's size and tag, or None if it does not exist."""
        try:
            entry = self._request(lambda: self._library.head(self._store, path), path)
        except FileNotFoundError:
            return None
        return RemoteObject.of(entry, path)

    def size(self, path: str) -> int | None:
        """Return an object's size in bytes, or None if it does not exist."""
        found = self.find(path)
        return None if found is None else found.size

    def delete(self, path: str) -> None:
        """Delete an object; a missing one is no error."""
        with contextlib.suppress(FileNotFoundError):
            self._request(lambda: self._library.delete(self._store, path), path)

    def _request(self, action: Callable[[], T], what: str) -> T:
        """Return the result of `action()`, after retries if needed. `what`: the object's path, for messages."""
        _start_client(self._library, self.url)
        try:
            result = with_retries(action, self._policy, self._permanent, lambda error: self._exhausted(error, what))
        except FileNotFoundError:
            self._answered = True
            raise
        self._answered = True
        return result

    def _permanent(self, error: Exception) -> SourceError | None:
        """Return the error for a failure that no retry can mend: no credentials, no such bucket, a redirect that is refused."""
        if is_refused_redirect(error):
            return SourceError(
                f"{self.url}: the server redirects to another host, which must not receive your credentials",
                hint="if you trust that host, name it in place of this one",
            )
        if not self._answered and is_unknown_user(error):
            return SourceError(
                f"no credentials for {self.url}: neither the environment nor a role of this machine gives any",
                hint=credentials_hint(self.url),
            )
        if "NoSuchBucket" in str(error):
            return SourceError(f"{self.url}: there is no bucket of that name", hint="check the name, or create it")
        return None

    def _exhausted(self, error: Exception, what: str) -> SourceError:
        return SourceError(
            f"{self.url} ({what}): {first_line(error)}",
            hint="check the address; of a web server a packed dataset or one file can be read, not a folder"
            if is_web(self.url)
            else f"check the address and the credentials; {credentials_hint(self.url)}",
        )


_used_by: int | None = None  # id of the process in which obstore started its threads


def _start_client(library: Any, url: str) -> None:
    """Start obstore's threads before the first request, under the batch policy (`yield_to_running_threads`).

    They wake up for each piece of data that arrives. A thread inherits the policy of the thread that starts it (sched(7)), so
    a thread under the batch policy makes obstore's first call.

    Raises SourceError in a fork of the process that did so: without its threads a request never returns.
    """
    global _used_by
    if _used_by is None:
        _used_by = os.getpid()
        first = threading.Thread(target=_ask_nothing, args=(library,), name="headrace-store")
        first.start()
        first.join()
    if _used_by != os.getpid():
        raise SourceError(
            f"{url} cannot be read in a forked process: the threads of the object-store client are in its parent only",
            hint="start processes by spawn or forkserver (multiprocessing_context='spawn'); a Loader needs no worker processes",
        )


def _ask_nothing(library: Any) -> None:
    yield_to_running_threads()
    list(library.list(library.store.MemoryStore()))


def open_bucket(url: str, policy: RetryPolicy | None = None) -> Bucket:
    """Return the bucket at `url`; nothing is requested yet. `policy`: by default `retry.DEFAULT`.

    Raises MissingDependencyError without obstore, SourceError for a URL that obstore cannot use.
    """
    try:
        library = importlib.import_module("obstore")
        stores = importlib.import_module("obstore.store")
    except ImportError as error:
        raise MissingDependencyError("obstore is needed for object stores", hint=extra_hint("aws")) from error
    policy = policy or retry.DEFAULT
    options = access_options(url)
    options["client_options"]["timeout"] = timedelta(seconds=policy.timeout_s)
    retries = {"max_retries": policy.client_retries, "retry_timeout": timedelta(seconds=policy.patience_s)}
    try:
        options["client_options"] |= redirect_guard(url)
        store = stores.from_url(url.rstrip("/"), retry_config=retries, **options)
    except Exception as error:  # obstore raises many kinds for a URL or configuration that it cannot use
        raise SourceError(f"{url} cannot be opened: {first_line(error)}") from public_cause(error)
    return Bucket(url.rstrip("/"), library, store, policy)
