"""The rule for standstills, and what a standstill changes in a diagnosis: made-up jobs that stand, or only look so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.fail_if import Condition
from headrace.diagnosis.rules.standstill import OpenStandstill, open_standstill
from headrace.report.text.terminal import render
from headrace.session.model import Session
from headrace.session.standstill import StandingProcess, Standstill, StandstillSample, read_standstills
from session_factory import MAIN_PID, make_session

Frame = tuple[str, str, int]

IN_NEXT: tuple[Frame, ...] = (
    ("<module>", "/work/project/train.py", 30),
    ("__next__", "torch/utils/data/dataloader.py", 725),
    ("_try_get_data", "torch/utils/data/dataloader.py", 1293),
    ("get", "multiprocessing/queues.py", 113),
    ("select", "selectors.py", 415),
)
WORKER: tuple[Frame, ...] = (
    ("<module>", "/work/project/train.py", 30),
    ("_launch", "multiprocessing/popen_fork.py", 71),
    ("_worker_loop", "torch/utils/data/_utils/worker.py", 375),
)
IDLE = (*WORKER, ("get", "multiprocessing/queues.py", 113), ("select", "selectors.py", 415))
IN_ITEM = (*WORKER, ("fetch", "torch/utils/data/_utils/fetch.py", 54), ("__getitem__", "/work/project/data/images.py", 12))
IN_BACKWARD: tuple[Frame, ...] = (
    ("<module>", "/work/project/train.py", 33),
    ("backward", "torch/_tensor.py", 581),
    ("_engine_run_backward", "torch/autograd/graph.py", 825),
)
IN_BARRIER: tuple[Frame, ...] = (
    ("<module>", "/work/project/train.py", 40),
    ("barrier", "torch/distributed/distributed_c10d.py", 4000),
)


def standing(pid: int, frames: tuple[Frame, ...], *, lock: str | None = None, **values: Any) -> StandingProcess:
    """A process whose training thread is at `frames`."""
    return StandingProcess(pid, frames=frames, lock=lock, **values)


def trainer(frames: tuple[Frame, ...] = IN_NEXT, **values: Any) -> StandingProcess:
    given = {"phase": "waits", "longest_s": 1.0, "begun_s": 3.0, "batches": 120, "steps": 120, "name": "python", "state": "S"}
    return standing(values.pop("pid", MAIN_PID), frames, **{**given, **values})


def worker(number: int, frames: tuple[Frame, ...] = IN_ITEM, **values: Any) -> StandingProcess:
    given = {"worker": number, "parent_pid": MAIN_PID, "phase": "makes a batch", "name": "pt_data_worker", "state": "S"}
    return standing(MAIN_PID + 1 + number, frames, **{**given, **values})


Change = Callable[[StandingProcess, int], StandingProcess]


def stands(
    *processes: StandingProcess,
    age_s: float = 34.0,
    samples: int = 4,
    change: Change = lambda process, _: process,
    network_bytes_s: float = 0.0,
    **options: Any,
) -> Session:
    """A session that ends `age_s` after its last change. change: a process as it is in sample number N, 2 s later each."""
    session = make_session(**options)
    since_s = session.steps[-1].start_s + session.steps[-1].step_s if session.steps else 3.0
    first_s = since_s + age_s - 2.0 * samples
    taken = tuple(
        StandstillSample(
            time_s=first_s + 2.0 * number,
            processes=tuple(change(process, number) for process in processes),
            network_bytes=int(2 * number * network_bytes_s),
        )
        for number in range(samples)
    )
    found = Standstill(since_s, taken)
    return replace(session, standstills=(found,), duration_s=since_s + age_s, exit_code=-15, facts={"time_limit_s": 1000.0})


def judged(session: Session) -> OpenStandstill:
    found = open_standstill(session)
    assert found is not None
    return found


def test_a_worker_that_holds_the_batch_back_is_named_with_file_line_and_function() -> None:
    found = judged(stands(trainer(), worker(0, IDLE, phase="worker idle"), worker(1, waits_in="hrtimer_nanosleep")))
    assert found.words == "no step for 34 s: worker 1 (1002) stands at data/images.py:12 in __getitem__ (sleeps)"
    assert found.hangs and found.in_next


def test_a_worker_of_a_fork_server_is_named() -> None:
    found = judged(stands(trainer(), worker(0, IDLE, phase="worker idle", parent_pid=77), worker(1, parent_pid=77)))
    assert found.words == "no step for 34 s: worker 1 (1002) stands at data/images.py:12 in __getitem__"


def test_a_lock_that_a_forked_worker_waits_for_is_named() -> None:
    found = judged(stands(trainer(), worker(1, lock="cache_lock"), worker(0, lock="cache_lock")))
    assert found.words.endswith(
        "workers 0 and 1 (1001, 1002) stand at data/images.py:12 in __getitem__ (waits for the lock cache_lock)"
    )
    assert found.advice is not None and "held cache_lock" in found.advice


def test_a_hang_is_the_verdict_and_its_time_counts() -> None:
    session = stands(trainer(), worker(0), workers=1)
    moving = diagnose(replace(session, standstills=()))
    found = diagnose(session)
    assert found.verdict == "HANG" and found.primary is not None
    assert found.summary == found.primary.summary == judged(session).words
    assert not found.provisional and not found.fixes and found.reachable_img_s is None
    share = found.share_of_step["standstill"]
    assert share == pytest.approx(34 / (34 + sum(step.step_s for step in session.steps)), abs=0.03)
    assert found.primary.share == pytest.approx(share, abs=1e-4)
    assert sum(found.share_of_step.values()) == pytest.approx(1)
    assert found.img_s == pytest.approx((moving.img_s or 0) * (1 - share))
    assert (found.step_s or 0) > 5 * (moving.step_s or 0)
    row = next(row for row in found.percentiles if row.name == "step")
    assert row.max == pytest.approx(34)
    assert Condition('verdict=="HANG"').holds(found) and not Condition('verdict=="HANG"').holds(moving)


def test_a_long_step_that_moves_is_a_note_and_not_the_verdict() -> None:
    def moves(process: StandingProcess, number: int) -> StandingProcess:
        frames = (*IN_BACKWARD[:1], ("forward", f"torch/nn/modules/layer{number}.py", number))
        return replace(process, frames=frames, cpu_s=1.9 * number)

    session = stands(trainer(phase="runs"), change=moves)
    found = diagnose(session)
    assert found.verdict != "HANG"
    assert found.notes[0].text.startswith("no step for 34 s: the training thread stands at ")
    assert found.confidence <= 0.45, "most of the time belongs to a step that is not done"
    assert found.share_of_step["standstill"] > 0.5
    before = diagnose(replace(session, standstills=()))
    assert (found.img_s, found.reachable_img_s) == (before.img_s, before.reachable_img_s), "both rates are of the steps before"
    lines = render(found, session=session).plain.splitlines()
    below = next(number for number, line in enumerate(lines) if line.startswith(found.verdict)) + 1
    assert lines[below].startswith("Note: no step for 34 s")


@pytest.mark.parametrize(
    ("name", "change", "network_bytes_s"),
    [
        ("it computes", lambda process, number: replace(process, cpu_s=0.5 * number), 0.0),
        ("it writes a checkpoint", lambda process, number: replace(process, bytes=400_000 * number), 0.0),
        ("it receives", lambda process, _: process, 100_000.0),
        ("it reads small files", lambda process, number: replace(process, switches=90 * number, reads=30 * number), 0.0),
    ],
)
def test_what_is_slow_and_does_something_is_no_hang(name: str, change: Change, network_bytes_s: float) -> None:
    found = judged(stands(trainer(), worker(0), change=change, network_bytes_s=network_bytes_s))
    assert not found.hangs, name


def test_a_pause_as_long_as_one_before_is_no_hang() -> None:
    assert not judged(stands(trainer(longest_s=20.0), worker(0))).hangs
    assert judged(stands(trainer(longest_s=20.0), worker(0), age_s=41.0)).hangs


def test_a_first_batch_that_does_not_come_is_told_at_once_and_a_hang_after_two_minutes() -> None:
    first = {"batches": 0, "steps": 0, "begun_s": None, "longest_s": 0.0}
    found = diagnose(replace(stands(trainer(**first), worker(0)), steps=(), batches=()))
    assert found.verdict == "INSUFFICIENT_DATA"
    assert found.summary.startswith("no step for 34 s: worker 0 (1001) stands at data/images.py:12 in __getitem__")
    later = diagnose(replace(stands(trainer(**first), worker(0), age_s=125.0), steps=(), batches=()))
    assert later.verdict == "HANG" and later.share_of_step["standstill"] == 1


def test_storage_that_still_writes_for_a_process_is_no_hang() -> None:
    """`fsync` of a large checkpoint moves no bytes of the process itself."""
    frames = (("save", "/work/project/train.py", 60),)
    session = stands(trainer(frames, phase="epoch ended", state="D"), age_s=125.0)
    (found,) = session.standstills
    writes = tuple(replace(sample, disk_bytes=1_000_000 * number) for number, sample in enumerate(found.samples))
    assert judged(session).hangs
    assert not judged(replace(session, standstills=(replace(found, samples=writes),))).hangs


def test_a_command_that_trains_nothing_is_no_hang_but_ranks_that_do_not_find_each_other_are() -> None:
    before = {"phase": "nothing", "batches": 0, "steps": 0, "begun_s": None, "longest_s": 0.0, "world_size": 2}
    serving = stands(trainer((("serve", "/work/project/serve.py", 9),), **before), age_s=200.0)
    assert not judged(serving).hangs
    meeting = (("<module>", "/work/project/train.py", 5), ("init_process_group", "torch/distributed/distributed_c10d.py", 1700))
    agent = trainer((("_invoke_run", "torch/distributed/elastic/agent/server/api.py", 877),), pid=900, **before)
    found = judged(stands(agent, trainer(meeting, **before), age_s=200.0))
    assert found.hangs
    assert found.words == "no step for 200 s: the training thread waits in init_process_group for the other ranks"


def test_a_standstill_that_begins_after_the_end_is_none() -> None:
    session = stands(trainer(), worker(0))
    assert open_standstill(replace(session, duration_s=session.standstills[0].since_s - 1)) is None


def test_two_samples_are_too_few() -> None:
    assert not judged(stands(trainer(), worker(0), samples=2)).hangs


def test_a_standstill_that_is_over_and_a_command_that_ended_well_are_no_hang() -> None:
    session = stands(trainer(), worker(0))
    over = replace(session, standstills=(replace(session.standstills[0], over=True),))
    assert open_standstill(over) is None
    assert open_standstill(replace(session, exit_code=0, facts={})) is None
    assert open_standstill(replace(session, exit_code=1, facts={})) is not None, "a time-out of a library ended it"


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        ((("put", "queue.py", 140), ("wait", "threading.py", 320)), "waits for room in a queue at train.py:50 in log"),
        ((("join", "threading.py", 1112), ("_wait_for_tstate_lock", "threading.py", 1132)), "waits for another thread to end"),
        ((("getresponse", "http/client.py", 1374), ("readinto", "socket.py", 705)), "waits for an answer from the network"),
        ((), "stands at train.py:50 in log"),
    ],
)
def test_the_training_thread_is_named_with_what_it_waits_for(inner: tuple[Frame, ...], words: str) -> None:
    frames = (("<module>", "/work/project/train.py", 30), ("log", "/work/project/train.py", 50), *inner)
    found = judged(stands(trainer(frames, phase="runs")))
    assert found.words.startswith(f"no step for 34 s: the training thread {words}")
    assert found.hangs


def test_a_checkpoint_that_does_not_end_is_named_by_the_kernels_wait() -> None:
    frames = (("save", "/work/project/train.py", 60),)
    found = judged(stands(trainer(frames, phase="epoch ended", waits_in="anon_pipe_write")))
    assert found.words == "no step for 34 s: the training thread waits for room in a pipe at train.py:60 in save"
    assert found.hangs and found.confidence >= 0.7
    asleep = trainer(frames, phase="runs", waits_in="hrtimer_nanosleep")
    assert not judged(stands(asleep)).hangs, "a poll, or a pause that is meant"
    assert judged(stands(asleep, age_s=125.0)).confidence <= 0.5


def test_uneven_batches_name_the_rank_that_waits_and_the_one_that_has_ended() -> None:
    waiting = trainer(IN_BACKWARD, phase="runs", batches=205, world_size=2)
    done = trainer(IN_BARRIER, pid=1100, phase="epoch ended", batches=204, rank=1, world_size=2, cpu_s=0.0)

    def spins(process: StandingProcess, number: int) -> StandingProcess:
        return replace(process, cpu_s=2.0 * number)  # NCCL waits with a full core

    for gone in (done, replace(done, ended=True, frames=())):
        found = judged(stands(waiting, gone, change=spins))
        assert found.words.startswith(
            "no step for 34 s: rank 0 waits in all-reduce since step 204; rank 1 ended its loader after "
        )
        assert "after 204 batches" in found.words
        assert found.hangs and found.confidence == 0.9


def test_a_rank_without_data_needs_no_two_minutes() -> None:
    waiting = trainer(IN_BACKWARD, phase="runs", batches=1, steps=1, world_size=2)
    empty = trainer(IN_BARRIER, pid=1100, phase="epoch ended", batches=0, steps=0, begun_s=None, rank=1, world_size=2)
    found = judged(stands(waiting, empty, age_s=25.0))
    assert "rank 1 ended its loader after 0 batches" in found.words and found.hangs


def test_ranks_that_wait_for_one_that_works_are_no_hang() -> None:
    waiting = trainer(IN_BARRIER, phase="runs", world_size=2)
    validates = trainer((("validate", "/work/project/train.py", 80),), pid=1100, phase="epoch ended", rank=1, world_size=2)
    found = judged(stands(waiting, validates, change=lambda process, number: replace(process, cpu_s=1.9 * number)))
    assert not found.hangs
    quiet = judged(stands(waiting, validates, change=lambda one, number: replace(one, cpu_s=1.9 * number * (one.rank == 0))))
    assert quiet.hangs and "rank 1 ended its loader after 120 batches and stands at train.py:80 in validate" in quiet.words


def test_a_loop_that_waits_with_a_full_core_is_suspected() -> None:
    def spins(process: StandingProcess, number: int) -> StandingProcess:
        frames = (("wait_for_lock", "/work/project/train.py", 70 + number % 2),)
        return replace(process, frames=frames, cpu_s=2.0 * number)

    found = judged(stands(trainer(phase="runs"), change=spins))
    assert found.words.startswith("suspected: no step for 34 s: the training thread stands at train.py:7")
    assert not found.hangs
    assert not judged(stands(trainer(phase="runs"), change=spins, age_s=600.0)).hangs, "a long validation looks the same"


def test_the_first_step_may_take_two_minutes() -> None:
    compiles = trainer((("build", "/work/project/ops.py", 8),), phase="runs", batches=1, steps=1, longest_s=0.0)
    assert not judged(stands(compiles)).hangs
    assert judged(stands(compiles, age_s=125.0)).hangs


def test_workers_that_wait_for_a_lock_from_the_first_batch_on_hang_after_half_a_minute() -> None:
    """The thread that held the lock was not forked with them: nobody gives it back."""
    first = trainer(batches=0, steps=0, begun_s=None, longest_s=0.0)
    locked = worker(0, lock="cache_lock")
    assert judged(stands(first, locked, age_s=34.0, steps=0)).hangs
    assert not judged(stands(first, locked, age_s=25.0, steps=0)).hangs
    assert not judged(stands(first, worker(0), age_s=34.0, steps=0)).hangs, "a first batch may take two minutes"
    assert not judged(stands(first, locked, worker(1), age_s=34.0, steps=0)).hangs


def with_others(session: Session, other: Callable[[int], StandingProcess]) -> Session:
    """A session whose samples have another process each, by their number."""
    (found,) = session.standstills
    samples = tuple(replace(sample, others=(other(number),)) for number, sample in enumerate(found.samples))
    return replace(session, standstills=(replace(found, samples=samples),))


def test_processes_that_begin_meanwhile_count_as_work() -> None:
    """The first sample does not have them, so that all they used was used since."""
    session = stands(trainer((("build", "/work/project/ops.py", 8),), phase="runs"), age_s=125.0)
    compilers = with_others(session, lambda number: StandingProcess(2000 + number, cpu_s=1.5, name="cc1plus"))
    copies = with_others(session, lambda number: StandingProcess(2000 + number, bytes=1_000_000, name="cp"))
    assert judged(session).hangs
    assert not judged(compilers).hangs and not judged(copies).hangs


def test_a_worker_that_has_ended_is_no_proof() -> None:
    """PyTorch leaves the worker whose part of an `IterableDataset` is used up as it is until the epoch ends."""

    def receives(process: StandingProcess, number: int) -> StandingProcess:
        return replace(process, bytes=400_000 * number)

    session = stands(trainer(), worker(0), change=receives)
    ended = with_others(session, lambda _: StandingProcess(1009, state="Z", name="pt_data_worker"))
    assert not judged(ended).hangs


def test_ranks_that_wait_for_one_that_saves_are_no_hang() -> None:
    waiting = trainer(IN_BARRIER, phase="runs", world_size=2)
    saves = trainer((("save", "/work/project/train.py", 80),), pid=1100, phase="runs", rank=1, world_size=2)

    def writes(process: StandingProcess, number: int) -> StandingProcess:
        return replace(process, bytes=400_000 * number * process.rank)

    assert judged(stands(waiting, saves)).hangs
    assert not judged(stands(waiting, saves, change=writes)).hangs


def test_ranks_that_wait_for_those_of_another_machine_are_no_hang() -> None:
    ranks = [trainer(IN_BARRIER, pid=1100 + rank, phase="runs", rank=rank, world_size=4) for rank in (2, 3)]
    assert not judged(stands(*ranks)).hangs
    assert judged(stands(*(replace(one, world_size=2) for one in ranks))).hangs


@pytest.mark.parametrize("change", [{"rank": 0}, {"parent_pid": 77}, {"world_size": 4}])
def test_ranks_of_a_job_before_are_no_proof(change: dict[str, Any]) -> None:
    def spins(process: StandingProcess, number: int) -> StandingProcess:
        return replace(process, cpu_s=2.0 * number)

    waiting = trainer(IN_BACKWARD, phase="runs", world_size=2)
    before = trainer((), pid=900, ended=True, rank=1, world_size=2)
    assert judged(stands(waiting, before, change=spins)).hangs
    found = judged(stands(waiting, replace(before, **change), change=spins))
    assert not found.hangs and "has ended" not in found.words


def test_a_notebook_between_its_cells_is_no_hang() -> None:
    idle = (("run_forever", "asyncio/base_events.py", 607), ("_run_once", "asyncio/base_events.py", 1922))
    found = judged(stands(trainer((*idle, ("select", "selectors.py", 468)), phase="runs"), age_s=300.0))
    assert not found.hangs


def test_the_words_do_not_grow_with_the_job() -> None:
    ranks = [trainer(IN_BARRIER, pid=1100 + rank, phase="runs", rank=rank, world_size=64) for rank in range(64)]
    assert judged(stands(*ranks)).words.endswith("rank 7 waits in a barrier since step 119; and 56 more ranks")
    workers = [worker(number, waits_in="hrtimer_nanosleep") for number in range(64)]
    where = "stand at data/images.py:12 in __getitem__ (sleeps)"
    assert judged(stands(trainer(), *workers)).words == f"no step for 34 s: 64 workers (1001, 1002, 1003, 1004, …) {where}"
    workers = [worker(number, lock=f"lock_{number}") for number in range(64)]
    assert judged(stands(trainer(), *workers)).words.endswith("(waits for the lock lock_7), and at 56 more places")


@pytest.mark.parametrize(
    "lines",
    [
        [{"since_s": float(number), "time_s": 1.0, "processes": []} for number in range(1001)],
        [{"since_s": 1.0, "time_s": float(number), "processes": []} for number in range(201)],
        [{"since_s": 1.0, "time_s": 1.0, "processes": [{"pid": 1}] * 1500, "others": [{"pid": 1}] * 1500}],
        [{"since_s": 1.0, "time_s": 1.0, "others": [{"pid": 1, "frames": [["f", "f.py", 1]] * 300}]}],
    ],
)
def test_a_session_of_too_many_standstills_is_refused(lines: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="too many"):
        read_standstills(lines, [], 0.0)


def beside(session: Session, pid: int, **values: Any) -> Session:
    """The session with another training of the command, which takes a step later."""
    (found,) = session.standstills
    samples = tuple(replace(sample, beside=(pid,)) for sample in found.samples)
    later = replace(session.steps[-1], pid=pid, start_s=found.since_s + 20.0)
    return replace(session, steps=(*session.steps, later), standstills=(replace(found, samples=samples),), **values)


def test_a_training_that_stands_beside_one_that_goes_on_is_a_hang_and_says_which() -> None:
    found = judged(beside(stands(trainer(), worker(1)), 2000))
    assert found.words == "no step for 34 s in process 1000: worker 1 (1002) stands at data/images.py:12 in __getitem__"
    assert found.hangs and found.pids == (MAIN_PID,)
    assert "the command runs another training beside it (pid 2000)" in found.evidence


@pytest.mark.parametrize("waits_in", ["hrtimer_nanosleep", "pipe_read"])
def test_a_training_that_may_wait_for_the_other_one_is_no_hang(waits_in: str) -> None:
    session = stands(trainer((("<module>", "/work/project/train.py", 9),), phase="runs", waits_in=waits_in), age_s=300.0)
    assert judged(session).hangs and not judged(beside(session, 2000)).hangs


def test_the_diagnosis_is_of_the_training_that_stands() -> None:
    """The other one has longer steps, which once made it the rank that the verdict is about."""
    session = stands(trainer(), worker(1), workers=1, compute_s=0.05)
    other = make_session(rank=1, workers=1, compute_s=0.2)
    joined = replace(
        session,
        processes=(*session.processes, *other.processes),
        loaders=(*session.loaders, *other.loaders),
        steps=(*session.steps, *other.steps),
        batches=(*session.batches, *other.batches),
    )
    found = diagnose(beside(joined, other.processes[0].pid))
    assert found.verdict == "HANG" and found.step_s is not None
    of_session = 34.0 + sum(step.step_s for step in session.steps)
    assert found.share_of_step["standstill"] == pytest.approx(34.0 / of_session, abs=0.05)


def test_a_thread_that_did_not_answer_is_named_by_where_it_was_last_seen() -> None:
    def silent(process: StandingProcess, number: int) -> StandingProcess:
        return replace(process, frames=(), state="R", cpu_s=9.0) if number == 3 else process

    found = open_standstill(stands(trainer(IN_BARRIER, phase="runs"), change=silent, steps=0))
    assert found is not None and not found.hangs
    assert "the training thread was last seen at train.py:40 in <module>" in found.words
    never = open_standstill(stands(trainer((), phase="runs", state="R"), steps=0))
    assert never is not None and "the training thread runs, its stack is not known" in never.words


def test_a_compilation_is_named_with_the_line_of_the_script_and_is_no_hang_early() -> None:
    compiling = (
        ("<module>", "/work/project/train.py", 30),
        ("_compile", "torch/_dynamo/convert_frame.py", 2169),
        ("<module>", "/tmp/torchinductor_me/va/generated.py", 34),
        ("communicate", "subprocess.py", 1196),
    )
    found = open_standstill(stands(trainer(compiling, phase="runs"), age_s=100.0))
    assert found is not None and not found.hangs
    assert found.words.endswith("the training thread stands at train.py:30 in <module> (torch.compile compiles)")
