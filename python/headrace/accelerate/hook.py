"""The hook of `headrace run`: decide for each DataLoader of the script how its batches are loaded.

The hook replaces `DataLoader._get_iterator`. For each loader it tries, in this order (`_decide`):

1. Take over the whole loading: the loader is recognised (`whole.recognition`) as one over folders, and `compile_loader`
   compiles it. The script gets a `NativeIterator`. If that is refused, the code of its items is looked into (`whole.items`),
   and a few items are compared. The script then gets an `ItemIterator`.
2. If one of these is refused: take it over in part, by the first of `PARTIAL_WAYS` that is not. The script's own iterator then
   runs over a changed copy of the loader.
3. If all of them are refused: leave the loader alone.

The loader is left alone at once, without step 2, if `--check` finds a difference or if headrace has an internal error. The
script then gets its own iterator, and the line says why. The hook prints one line for each different decision, with its reason:
a script that makes an equal loader in each epoch gets one line.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter

from headrace.accelerate.check import BatchesDiffer, check, require_equal_batches, require_rows_alone
from headrace.accelerate.deferred.loader import with_deferred_items
from headrace.accelerate.explain import explain, explain_items, native_steps
from headrace.accelerate.lazy.awaited_line import AwaitedLine
from headrace.accelerate.lazy.native_decode import cuts_tensors, with_native_decode
from headrace.accelerate.lazy.partly_native import PartlyNative
from headrace.accelerate.loop_waits import follow, waits_of, write_record
from headrace.accelerate.loop_waits import install as count_waits
from headrace.accelerate.refusal import own_iterators, refusal_text, tensors_in_memory
from headrace.accelerate.runtime import data_map
from headrace.accelerate.runtime.pillow_version import follow_installed_pillow
from headrace.accelerate.runtime.unsupported import Refusal, attempt
from headrace.accelerate.script.replaced_functions import require_own_functions
from headrace.accelerate.script.torch_modes import has_watching_mode
from headrace.accelerate.settings import Settings
from headrace.accelerate.whole.compile import CompiledLoader, compile_loader
from headrace.accelerate.whole.folders import RecognisedLoader, describe
from headrace.accelerate.whole.item_iterator import ItemIterator
from headrace.accelerate.whole.items import (
    CompiledItems,
    RecognisedItems,
    compile_items,
    require_known_batches,
)
from headrace.accelerate.whole.iterator import NativeIterator
from headrace.accelerate.whole.recognition import Recognition
from headrace.accelerate.workers.errors import is_of_handler
from headrace.accelerate.workers.unheard_warnings import unheard_warnings
from headrace.attach.batches.steps import is_stand_in
from headrace.attach.record.log import log_line
from headrace.attach.record.unseen_frames import drop_own_frames, when_made
from headrace.system.hardware.machine import cores as usable_cores
from headrace.system.hardware.machine import job_processes
from headrace.system.text.printable import printable
from headrace.system.text.sizes import count_text

__all__ = ["install"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on one loader, with the fields that `headrace run --json` lists."""

    dataset: str
    taken_over: bool
    reason: str
    threads: int | None = None
    pipeline: tuple[str, ...] = ()
    check: str | None = None


PARTLY = "in part: "
"""The reason of a decision begins with these words where only image decoding is native."""

PartialWay = Callable[[Recognition, int], PartlyNative]

PARTIAL_WAYS: tuple[PartialWay, ...] = (with_deferred_items, with_native_decode)
"""Functions that take a loader over in part, in the order in which they are tried.

The order is reversed for a loader that cuts tensors: a deferred tensor that is cut is decoded as a whole.

Each takes what is recognised of the loader, and the number of images that `--check` compares (0: as few as it likes). It
returns a changed copy, or raises `Unsupported`. Items must be equal bit for bit, and nothing of the script may be called that
its own loading would not call.
"""

_Whole = tuple[NativeIterator, CompiledLoader | CompiledItems, str | None]
"""The iterator of a loader that is taken over as a whole, what it was compiled to, and the result of `--check`."""

_printed: set[Decision] = set()


class _NoIterator(Exception):
    """Raised when torch cannot make an iterator of the changed loader. The script's own loader then raises torch's error."""


_decided: WeakKeyDictionary[Any, Decision] = WeakKeyDictionary()
_awaited: dict[tuple[str, str], AwaitedLine] = {}
"""Lines that wait for the first batches: the latest for each dataset and reason. Its loader may be gone by then."""


