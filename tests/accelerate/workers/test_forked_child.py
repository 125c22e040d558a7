"""A child process is forked and ended, whatever the script does with the children of its process."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from headrace.accelerate.workers.forked_child import in_forked_child


@pytest.fixture
def own_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


def test_a_script_may_let_the_system_wait_for_its_children(own_handler: None) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    assert in_forked_child(lambda: 3) == 3
