"""Runs in the script's process: puts headrace's iterator in the place of DataLoader's where that is the same job.

Fails open: whatever goes wrong here, the script gets its own iterator and one line on stderr says so.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter

from headrace._native import follow_pillow
from headrace.accelerate.check import check
from headrace.accelerate.compile import Work, compile_work
from headrace.accelerate.explain import explain
from headrace.accelerate.iterator import FeedIterator
from headrace.accelerate.native_decode import with_native_head
from headrace.accelerate.recognise import Refused, describe, recognise
from headrace.accelerate.settings import Settings
from headrace.attach.log import say
from headrace.system.machine import cores as usable_cores
from headrace.system.sizes import count_text

__all__ = ["install"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What was done with one loader, as `headrace run --json` lists it."""

    dataset: str
    taken_over: bool
    reason: str
    threads: int | None = None
    pipeline: tuple[str, ...] = ()
    check: str | None = None


PARTLY = "in part: "
"""How the reason of a loader begins of whose work only the head is native."""

_said: set[Decision] = set()


class _CheckFailed(Exception):
    """`--check` found a difference: nothing of ours is trusted with this loader."""


_decided: WeakKeyDictionary[Any, Decision] = WeakKeyDictionary()


def _follow_pillow() -> None:
    """The script's pixels are those of the Pillow that it has: version 13 changed the order of the passes of a resize."""
    try:
        follow_pillow(int(importlib.metadata.version("pillow").partition(".")[0]))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return  # no Pillow: no loader of its images will be taken over


def install() -> None:
    """Wraps `DataLoader._get_iterator`. Called once, when torch's data loader has been imported."""
    settings = Settings.read()
    if settings.off or getattr(DataLoader._get_iterator, "_headrace", False):
        return
    _follow_pillow()
    original = DataLoader._get_iterator

    def get_iterator(loader: Any) -> Any:
        return _iterator(loader, original, settings)

    get_iterator._headrace = True  # type: ignore[attr-defined]
    DataLoader._get_iterator = get_iterator
    _watch_others(settings)


def _watch_others(settings: Settings) -> None:
    """Says so of loaders whose class makes its iterators itself (torchdata's StatefulDataLoader): they never ask us."""
    original = _BaseDataLoaderIter.__init__

    def init(self: Any, loader: Any, *arguments: Any, **options: Any) -> None:
        try:
            if type(loader)._get_iterator is not DataLoader._get_iterator and torch.utils.data.get_worker_info() is None:
                reason = f"{type(loader).__name__} makes its own iterators"
                _decide(loader, Decision(describe(loader.dataset), False, reason), settings)
        except Exception as error:
            say(f"headrace run: {_shown(error)}")
        original(self, loader, *arguments, **options)

    _BaseDataLoaderIter.__init__ = init


def _iterator(loader: Any, original: Callable[[Any], Any], settings: Settings) -> Any:
    if torch.utils.data.get_worker_info() is not None:
        return original(loader)  # a loader inside a worker process
    try:
        work = compile_work(recognise(loader), _threads(loader, settings))
        checked = _checked(loader, work, settings)
    except _CheckFailed as reason:
        _decide(loader, Decision(describe(loader.dataset), False, str(reason)), settings)
        return original(loader)
    except Refused as reason:
        return _second_best(loader, original, str(reason), settings)
    except Exception as error:
        _decide(loader, Decision(describe(loader.dataset), False, f"internal error, {_shown(error)}"), settings)
        return original(loader)
    try:
        iterator = FeedIterator(loader, work, lambda: original(loader), say)
    except Exception as error:
        _decide(loader, Decision(describe(loader.dataset), False, f"internal error, {_shown(error)}"), settings)
        return original(loader)
    _decide(loader, _taken(loader, work, checked), settings)
    return iterator


def _second_best(loader: Any, original: Callable[[Any], Any], reason: str, settings: Settings) -> Any:
    """Where the whole job cannot be taken over: its head, inside the script's own workers, or nothing."""
    name = describe(loader.dataset)
    try:
        changed, head = with_native_head(loader)
        iterator = original(changed)
    except Refused as second:
        same = str(second) in reason
        _decide(loader, Decision(name, False, reason if same else f"{reason}; {second}"), settings)
        return original(loader)
    except Exception as error:
        _decide(loader, Decision(name, False, f"{reason}; internal error, {_shown(error)}"), settings)
        return original(loader)
    where = f"its own {count_text(loader.num_workers, 'worker')}" if loader.num_workers else "the main process"
    said = f"{PARTLY}decode and {head} are native in {where}; the rest is the script's own ({reason})"
    _decide(loader, Decision(name, True, said), settings)
    return iterator


def _checked(loader: Any, work: Work, settings: Settings) -> str | None:
    """The outcome of `--check`, made once for each loader; raises `_CheckFailed` if the two ways differ."""
    if not settings.check:
        return None
    if loader in _decided and _decided[loader].check is not None:
        return _decided[loader].check
    comparison = check(work, settings.check)
    if not comparison.passed:
        raise _CheckFailed(f"check failed: {comparison}")
    return str(comparison)


def _taken(loader: Any, work: Work, checked: str | None) -> Decision:
    parts = "decode, crop, resize, normalise" if not work.recognition.table.identity else "decode, crop, resize"
    instead = count_text(loader.num_workers, "worker") if loader.num_workers else "the main process"
    reason = f"{parts} in {count_text(work.threads, 'native thread')} instead of {instead}"
    if loader.num_workers and loader.worker_init_fn is not None:
        reason += "; worker_init_fn, which only seeds, is not called"
    if found := work.table.indexes_found():
        reason += f"; {found:,} files have an index from an earlier run"
    return Decision(describe(loader.dataset), True, reason, work.threads, tuple(explain(work)), checked)


def _threads(loader: Any, settings: Settings) -> int:
    """As many native threads as the script has workers, at most one for each core that this process may use.

    A script without workers gets its share of the cores: all of them divided by the processes of its job on this host.
    """
    if settings.threads is not None:
        return settings.threads
    cores = max(1, int(usable_cores().usable))
    if loader.num_workers > 0:
        return min(int(loader.num_workers), cores)
    local = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, cores // (int(local) if local.isdigit() and int(local) > 0 else 1))


def _decide(loader: Any, decision: Decision, settings: Settings) -> None:
    """Says and writes down what was done with this loader: once, also where a script makes such a loader for every epoch."""
    _decided[loader] = decision
    if decision in _said:
        return
    _said.add(decision)
    if os.environ.get("RANK", "0") == "0":
        verdict = "taken over" if decision.taken_over else "not taken over"
        colon = "" if decision.reason.startswith(PARTLY) else ":"
        say(f"headrace run: loader over {decision.dataset} {verdict}{colon} {decision.reason}")
        if decision.check:
            say(f"headrace run:   check: {decision.check}")
        for line in decision.pipeline if settings.explain else ():
            say(f"headrace run:   {line}")
    if settings.folder is not None:
        record = {name: getattr(decision, name) for name in Decision.__dataclass_fields__}
        record |= {"rank": os.environ.get("RANK"), "pid": os.getpid()}
        try:
            with open(settings.folder / f"loaders-{os.getpid()}.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            say(f"headrace run: cannot write what was done: {error}")


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