def install() -> None:
    """Replace `DataLoader._get_iterator` by the hook. Called once, after torch.utils.data has been imported."""
    settings = Settings.read()
    if settings.off or getattr(DataLoader._get_iterator, "_headrace", False):
        return
    follow_installed_pillow()
    data_map.install()
    original = DataLoader._get_iterator

    def get_iterator(loader: Any) -> Any:
        try:
            return _decide(loader, original, settings)
        except BaseException as error:
            drop_own_frames(error)
            raise

    get_iterator._headrace = True  # type: ignore[attr-defined]
    DataLoader._get_iterator = get_iterator
    _report_other_iterators(settings)
    count_waits(lambda: _write_waits(settings), lambda: _end(settings))


def _report_other_iterators(settings: Settings) -> None:
    """Report loaders whose class makes its own iterators (torchdata's StatefulDataLoader, fastai). They are not taken over."""

    def report(iterator: Any, loader: Any) -> None:
        try:
            if torch.utils.data.get_worker_info() is None and (reason := own_iterators(loader)):
                dataset = loader.d.dataset if is_stand_in(loader) else loader.dataset
                _report(loader, Decision(describe(dataset), False, reason), settings)
        except Exception as error:
            log_line(f"headrace run: {_error_text(error)}")

    when_made(_BaseDataLoaderIter, report)


def _end(settings: Settings) -> None:
    """Print the lines that still wait, and how long the loops waited, as the process ends."""
    for line in list(_awaited.values()):
        line.look(True)
    _write_waits(settings)


def _write_waits(settings: Settings) -> None:
    if settings.folder is not None:
        write_record(settings.folder)


def _decide(loader: Any, original: Callable[[Any], Any], settings: Settings) -> Any:
    """Decide how the loader's batches are made, print the decision, and return the iterator. `original` makes torch's."""
    if torch.utils.data.get_worker_info() is not None:
        return original(loader)  # a loader inside a worker process
    kind: Any = type(loader)
    if kind.__hash__ is not object.__hash__:  # what is known of loaders is kept by their hash
        _print(Decision(describe(loader.dataset), False, f"class {kind.__name__} has its own __hash__"), settings)
        return original(loader)
    if reason := tensors_in_memory(loader.dataset):  # first: an epoch of tensors may take less time than applying the rules
        return _leave_alone(loader, original, reason, settings)
    data_map.redirect_readers()
    if has_watching_mode():  # also in each of its workers
        return _leave_alone(loader, original, "it begins under a mode of torch that sees each call", settings)
    recognition = Recognition(loader)
    whole: _Whole | Refusal | str
    try:
        whole = attempt(lambda: _as_a_whole(recognition, original, settings))
    except BatchesDiffer as error:
        whole = f"check failed: {error}"
    except Exception as error:
        if is_of_handler(error):
            raise
        whole = f"internal error, {_error_text(error)}"
    # Workers are forked here and not inside `except`: a forked worker inherits the exception that is being handled, and Python
    # would print it before each error of the script.
    if isinstance(whole, str):
        return _leave_alone(loader, original, whole, settings)
    if isinstance(whole, Refusal):
        return _take_over_in_part(recognition, original, whole, settings)
    iterator, compiled, checked = whole
    _report(loader, _taken_over(loader, compiled, checked), settings)
    try:
        iterator.begin(loader)
    except BaseException as error:  # of the script's sampler, or of its filters of warnings
        drop_own_frames(error)
        raise
    follow(iterator, waits_of(describe(loader.dataset), loader))
    return iterator


def _as_a_whole(recognition: Recognition, original: Callable[[Any], Any], settings: Settings) -> _Whole | Refusal:
    """Return the native iterator of a loader, what it was compiled to, and the result of `--check`."""
    require_own_functions()
    with unheard_warnings():
        compiled = recognition.first_that_fits(lambda found: _compiled(recognition.loader, found, original, settings))
    return compiled if isinstance(compiled, Refusal) else (_prepared(recognition.loader, compiled[0], log_line), *compiled)


def _compiled(
    loader: Any, recognised: RecognisedLoader | RecognisedItems, original: Callable[[Any], Any], settings: Settings
) -> tuple[CompiledLoader | CompiledItems, str | None]:
    """Return a recognised loader compiled for the native engine, and the result of `--check`.

    Raise `Unsupported` if the native engine cannot make its batches.
    """
    threads = _threads(loader, settings)
    if isinstance(recognised, RecognisedLoader):
        folders = compile_loader(recognised, threads)
        return folders, _compare(loader, folders, original, settings)
    items = compile_items(recognised, threads)
    require_known_batches(loader, items)
    require_rows_alone(loader.dataset, items)
    return items, _compare(loader, items, original, settings)


