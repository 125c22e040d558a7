"""The recording of steps: what it reads of an iterator of the script, and what it writes of the times."""

from __future__ import annotations

import fcntl
import os
import resource
from types import SimpleNamespace

import pytest
from headrace.attach.batches.steps import _is_ready, _rounded


def test_whether_a_batch_is_ready_is_seen_in_a_process_of_many_descriptors() -> None:
    """`select` refuses the number 1024, which once ended the timing of steps."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1200:
        pytest.skip("this process may open too few files")
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD, 1100)
    queue = SimpleNamespace(_reader=SimpleNamespace(fileno=lambda: high))
    iterator = SimpleNamespace(_num_workers=1, _task_info={}, _rcvd_idx=0, _data_queue=queue)
    try:
        assert _is_ready(iterator) == 0
        os.write(writer, b"x")
        assert _is_ready(iterator) == 1
    finally:
        for descriptor in (reader, writer, high):
            os.close(descriptor)


@pytest.mark.parametrize("seconds", [0.0, 1.23456789e-3, 0.05, 812345.123456, -4e-7])
def test_times_are_written_with_seven_digits(seconds: float) -> None:
    assert _rounded(seconds) == round(seconds, 7)
