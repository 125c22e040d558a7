"""Threads that read ahead run under the batch policy, and no other thread of the process does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from headrace.datasets.sources.remote import shards
from headrace.system.processes.scheduling import yield_to_running_threads


def test_threads_that_fetch_from_a_store_get_the_batch_policy() -> None:
    with shards._pool(1) as pool:
        assert pool.submit(os.sched_getscheduler, 0).result() == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


NATIVE_THREADS = """
import os
from pathlib import Path
from headrace.datasets.sources.remote.retry import RetryPolicy
from headrace.datasets.sources.remote.store import open_bucket
from headrace.errors import SourceError
try:
    open_bucket("http://127.0.0.1:9", RetryPolicy(tries=1, client_retries=0)).read("a")
except SourceError:
    pass
print("main", os.sched_getscheduler(0))
for task in Path("/proc/self/task").iterdir():
    print((task / "comm").read_text().strip(), os.sched_getscheduler(int(task.name)))
"""


def test_threads_of_the_object_store_client_get_the_batch_policy() -> None:
    pytest.importorskip("obstore")
    # A process starts the client's threads only once, so a new process is needed.
    done = subprocess.run([sys.executable, "-c", NATIVE_THREADS], capture_output=True, text=True, check=True)
    found = {tuple(line.rsplit(maxsplit=1)) for line in done.stdout.splitlines()}
    assert {policy for name, policy in found if "tokio" in name} == {str(os.SCHED_BATCH)}
    assert ("main", str(os.SCHED_OTHER)) in found


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