def _iterator(
    loader: Any, compiled: CompiledLoader | CompiledItems, log: Callable[[str], None] | None = None
) -> NativeIterator:
    iterator = _prepared(loader, compiled, log or log_line)
    iterator.begin(loader)
    return iterator


def _prepared(loader: Any, compiled: CompiledLoader | CompiledItems, log: Callable[[str], None]) -> NativeIterator:
    made = ItemIterator if isinstance(compiled, CompiledItems) else NativeIterator
    return made(loader, compiled, log)


def _compare(
    loader: Any, compiled: CompiledLoader | CompiledItems, original: Callable[[Any], Any], settings: Settings
) -> str | None:
    """Compare batches with the script's own. Return the result of `--check`, which runs once for each loader.

    Raise `Unsupported` if a few items differ, `BatchesDiffer` if `--check` finds a difference.
    """
    recognition = compiled.recognition
    if isinstance(recognition, RecognisedItems):
        indices: Sequence[int] = recognition.indices
        operations = [operation for view in recognition.views for operation in view.chain.operations]
    else:
        indices = range(len(loader.dataset))
        operations = [recognition.folders[0].dataset.transform]
    native = partial(_iterator, compiled=compiled, log=lambda words: None)
    plan_s = recognition.plan_s if isinstance(recognition, RecognisedItems) else 0.0
    require_equal_batches(loader, indices, operations, native, original, plan_s)
    if not settings.check:
        return None
    if loader in _decided and _decided[loader].check is not None:
        return _decided[loader].check
    return check(loader, indices, settings.check, native, original)


def _leave_alone(loader: Any, original: Callable[[Any], Any], reason: str, settings: Settings) -> Any:
    _report(loader, Decision(describe(loader.dataset), False, reason), settings)
    return original(loader)


def _take_over_in_part(recognition: Recognition, original: Callable[[Any], Any], refusal: Refusal, settings: Settings) -> Any:
    """Take the loader over by one of `PARTIAL_WAYS`, or leave it alone. `refusal`: why it is not taken over as a whole."""
    loader, refusals = recognition.loader, [refusal]
    for way in reversed(PARTIAL_WAYS) if cuts_tensors(recognition) else PARTIAL_WAYS:
        try:
            made = attempt(partial(_changed_by, way, recognition, original, settings))
        except _NoIterator as error:
            reason = f"{refusal}; torch makes no iterator for it ({error})"
            break
        except Exception as error:
            if is_of_handler(error):
                raise
            reason = f"{refusal}; internal error, {_error_text(error)}"
            break
        if isinstance(made, Refusal):
            refusals.append(made)
            continue
        changed, iterator = made
        if changed.trial is None:
            _report(loader, _in_part(loader, changed.native, refusal, changed.check, settings), settings)
            follow(iterator, waits_of(describe(loader.dataset), loader))
        else:
            line = _awaited_line(loader, changed, refusals, settings)
            _awaited[describe(loader.dataset), str(refusal)] = line
            follow(iterator, waits_of(describe(loader.dataset), loader), line.look)
        return iterator
    else:
        reason = refusal_text(refusals)
    return _leave_alone(loader, original, reason, settings)


def _changed_by(
    way: PartialWay, recognition: Recognition, original: Callable[[Any], Any], settings: Settings
) -> tuple[PartlyNative, Any]:
    """Return the copy of the loader that one way of taking it over in part has changed, and its iterator."""
    with unheard_warnings():
        changed = way(recognition, settings.check)
    return changed, changed.prepare(_iterator_of(changed.loader, original))


def _in_part(loader: Any, native: str, refusal: Refusal, check: str, settings: Settings) -> Decision:
    """Return the decision that a loader is taken over in part. `native`: what is native, in words."""
    where = f"its own {count_text(loader.num_workers, 'worker')}" if loader.num_workers else "the main process"
    verb = "is" if native.startswith("the decode of ") else "are"
    words = f"{PARTLY}{native} {verb} native in {where}; the rest is the script's own ({refusal})"
    return Decision(describe(loader.dataset), True, words, check=check if settings.check else None)


