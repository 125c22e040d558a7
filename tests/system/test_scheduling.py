"""Threads that read ahead run under the batch policy, and no other thread of the process does."""

from __future__ import annotations

import os
import threading

import pytest
from headrace.datasets.sources.remote import shards
from headrace.system.scheduling import yield_to_running_threads


def test_threads_that_fetch_from_a_store_get_the_batch_policy() -> None:
    with shards._pool(1) as pool:
        assert pool.submit(os.sched_getscheduler, 0).result() == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_policy_that_the_user_has_chosen_stays() -> None:
    policies = []

    def run() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        yield_to_running_threads()
        policies.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert policies == [os.SCHED_IDLE]


def test_a_sandbox_that_forbids_the_change_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError("the sandbox says no")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    yield_to_running_threads()
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
