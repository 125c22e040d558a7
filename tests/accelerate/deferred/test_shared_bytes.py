"""The shared memory between workers and the training process: slots that are used again, and never before their time."""

from __future__ import annotations

import gc
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from headrace.accelerate.deferred import shared_bytes
from headrace.accelerate.deferred.shared_bytes import SharedBytes, received


def test_bytes_arrive_and_their_slot_is_free_when_nobody_refers_to_them() -> None:
    shared = SharedBytes(workers=3, slots=2)
    first, second = shared.put(1, [b"abc", memoryview(b"defg")]), shared.put(1, [b"x" * 300_000])
    assert first is not None and second is not None and first[1] != second[1]
    assert shared.put(1, [b"none is free"]) is None
    assert shared.put(2, [b"another worker's"]) is not None
    view = received(first)
    part = view[3:]
    assert bytes(view) == b"abcdefg" and bytes(received(second)) == b"x" * 300_000 and view.readonly
    assert shared.put(1, [b"into the second"]) is not None
    del view
    assert shared.put(1, [b"none is free"]) is None and bytes(part) == b"defg"
    del part
    assert shared.put(1, [b"into the first"]) == (shared.name, first[1], 14)


def test_a_forked_child_does_not_free_what_its_parent_reads() -> None:
    shared = SharedBytes(workers=1, slots=1)
    place = shared.put(0, [b"abc"])
    assert place is not None
    view = received(place)
    child = os.fork()
    if child == 0:
        del view
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert shared.put(0, [b"def"]) is None and bytes(view) == b"abc"


def test_without_memory_nothing_is_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    shared = SharedBytes(workers=1, slots=1)
    monkeypatch.setattr(shared_bytes, "LARGEST_BATCH", 1 << 20)
    assert shared.put(0, [b"x" * (1 << 20), b"y"]) is None
    monkeypatch.undo()
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert shared.put(0, [b"abc"]) is None
    assert SharedBytes(workers=1, slots=1).put(0, [b"abc"]) is None
    monkeypatch.setattr(os, "memfd_create", refuse)
    assert SharedBytes(workers=1, slots=1).put(0, [b"abc"]) is None


def put_in(shared: SharedBytes, place: Any) -> None:
    place.send(shared.put(1, [b"from a process"]))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_start_method_and_no_file_remains(method: str) -> None:
    before = len(mapped_files())
    shared = SharedBytes(workers=2, slots=1)
    assert len(mapped_files()) == before + 1
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=put_in, args=(shared, theirs))
    process.start()
    view = received(ours.recv())
    process.join()
    assert bytes(view) == b"from a process"
    del shared, view, process
    gc.collect()
    assert len(mapped_files()) == before


def mapped_files() -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:headrace" in line]


def test_memory_is_kept_for_the_next_batch_and_only_what_was_needed_is_taken() -> None:
    shared = SharedBytes(workers=64, slots=3)
    for number in range(200):
        place = shared.put(5, [bytes([number])] * (1000 * (number % 50 + 1)))
        assert place is not None and bytes(received(place)) == bytes([number]) * place[2]
    assert shared._file is not None
    assert os.fstat(shared._file).st_blocks * 512 <= shared_bytes.GROWTH + 4096
