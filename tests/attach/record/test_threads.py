"""Counters of the calling thread: the files in `/proc` that stay open for them are closed with their thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from headrace.attach.record import threads

NUMBERS = Path("/proc/self/fd")


def opened() -> int:
    return len(list(NUMBERS.iterdir()))


def in_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_threads_that_have_ended_leave_no_file_open() -> None:
    before = opened()
    for _ in range(20):
        in_thread(threads.run_queue_delay_s)
    assert opened() == before


def test_a_forked_child_closes_the_files_of_its_parent() -> None:
    threads.read_io()
    threads.run_queue_delay_s()
    numbers = [one.number for one in vars(threads._local).values() if one]
    paths = [str((NUMBERS / str(number)).readlink()) for number in numbers]
    child = os.fork()
    if child == 0:
        names = {str(each.readlink()) for each in NUMBERS.iterdir() if each.is_symlink()}
        os._exit(int(any(path in names for path in paths)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert numbers and all(os.pread(number, 8, 0) for number in numbers)


def test_a_number_that_the_script_uses_again_stays_open(tmp_path: Path) -> None:
    used = []

    def reuse() -> None:
        threads.run_queue_delay_s()
        number = threads._local.schedstat.number
        own = os.open(tmp_path / "own", os.O_WRONLY | os.O_CREAT)
        os.dup2(own, number)
        os.close(own)
        used.append(number)

    in_thread(reuse)
    os.write(used[0], b"written")
    os.close(used[0])
    assert (tmp_path / "own").read_bytes() == b"written"


def test_a_counter_whose_file_the_script_has_closed_is_unknown() -> None:
    found = []

    def close() -> None:
        threads.run_queue_delay_s()
        os.close(threads._local.schedstat.number)
        found.append(threads.run_queue_delay_s())

    in_thread(close)
    assert found == [None]
