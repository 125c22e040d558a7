"""Record how a Python process ends: by an exception, by `sys.exit`, or at the end of its script.

An uncaught exception is read from `sys.last_value` when the interpreter ends, so that `sys.excepthook` and what it prints stay
the script's. `sys.exit` is wrapped to note its line, and the exception that is being handled there: frameworks print an error
and then exit. A process that is killed writes nothing.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
import time
from contextlib import suppress
from types import BuiltinFunctionType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from headrace.attach.record.load_hooks import SESSION_VARIABLE
from headrace.attach.record.script_files import is_own
from headrace.attach.record.unseen_frames import OWN_FOLDERS, drop_own_frames

if TYPE_CHECKING:
    from headrace.attach.record.recorder import Recorder

__all__ = ["described", "install", "note_children", "note_error", "start"]

MOST_ERRORS = 4
"""Describe an exception and at most this many in all with those behind it."""

MOST_READ, MOST_WRITTEN = 20_000, 300
"""Characters of a message that are read, and that are written: a message may hold a whole response or traceback."""

TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<line>\d{1,9}), in (?P<function>.+)$')
_LAST_LINE = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")

_state: dict[str, Any] = {"pid": 0, "exit": None, "recorder": None}
"""pid: the process whose end is noted already. exit: the last `sys.exit`. recorder: of a process with hooks of torch."""

_children: WeakSet[Any] = WeakSet()
"""Children of multiprocessing at the errors that left a loader. Each holds descriptors while it lives: the script decides."""


def start() -> None:
    """Note the end of this process from now on, if it belongs to a session."""
    if SESSION_VARIABLE in os.environ:
        sys.exit = _NotedExit(sys.exit)  # type: ignore[assignment]
        atexit.register(_note_end)


def install(recorder: Recorder) -> None:
    """Note the end in the file of `recorder`, also in children of multiprocessing, which end without `atexit`."""
    from multiprocessing import util

    _state["recorder"] = recorder
    _finalize(recorder)
    util.register_after_fork(recorder, _finalize)


def _finalize(_: Any) -> None:
    from multiprocessing import util

    util.Finalize(None, _note_end, exitpriority=1)


def note_error(recorder: Recorder, error: BaseException | None) -> None:
    """Record that the training of this process ends with `error`, or without one."""
    is_exit = isinstance(error, SystemExit)
    code = _exit_code(error.code) if isinstance(error, SystemExit) else None
    errors = [] if error is None else described(_handled(error) if is_exit else error)
    how = "end" if error is None else "exit" if is_exit else "exception"
    place = _place(error.__traceback__) if error is not None and is_exit else {}
    children = _failed_children() if error is not None else []
    recorder.line("ended", time_s=time.monotonic(), how=how, code=code, errors=errors, children=children, **place)


def note_children() -> None:
    """Remember the children of multiprocessing when an error leaves a loader: at the exit, its workers are joined first.

    The traceback of an error that ends the process keeps the loader's iterator, and so its workers.
    """
    process: Any = sys.modules.get("multiprocessing.process")
    _children.update(getattr(process, "_children", ()))


def _failed_children() -> list[tuple[int, int]]:
    """Return pid and exit code of the children that have failed: a killed worker shows as many different errors."""
    note_children()
    found = []
    for child in _children:
        try:
            code = child.exitcode
        except Exception:  # another process's child, after a fork
            continue
        if code:
            found.append((child.pid, code))
    return sorted(found)


def _note_end() -> None:
    """Record the end of this process, once. Of a worker, and of a process without torch, only a failure is recorded."""
    if _state["pid"] == os.getpid():
        return
    try:
        exited, recorder = _state["exit"], _state["recorder"]
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)
        is_known = recorder is not None and recorder.role == "main"
        if error is None and not is_known and (exited is None or exited["pid"] != os.getpid() or not exited["code"]):
            return
        if recorder is None and isinstance(error, KeyboardInterrupt):
            return  # see `described`; the exit code says it
        if recorder is None and not os.access(os.environ.get(SESSION_VARIABLE, ""), os.W_OK | os.X_OK):
            return  # a helper of another user, or in a container: the recorder would say on its stderr that it cannot write
        _state["pid"] = os.getpid()
        if recorder is None:
            from headrace.attach.record.recorder import recorder as recorder_of_process

            recorder = recorder_of_process()
        if error is not None and (exited is None or not isinstance(error, SystemExit)):
            note_error(recorder, error)
        elif exited is not None and exited["pid"] == os.getpid():
            noted = {name: value for name, value in exited.items() if name != "pid"}
            noted["children"] = noted["children"] or _failed_children()
            recorder.line("ended", time_s=time.monotonic(), how="exit", **noted)
        else:
            note_error(recorder, None)
        recorder.flush()
    except Exception:  # noqa: S110 -- the process ends as the script wants; its exit code says the rest
        pass


# `sys.exit` whose caller, and the exception that is being handled there, are known at the end: an object with the attributes of
# the built-in function, also its docstring. A Python function would be a method of a class that holds it.
class _NotedExit:
    __slots__ = ("__weakref__", "_original")
    __module__ = "sys"  # pickled by its name, as the built-in function is
    __doc__ = property(lambda self: self._original.__doc__)

    def __init__(self, original: Any) -> None:
        self._original = original

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return BuiltinFunctionType

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __reduce__(self) -> str:
        return "exit"

    def __repr__(self) -> str:
        return repr(self._original)

    def __call__(self, /, *args: Any, **options: Any) -> None:
        try:
            self._original(*args, **options)
        except BaseException as error:
            if isinstance(error, SystemExit) and threading.get_ident() == threading.main_thread().ident:
                _note_exit(error)
            drop_own_frames(error)
            raise


def _note_exit(error: SystemExit) -> None:
    """Remember an exit. Another thread's ends only that thread."""
    try:
        code = _exit_code(error.code)
        errors = described(_handled(error)) if code else []
        children = _failed_children() if errors else []  # the handled error, which keeps them, is gone when the process ends
        place = _own_caller(sys._getframe(2))  # fails where C code is the caller, for example `atexit`
        _state["exit"] = {"pid": os.getpid(), "code": code, "errors": errors, "children": children, **place}
    except Exception:
        _state["exit"] = None