def _awaited_line(loader: Any, changed: PartlyNative, refusals: list[Refusal], settings: Settings) -> AwaitedLine:
    """Return the line on a loader with lazy images, which prints the decision once first batches show it."""
    assert changed.trial is not None
    waits = waits_of(describe(loader.dataset), loader)
    waits.trial = changed.trial
    in_part = _in_part(loader, "{}", refusals[0], changed.check, settings)
    weakly = weakref.ref(loader)  # the loader may hold the iterator, which holds this; or be gone when a batch comes
    claimed: list[str] = []

    def report(decision: Decision) -> None:
        waits.is_native = decision.taken_over
        if (found := weakly()) is not None:
            _decided[found] = decision
        _print(decision, settings)

    def taken_over(native: str) -> None:
        if not claimed:
            claimed.append(native)
            verb = "is" if native.startswith("the decode of ") else "are"
            report(replace(in_part, reason=in_part.reason.replace("{} are", f"{native} {verb}", 1)))

    def left_alone(reason: str) -> None:
        report(Decision(in_part.dataset, False, refusal_text([*refusals, Refusal(reason)])))

    return AwaitedLine(changed.trial, taken_over, left_alone)


def _iterator_of(changed: Any, original: Callable[[Any], Any]) -> Any:
    """Return torch's iterator for a changed copy of a loader.

    Raise `_NoIterator` if there is none: the sampler is none, or the workers cannot be started. The seed is then drawn again.
    """
    generator = changed.generator if changed.generator is not None else torch.default_generator
    state = generator.get_state()
    try:
        return original(changed)
    except Exception as error:
        if is_of_handler(error):
            raise
        generator.set_state(state)
        raise _NoIterator(_error_text(error)) from None


def _taken_over(loader: Any, compiled: CompiledLoader | CompiledItems, checked: str | None) -> Decision:
    recognition = compiled.recognition
    views = recognition.views if isinstance(recognition, RecognisedItems) else (recognition,)
    parts = [view.transform for view in views]
    instead = count_text(loader.num_workers, "worker") if loader.num_workers else "the main process"
    reason = f"{native_steps(parts)} in {count_text(compiled.threads, 'native thread')} instead of {instead}"
    reason += ": the same batches, bit for bit"
    if isinstance(compiled, CompiledItems):
        reason += "; the rest of each item is the script's own code, in the main process"
        return Decision(describe(loader.dataset), True, reason, compiled.threads, tuple(explain_items(compiled)), checked)
    if found := compiled.table.indexes_found():
        reason += f"; {found:,} files have an index from an earlier run"
    return Decision(describe(loader.dataset), True, reason, compiled.threads, tuple(explain(compiled)), checked)


def _threads(loader: Any, settings: Settings) -> int:
    """Return the number of native threads: one for each worker of the loader, and at most one for each usable core.

    A loader without workers gets the usable cores divided by the number of the job's processes on this host.
    """
    if settings.threads is not None:
        return settings.threads
    cores = max(1, int(usable_cores().usable))
    if loader.num_workers > 0:
        return min(int(loader.num_workers), cores)
    return max(1, cores // job_processes())


def _report(loader: Any, decision: Decision, settings: Settings) -> None:
    """Keep, print and record the decision on a loader."""
    _decided[loader] = decision
    waits_of(decision.dataset, loader).is_native = decision.taken_over
    _print(decision, settings)


def _print(decision: Decision, settings: Settings) -> None:
    """Print and record a decision, once: a script may make an equal loader for each epoch."""
    if decision in _printed:
        return
    _printed.add(decision)
    if os.environ.get("RANK", "0") == "0":
        verdict = "taken over" if decision.taken_over else "not taken over"
        colon = "" if decision.reason.startswith(PARTLY) else ":"
        log_line(printable(f"headrace run: loader over {decision.dataset} {verdict}{colon} {decision.reason}"))
        if decision.check:
            log_line(printable(f"headrace run:   check: {decision.check}"))
        for line in decision.pipeline if settings.explain else ():
            log_line(f"headrace run:   {line}")
    if settings.folder is not None:
        record = {name: getattr(decision, name) for name in Decision.__dataclass_fields__}
        record |= {"rank": os.environ.get("RANK"), "pid": os.getpid()}
        try:
            with open(settings.folder / f"loaders-{os.getpid()}.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            log_line(f"headrace run: cannot write the decision: {error}")


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
