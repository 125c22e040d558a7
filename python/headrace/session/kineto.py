"""Read a session from a trace of PyTorch's profiler (`export_chrome_trace`, Kineto's JSON).

A trace holds the steps that `prof.step()` marks, the loader's `next()`, and what ran on the GPU. It lacks workers, storage,
cores and memory, so the diagnosis cannot say why an input is slow. Times in a trace are microseconds.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import SessionError
from headrace.session.machine import GpuProperties, GpuSample, Host, Sample
from headrace.session.model import NotMeasured, ObservedLoader, Process, Session, Step
from headrace.system.files.regular_file import read_regular
from headrace.system.text.json import parse_json
from headrace.system.text.size_limits import record_limit, too_large

__all__ = ["FAMILY", "is_trace", "read_trace"]

FAMILY = "kineto"
STEP, NEXT = "ProfilerStep#", "enumerate(DataLoader)#"
SINGLE_PROCESS = "_SingleProcessDataLoaderIter"
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
WAITS = (
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "hipDeviceSynchronize",
    "hipStreamSynchronize",
)

_LARGEST = 1e300
"""Refuse times above this: the difference of two of them could overflow to infinity."""

Span = tuple[float, float]
"""Begin and end of a time span, in seconds since the first step of the trace."""


def is_trace(path: Path) -> bool:
    """Return whether `path` is a file whose name ends in `.json` or `.json.gz`, as the names of traces do."""
    return path.name.endswith((".json", ".json.gz")) and path.is_file()


def read_trace(path: Path) -> Session:
    """Return the trace of one process as a session. Raises `SessionError` when it is no trace or marks fewer than 2 steps."""
    try:
        data = read_regular(path)
        document = parse_json(_decompressed(data) if data[:2] == b"\x1f\x8b" else data)
    except (OSError, ValueError, zlib.error) as error:
        raise SessionError(
            f"{path} is not a trace: {error}", hint="give a file that torch.profiler's export_chrome_trace wrote"
        ) from error
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise SessionError(f"{path} is not a trace: it has no traceEvents", hint="a session is a folder, a trace one JSON file")
    whole = [event for event in events if isinstance(event, dict) and event.get("ph") == "X" and _number(event.get("ts"))]
    marks = sorted((e for e in whole if _name(e).startswith(STEP) and "gpu" not in str(e.get("cat"))), key=lambda e: e["ts"])
    if len(marks) < 2:
        raise SessionError(
            f"{path} has {len(marks)} marked steps; at least 2 are needed",
            hint="call prof.step() after each step, with torch.profiler.schedule(wait=1, warmup=2, active=3) or more",
        )
    try:
        return _session_of(path, document, whole, marks)
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise SessionError(
            f"{path} holds values that a trace does not have: {error}", hint="give what export_chrome_trace wrote"
        ) from error


def _decompressed(data: bytes) -> bytes:
    """Return the content of a gzip file. Raise ValueError above the bound of a record: a megabyte may stand for a gigabyte."""
    limit = record_limit()
    stream = zlib.decompressobj(wbits=31)  # gzip's header
    found = stream.decompress(data, limit + 1)
    if len(found) > limit:
        raise ValueError(f"unpacked, it {too_large(len(found), limit)}")
    if not stream.eof:
        raise ValueError("the compressed data end too early")
    return found


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < _LARGEST  # NaN is not


def _name(event: dict[str, Any]) -> str:
    return str(event.get("name", ""))


@dataclass(frozen=True, slots=True)
class _Spans:
    """The spans of one trace by type. Spans on the GPU do not overlap and are in order."""

    waits: list[Span]
    compute: list[Span]
    collective: list[Span]
    copies: list[Span]
    busy: list[Span]
    syncs: list[Span]


def _session_of(
    path: Path, document: dict[str, Any], events: Sequence[dict[str, Any]], marks: Sequence[dict[str, Any]]
) -> Session:
    zero = float(marks[0]["ts"])

    def spans(chosen: Iterable[dict[str, Any]]) -> list[Span]:
        return sorted(((e["ts"] - zero) * 1e-6, (e["ts"] - zero + float(e.get("dur") or 0.0)) * 1e-6) for e in chosen)

    gpu = [event for event in events if event.get("cat") in ON_GPU]
    kernels = [event for event in gpu if event.get("cat") == "kernel"]
    nexts = [event for event in events if _name(event).startswith(NEXT)]
    found = _Spans(
        waits=_merged(spans(nexts)),
        compute=_merged(spans(event for event in kernels if "nccl" not in _name(event).lower())),
        collective=_merged(spans(event for event in kernels if "nccl" in _name(event).lower())),
        copies=_merged(spans(event for event in gpu if "HtoD" in _name(event))),
        busy=_merged(spans(gpu)),
        syncs=spans(event for event in events if _name(event) in WAITS),
    )
    ends = [*(float(mark["ts"]) for mark in marks[1:]), float(marks[-1]["ts"]) + float(marks[-1].get("dur") or 0.0)]
    cut = [((float(mark["ts"]) - zero) * 1e-6, (end - zero) * 1e-6) for mark, end in zip(marks, ends, strict=True)]
    pid = next((event["pid"] for event in marks if isinstance(event.get("pid"), int)), 1)
    ranks = document.get("distributedInfo") or {}
    single = any(SINGLE_PROCESS in _name(event) for event in nexts)
    return Session(
        command=(path.name,),
        duration_s=cut[-1][1],
        host=Host(gpus=_gpus(document)),
        processes=(Process(pid, 0, "main", 0.0, rank=int(ranks.get("rank", 0)), world_size=int(ranks.get("world_size", 1))),),
        loaders=(ObservedLoader(pid, 0, num_workers=0 if single else 1, batch_size=None, family=FAMILY),),
        steps=tuple(_step(pid, begin_s, end_s, found, bool(gpu)) for begin_s, end_s in cut),
        samples=tuple(_sample(begin_s, end_s, found) for begin_s, end_s in cut) if gpu else (),
        not_measured=(
            NotMeasured("workers, storage, CPU cores, memory", "a profiler's trace does not hold them"),
            *(() if nexts else (NotMeasured("waiting for input", "the trace has no DataLoader event"),)),
        ),
        facts={"source": FAMILY},
    )


def _step(pid: int, begin_s: float, end_s: float, found: _Spans, on_gpu: bool) -> Step:
    waited_s = _within(found.waits, begin_s, end_s)
    waits = list(_reaching_into(found.waits, begin_s, end_s))
    wait_end_s = max((end for begin, end in waits if begin_s <= begin), default=begin_s)
    syncs = found.syncs[bisect_left(found.syncs, (begin_s,)) : bisect_left(found.syncs, (end_s,))]
    exposed_copy_s = _within(found.copies, begin_s, end_s) - _shared(found.copies, found.compute, begin_s, end_s)
    exchange_s = _within(found.collective, begin_s, end_s) - _shared(found.collective, found.compute, begin_s, end_s)
    busy_in_wait_s = sum(_within(found.busy, max(begin, begin_s), min(end, end_s)) for begin, end in waits)
    return Step(
        pid=pid,
        loader=0,
        epoch=0,
        start_s=begin_s,
        wait_s=waited_s,
        compute_s=end_s - begin_s - waited_s,
        sync_s=sum(end - begin for begin, end in syncs) if on_gpu else None,
        sync_count=len(syncs) if on_gpu else None,
        h2d_s=max(0.0, exposed_copy_s) if on_gpu else None,
        gpu_wait_s=max(0.0, waited_s - busy_in_wait_s) if on_gpu else None,
        gpu_step_s=_within(found.busy, begin_s, end_s) if on_gpu else None,
        collective_s=max(0.0, exchange_s) if found.collective else None,
        drained=int(_within(found.busy, wait_end_s, wait_end_s + 1e-6) == 0.0) if on_gpu else None,
    )


def _sample(begin_s: float, end_s: float, found: _Spans) -> Sample:
    length_s = max(1e-9, end_s - begin_s)
    busy = min(1.0, _within(found.busy, begin_s, end_s) / length_s)
    return Sample(time_s=end_s, interval_s=length_s, gpus=(GpuSample(0, busy=busy),))


def _gpus(document: dict[str, Any]) -> tuple[GpuProperties, ...]:
    found = document.get("deviceProperties")
    cards = [card for card in found if isinstance(card, dict)] if isinstance(found, list) else []
    return tuple(
        GpuProperties(number, str(card.get("name", "GPU")), card.get("totalGlobalMem")) for number, card in enumerate(cards)
    )


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Return the union of spans that are in order of their begin."""
    merged: list[Span] = []
    for begin, end in spans:
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _within(spans: Sequence[Span], begin_s: float, end_s: float) -> float:
    """Return how many seconds of the spans lie between two times. The spans are in order and do not overlap."""
    within = (min(end, end_s) - max(begin, begin_s) for begin, end in _reaching_into(spans, begin_s, end_s))
    return sum((max(0.0, seconds) for seconds in within), 0.0)


def _reaching_into(spans: Sequence[Span], begin_s: float, end_s: float) -> Iterator[Span]:
    """Yield the spans that may reach between two times. The spans are in order and do not overlap: a step looks at its own."""
    first = max(0, bisect_left(spans, (begin_s, begin_s)) - 1)
    for at in range(first, len(spans)):  # a slice would copy the rest, once for each step
        if spans[at][0] >= end_s:
            return
        yield spans[at]


def _shared(one: Sequence[Span], other: Sequence[Span], begin_s: float, end_s: float) -> float:
    """Return how many seconds two unions of spans have in common between two times."""
    own = _reaching_into(one, begin_s, end_s)
    return sum(_within(other, max(begin, begin_s), min(end, end_s)) for begin, end in own if end > begin_s)