def _exit_code(status: Any) -> int:
    """Return the exit code of `sys.exit(status)`, as the parent process sees it: a text is printed, and means 1."""
    if status is None:
        return 0
    return (status & 0xFF if -1 << 63 <= status < 1 << 63 else 0xFF) if isinstance(status, int) else 1


def _handled(error: BaseException) -> BaseException | None:
    """Return the exception that was handled when `sys.exit` was called, or None."""
    return error.__cause__ or error.__context__


def described(error: BaseException | None) -> list[dict[str, Any]]:
    """Return type, message and place of an exception, then of those that caused it, without secrets.

    A message that holds a traceback (from a worker, or from another rank) is followed by the exception in that traceback.
    Of a KeyboardInterrupt nothing else is described: Python forgets that it has to end by SIGINT where text is compiled
    meanwhile, and modules that are imported do that.
    """
    if isinstance(error, KeyboardInterrupt):
        return [{"type": "KeyboardInterrupt", **_place(error.__traceback__)}]
    found: list[dict[str, Any]] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen and len(found) < MOST_ERRORS:
        seen.add(id(error))
        try:
            text = str(error)
            text = text if len(text) <= MOST_READ else text[:MOST_WRITTEN] + text[-MOST_READ:]
        except Exception:  # an exception of the script, whose __str__ fails
            text = ""
        head, is_wrapped, inner = text.partition(TRACEBACK)
        found.append({"type": _type_name(error), "message": _clean(head), **_place(error.__traceback__), **_lost(error)})
        if is_wrapped:
            found.append(_from_text(inner))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def _type_name(error: BaseException) -> str:
    kind = type(error)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return _clean(module + kind.__qualname__)


def _clean(text: str) -> str:
    """Return the message on one line, cut and without secrets."""
    if not text:
        return ""
    from headrace.system.text.redaction import redact_text

    line = " ".join(text.split())
    return redact_text(line[: 4 * MOST_WRITTEN])[:MOST_WRITTEN]


def _from_text(trace: str) -> dict[str, Any]:
    """Return the exception in the text of a traceback: its last line, and the innermost place, if any of the script's own."""
    frames = [found for line in trace.splitlines() if (found := _FRAME.match(line))]
    own = [frame for frame in frames if is_own(frame["file"])]
    place = (own or frames)[-1] if frames else None
    rest = trace.splitlines()
    last = max((number for number, line in enumerate(rest) if _FRAME.match(line)), default=0)
    ending = next((number for number in range(last + 1, len(rest)) if rest[number][:1].strip()), None)
    words = "\n".join(rest[ending:]) if ending is not None else ""
    first, _, more = words.partition("\n")
    named = _LAST_LINE.match(first)
    kind, message = (named["type"], f"{named['message'] or ''} {more}") if named else ("Exception", words)
    where = {"file": _clean(place["file"]), "line": int(place["line"]), "function": _clean(place["function"])} if place else {}
    return {"type": _clean(kind), "message": _clean(message), **where}


def _lost(error: BaseException) -> dict[str, Any]:
    """Return rank, pid and exit code of the process that `torchrun` or `torch.multiprocessing.spawn` reports as failed."""
    named: Any = error
    with suppress(Exception):  # a class of the script's own with such a name
        if type(error).__name__ == "ChildFailedError":
            rank, failure = named.get_first_failure()
            return {"lost_rank": int(rank), "lost_pid": int(failure.pid), "lost_code": int(failure.exitcode)}
        if type(error).__name__ in ("ProcessExitedException", "ProcessRaisedException"):
            code = int(getattr(error, "exit_code", 1))
            return {"lost_rank": int(named.error_index), "lost_pid": int(named.error_pid), "lost_code": code}
    return {}


def _place(trace: TracebackType | None) -> dict[str, Any]:
    """Return file, line and function where the exception was raised: the innermost frame of the script's own code, if any."""
    frames: list[tuple[FrameType, int]] = []
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    frames = [item for item in frames if not item[0].f_code.co_filename.startswith(OWN_FOLDERS)]
    own = [item for item in frames if is_own(item[0].f_code.co_filename)]
    return _code_place(*(own or frames)[-1]) if frames else {}


def _own_caller(frame: FrameType) -> dict[str, Any]:
    """Return the place of the innermost frame of the script's own code: `argparse` calls `sys.exit` for it."""
    outer: FrameType | None = frame
    while outer is not None and not is_own(outer.f_code.co_filename):
        outer = outer.f_back
    found = outer if outer is not None else frame
    return _code_place(found, found.f_lineno)


def _code_place(frame: FrameType, line: int) -> dict[str, Any]:
    code = frame.f_code
    return {"file": code.co_filename, "line": line, "function": code.co_qualname}
